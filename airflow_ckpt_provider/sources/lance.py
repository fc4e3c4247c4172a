"""The source ``LanceDataset``: a Lance dataset at a version that is pinned when the write is planned.

A split is a few fragments. A retry reads exactly those, with the deletions of that version, however the dataset moved on.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Part, Pinned, Plan, Split, part_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, InputChangedError, InvalidInputError, first_line
from airflow_ckpt_provider.scan.lance import BLOBS, bytes_of, dataset_uri, made_at, open_dataset
from airflow_ckpt_provider.scan.lance_windows import fragment_batches
from airflow_ckpt_provider.sources.packing import DEFAULT_SPLIT_BYTES, pack, require_each_once
from airflow_ckpt_provider.sources.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject


class PinnedVersion(Pinned, frozen=True, kw_only=True, omit_defaults=True, tag="lance"):
    """The version of a dataset that a plan reads, and what it had then."""

    dataset: str
    version: Count
    made_at: str
    fragments: Count
    bytes: Count
    filter: str | None = None


class LanceDataset:
    """A Lance dataset to read.

    :param uri: an absolute path, or a URI such as ``s3://bucket/vectors.lance`` (templated)
    :param version: version to read; the latest, when the write is planned, if None (templated)
    :param filter: rows to keep, as SQL such as ``"label = 'cat' and score > 0.5"`` (templated)
    :param columns: columns to read, in this order; all if None (templated)
    :param conn_id: Airflow connection of type ``checkpoint`` with the credentials of the storage; those of the environment if None
    :param max_split_bytes: bytes of data files of one split, about; a fragment is never cut
    :raises InvalidInputError: when the DAG is parsed, for parameters that cannot work
    """

    template_fields = ("uri", "version", "filter", "columns")

    #: The operator hands over storage options.
    conn_kind = "checkpoint"

    def __init__(
        self,
        uri: str,
        version: int | str | None = None,
        filter: str | None = None,  # noqa: A002 - Lance's own word for it
        columns: Sequence[str] | None = None,
        conn_id: str | None = None,
        max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    ) -> None:
        if isinstance(columns, str) or (columns is not None and not columns):
            raise InvalidInputError(
                f"LanceDataset(columns={columns!r}): must be a list of at least one column name, or None for all."
            )
        twice = sorted({name for name in columns or () if list(columns or ()).count(name) > 1})
        if twice:
            raise InvalidInputError(f"LanceDataset(columns=...): {', '.join(twice)} is named twice.")
        if max_split_bytes <= 0:
            raise InvalidInputError(f"LanceDataset(max_split_bytes={max_split_bytes}): must be positive.")
        self.uri = uri
        self.version = version
        self.filter = filter
        self.columns = None if columns is None else list(columns)
        self.conn_id = conn_id
        self.max_split_bytes = max_split_bytes

    def serialize(self) -> JsonObject:
        """What Airflow shows of it."""
        return shown("LanceDataset", self.uri, version=self.version, filter=self.filter, columns=self.columns, conn_id=self.conn_id)

    def __repr__(self) -> str:
        # Not by its description: templates are not rendered yet when a DAG is serialized.
        given = {name: getattr(self, name) for name in ("version", "filter", "columns")}
        facts = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return f"LanceDataset({', '.join([repr(self.uri), *facts])})"

    def describe(self) -> JsonObject:
        """What decides which rows are read."""
        facts: JsonObject = {"lance": dataset_uri(self.uri)}
        for name in ("version", "filter", "columns"):
            value = getattr(self, name)
            if value is not None:
                facts[name] = str(value) if name == "version" else value
        return facts

    def plan(self, options: Mapping[str, str]) -> Plan:
        """Pin the version and cut its fragments into splits.

        :raises InvalidInputError: for a version, column or filter that cannot be, before Spark starts.
        """
        version = self._wanted_version()
        if self.filter is not None and not self.filter.strip():
            raise InvalidInputError(f"LanceDataset(filter={self.filter!r}): a template may have rendered to nothing.")
        place = Place(dataset_uri(self.uri), options)
        dataset = place.open(version)
        made = made_at(dataset).isoformat()
        self._require_readable(dataset)
        fragments = [(fragment.fragment_id, bytes_of(fragment.metadata)) for fragment in dataset.get_fragments()]
        splits = pack(fragments, self.max_split_bytes, f"The dataset {place.uri}")
        pinned = PinnedVersion(
            dataset=place.uri,
            version=dataset.version,
            made_at=made,
            fragments=len(fragments),
            bytes=sum(size for _, size in fragments),
            filter=self.filter,
        )
        return Plan(
            created_at=now(),
            source=pinned.to_json(),
            splits=tuple(
                Split(id=f"{number:06d}", bytes=size, read=LanceSplit(dataset.version, made, tuple(ids)).to_json())
                for number, (ids, size) in enumerate(splits)
            ),
        )

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Check that the pinned version is still there.

        :raises InputChangedError: if it was cleaned up.
        """
        if splits:
            reads = [LanceSplit.from_json(split.read) for split in splits]
            first, told = reads[0], self._wanted_version()
            if {(read.version, read.made_at) for read in reads} != {(first.version if told is None else told, first.made_at)}:
                raise CorruptObjectError(
                    f"The plan in the checkpoint store does not read the version {told or first.version} of {self.uri}. The store "
                    f"was altered; nothing was read. Redo the write: {how_to_restart()}."
                )
            Place(dataset_uri(self.uri), options).pinned(first.version, first.made_at)

    def require_once(self, plan: Plan, options: Mapping[str, str]) -> None:
        """Refuse fragments that are read twice, or not at all; see ``AccountingSource``."""
        reads = [LanceSplit.from_json(split.read) for split in plan.splits if split.task == READ]
        present: set[str] | None = None
        # What is staged of a version that was cleaned up since stays staged.
        with contextlib.suppress(InputChangedError):
            if reads:
                dataset = Place(dataset_uri(self.uri), options).pinned(reads[0].version, reads[0].made_at)
                present = {f"fragment {fragment.fragment_id}" for fragment in dataset.get_fragments()}
        require_each_once((f"fragment {number}" for read in reads for number in read.fragments), self.uri, present)

    def news(self, plan: Plan, options: Mapping[str, str]) -> str | None:
        """Another version than the planned one; see ``ListableSource.news``."""
        place = Place(dataset_uri(self.uri), options)
        dataset = place.open(self._wanted_version())
        pinned = plan.source_as(PinnedVersion)
        if (dataset.version, made_at(dataset).isoformat()) == (pinned.version, pinned.made_at):
            return None
        return f"{place.uri} is at version {dataset.version} now, and version {pinned.version} was read"

    def schema(self, plan: Plan, options: Mapping[str, str]) -> pa.Schema | None:
        """Columns of the rows."""
        place = Place(dataset_uri(self.uri), options)
        dataset = place.open(plan.source_as(PinnedVersion).version)
        return dataset.scanner(columns=self.columns, filter=self.filter, blob_handling=BLOBS).projected_schema

    def reader(self, options: Mapping[str, str]) -> LanceReader:
        """What executors read with."""
        return LanceReader(Place(dataset_uri(self.uri), options), self.columns, self.filter)

    def _wanted_version(self) -> int | None:
        if self.version is None:
            return None
        try:
            version = int(self.version)
        except ValueError:
            version = 0
        if version <= 0:
            raise InvalidInputError(f"{self!r}: the version must be a positive number; a template may have rendered to nothing.")
        return version

    def _require_readable(self, dataset: Any) -> None:  # noqa: ANN401 - a LanceDataset
        try:
            # Reads nothing, but binds columns and filter to the schema.
            _ = dataset.scanner(columns=self.columns, filter=self.filter).projected_schema
            dataset.scanner(columns=self.columns, filter=self.filter).explain_plan()
        except (OSError, ValueError, KeyError) as error:
            raise InvalidInputError(f"{self!r} does not fit the dataset: {first_line(error)}") from error


