"""Ranges of a dataset's rows that new columns are computed for, and what of the dataset they depend on.

A range is of the physical rows of one fragment, deleted ones counted, so that it means the same rows in every version that has the
fragment. Rows that are deleted are not read; each row that is carries its place.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Part, Split, part_of
from airflow_ckpt_provider.scan.lance import BLOBS, batch_rows, made_at, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import JsonObject

    Places = npt.NDArray[np.uint32]

#: Column with the place of a row in its fragment, beside the columns that are read.
PLACE = "__checkpoint_row"


class Rows(Part, frozen=True):
    """What a split reads: the rows from ``start`` up to ``stop`` of a fragment.

    :param version: where they are read; made at ``made_at``.
    :param content: what they depend on; see ``content_of``.
    """

    version: int
    made_at: str
    fragment: int
    start: int
    stop: int
    content: str

    def to_json(self) -> JsonObject:
        """As stored in a plan."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: JsonObject) -> Rows:
        """As read from a plan."""
        return part_of(value, cls)


def content_of(fragment: Any, fields: frozenset[int]) -> str:  # noqa: ANN401 - a FragmentMetadata
    """Which rows a fragment holds, deleted ones included: it is the same as long as nobody rewrites the columns that are read.

    :param fields: ids of those columns, at every depth.
    """
    files = sorted(name_of(file) for file in fragment.files if fields & set(file.fields))
    return hashlib.sha256(msgspec.json.encode([fragment.id, fragment.physical_rows, files])).hexdigest()[:16]


def fields_of(schema: Any, columns: Sequence[str]) -> frozenset[int]:  # noqa: ANN401 - a LanceSchema
    """Ids of these top-level columns and of all below them."""
    ids: set[int] = set()
    waiting = [field for field in schema.fields() if field.name() in columns]
    while waiting:
        field = waiting.pop()
        ids.add(field.id())
        waiting += field.children()
    return frozenset(ids)


class VersionFacts(TypedDict):
    """A version of a dataset, and how many fragments and live rows it has."""

    version: int
    fragments: int
    rows: int


def facts_of(dataset: LanceDataset) -> VersionFacts:
    """What a plan says of the version that it was made on."""
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    return VersionFacts(version=dataset.version, fragments=len(fragments), rows=sum(metadata.num_rows for metadata in fragments))


def row_splits(dataset: LanceDataset, columns: Sequence[str], rows_per_split: int) -> Iterator[Split]:
    """Splits that cover all rows; the same ids for the same rows, in whatever version.

    :param columns: top-level columns that are read.
    """
    fields = fields_of(dataset.lance_schema, columns)
    for metadata in live_fragments(dataset):
        yield from range_splits(dataset, metadata, fields, [(0, metadata.physical_rows)], rows_per_split)


def range_splits(
    dataset: LanceDataset,
    fragment: Any,  # noqa: ANN401 - a FragmentMetadata
    fields: frozenset[int],
    runs: Iterable[tuple[int, int]],
    rows_per_split: int,
) -> Iterator[Split]:
    """Splits that cover these rows of a fragment.

    :param fields: ids of the columns that are read, at every depth.
    """
    of, row_bytes = content_of(fragment, fields), _bytes_of(fragment, fields) / fragment.physical_rows
    made = made_at(dataset).isoformat()
    for first, last in runs:
        for start in range(first, last, rows_per_split):
            rows = Rows(dataset.version, made, fragment.id, start, min(start + rows_per_split, last), of)
            yield _split(rows, int(row_bytes * (rows.stop - rows.start)))


def live_fragments(dataset: LanceDataset) -> list[Any]:
    """Descriptions of the fragments that have rows."""
    return [metadata for fragment in dataset.get_fragments() if (metadata := fragment.metadata).num_rows]


def _bytes_of(fragment: Any, fields: frozenset[int]) -> int:  # noqa: ANN401 - a FragmentMetadata
    return sum(file.file_size_bytes or 0 for file in fragment.files if fields & set(file.fields))


def _split(rows: Rows, size: int) -> Split:
    facts = msgspec.json.encode([rows.content, rows.start, rows.stop])
    name = f"rows_{rows.fragment:06d}_{rows.start:08d}_{hashlib.sha256(facts).hexdigest()[:16]}"
    return Split(id=name, bytes=size, read=rows.to_json())


def read_rows(dataset: LanceDataset, rows: Rows, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The live rows of a range in their order, each with its place in the column ``PLACE``.

    :param dataset: at the version of ``rows``.
    """
    import pyarrow as pa

    fragment: Any = dataset.get_fragment(rows.fragment)
    first, count = _live_range(fragment, rows)
    if not count:
        return
    scanner = fragment.scanner(
        columns=list(columns),
        with_row_address=True,
        offset=first,
        limit=count,
        batch_size=batch_rows(fragment.metadata),
        batch_readahead=2,
        blob_handling=BLOBS,
    )
    for batch in scanner.to_batches():
        places = pa.array(_places(batch), pa.uint32())
        yield batch.select(columns).append_column(PLACE, places)


def _live_range(fragment: Any, rows: Rows) -> tuple[int, int]:  # noqa: ANN401 - a LanceFragment
    """Where a range begins among the live rows, and how many of those it has."""
    import numpy as np

    if fragment.num_deletions == 0:
        return rows.start, rows.stop - rows.start
    first, last = np.searchsorted(live_places(fragment), [rows.start, rows.stop])
    return int(first), int(last - first)


def live_places(fragment: Any) -> Places:  # noqa: ANN401 - a LanceFragment
    """Places of the rows that are not deleted, in their order."""
    import numpy as np

    places = [_places(batch) for batch in fragment.scanner(columns=[], with_row_address=True).to_batches()]
    return np.concatenate(places) if places else np.empty(0, np.uint32)


def _places(batch: pa.RecordBatch) -> Places:
    import numpy as np

    addresses = batch.column("_rowaddr").to_numpy(zero_copy_only=False)
    return (addresses & np.uint64(0xFFFFFFFF)).astype(np.uint32)  # type: ignore[no-any-return]