class LanceSplit(Part, frozen=True):
    """What a split reads.

    :param version: the pinned version.
    :param made_at: when it was made, which tells it from one of another dataset at the same place.
    :param fragments: ids.
    """

    version: int
    made_at: str
    fragments: tuple[int, ...]

    def to_json(self) -> JsonObject:
        """As stored in a plan."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: JsonObject) -> LanceSplit:
        """As read from a plan."""
        return part_of(value, cls)


class LanceReader:
    """Reads splits of ``LanceDataset``. Picklable; holds credentials, so it never goes into the store."""

    def __init__(self, place: Place, columns: Sequence[str] | None, row_filter: str | None) -> None:
        self._place = place
        self._columns = columns
        self._filter = row_filter
        self._at = -1

    def read(self, split: Split, expected: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """Rows of the split, fragment after fragment, in each one's order.

        :raises InputChangedError: if the version is gone.
        """
        del expected
        wanted = LanceSplit.from_json(split.read)
        dataset = self._place.pinned(wanted.version, wanted.made_at)
        yield from self._read(dataset, wanted.fragments)

    def read_near(self, split: Split, expected: pa.Schema | None, row: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        """The same from a row on; from the first one with a filter, which does not tell how many rows it leaves."""
        if self._filter is not None:
            return 0, self.read(split, expected)
        wanted, begin = LanceSplit.from_json(split.read), 0
        dataset = self._place.pinned(wanted.version, wanted.made_at)
        for number, fragment_id in enumerate(wanted.fragments):
            rows = dataset.get_fragment(fragment_id).metadata.num_rows
            if begin + rows > row:
                return row, self._read(dataset, wanted.fragments[number:], row - begin)
            begin += rows
        return begin, iter(())

    def _read(self, dataset: Any, fragments: Sequence[int], first: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - a LanceDataset
        """Rows of fragments, from a live row of the first one on."""
        for fragment_id in fragments:
            self._at = fragment_id
            yield from fragment_batches(dataset.get_fragment(fragment_id), self._columns, self._filter, first)
            first = 0

    def places(self, split: Split) -> list[str]:
        """The fragment at which it is, or all."""
        fragments = LanceSplit.from_json(split.read).fragments
        if self._at in fragments:
            fragments = (self._at,)
        return [f"fragment {number} of {self._place.uri}" for number in fragments]


@dataclass(frozen=True)
class Place:
    """Where a dataset is, and how it is opened."""

    uri: str
    options: Mapping[str, str] = field(repr=False)

    def open(self, version: int | None) -> Any:  # noqa: ANN401 - a LanceDataset
        """The dataset at a version, or at its latest.

        :raises InvalidInputError: if there is none.
        """
        dataset = open_dataset(self.uri, self.options, version)
        if dataset is None:
            what = f"There is no version {version} of" if version is not None else "There is no"
            raise InvalidInputError(f"{what} Lance dataset at {self.uri}. Check the URI and the connection.")
        return dataset

    def pinned(self, version: int, made: str) -> Any:  # noqa: ANN401 - a LanceDataset
        """The dataset as it was planned.

        :param made: when the version was made.
        :raises InputChangedError: if it is another one, or its version is gone.
        """
        dataset = open_dataset(self.uri, self.options, version)
        if dataset is None or made_at(dataset).isoformat() != made:
            raise self._changed(version)
        return dataset

    def _changed(self, version: int) -> InputChangedError:
        return InputChangedError(
            f"Version {version} of {self.uri}, which this write reads, is gone: old versions were cleaned up, or the dataset "
            f"was made anew. To redo the write on the dataset as it is now: {how_to_restart()}. To keep a version while it is "
            "read, give it a tag."
        )
