"""The mode ``add_columns``: which splits its rounds have, and what its commit is made of."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Split
from airflow_ckpt_provider.exceptions import InvalidInputError, SchemaMismatchError, TableMovedError
from airflow_ckpt_provider.scan.lance_rows import PLACE, Rows, content_of, facts_of, fields_of, live_fragments, row_splits
from airflow_ckpt_provider.tables.lance.columns.schema import widened
from airflow_ckpt_provider.tables.lance.columns.writer import JOIN, ColumnsWriter, Join
from airflow_ckpt_provider.tables.lance.commit import widening
from airflow_ckpt_provider.tables.lance.evolution import optional, unaddable
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.modes import Append
from airflow_ckpt_provider.tables.lance.schema import file_fields, schema_from_json, schema_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Plan, Staged
    from airflow_ckpt_provider.tables.lance.commit import Swap
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragment
    from airflow_ckpt_provider.tables.lance.writer import WriterFacts
    from airflow_ckpt_provider.tables.protocol import Sealed, StagedOf, Writer

_log = logging.getLogger(__name__)


class AddColumns(Append):
    """Every row gets values in new columns; no row is added, moved or removed.

    :param parameters: ``read_columns``, and ``rows_per_split`` if it was set.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"read_columns", "rows_per_split"})
    additive = False
    replaces = True
    provisional = True
    together = False
    pins_columns = False

    def validate(self, dataset: LanceDataset | None) -> None:
        """Refuse columns to be read that the dataset does not have. What the others hold does not matter."""
        names = [] if dataset is None else dataset.schema.names
        strange = [name for name in self._read if name not in names]
        if dataset is not None and strange:
            raise InvalidInputError(
                f"read_columns names {', '.join(map(repr, strange))}, which the dataset {dataset.uri} does not have. Its columns "
                f"are: {', '.join(names)}."
            )

    def first(self, dataset: LanceDataset, plan: Plan, made: Callable[[], pa.Schema], replaced: Sealed | None) -> Plan:
        """Pin the columns that the transform makes.

        :raises InvalidInputError: if it makes none, or some that the dataset has.
        :raises SchemaMismatchError: if they cannot be in the dataset.
        """
        import pyarrow as pa

        # Optional, because rows that others add later have no values in them.
        columns = pa.schema([optional(field) for field in made() if field.name != PLACE])
        if not len(columns):
            raise InvalidInputError("The transform returned no column. With mode='add_columns' it returns those that are added.")
        own = _own_columns(dataset, replaced)
        there = [name for name in columns.names if name in dataset.schema.names and name not in own]
        if there:
            raise InvalidInputError(
                f"The transform returned {', '.join(map(repr, there))}, which the dataset {dataset.uri} has already. Nothing was "
                "changed. It must return the new columns and no others; drop a column first if it is to be computed anew."
            )
        lines = unaddable(columns, dataset.data_storage_version)
        if lines:
            raise SchemaMismatchError(
                f"The columns that the transform makes cannot be added to {dataset.uri}:\n  " + "\n  ".join(lines)
            )
        return msgspec.structs.replace(plan, inputs=plan.inputs | {"new": schema_to_json(columns)})

    def following(
        self, files: DatasetFiles, dataset: LanceDataset, plans: Sequence[Plan], staged: StagedOf, replaced: Sealed | None
    ) -> Plan | None:
        """Ranges that are not planned yet, and once all are staged, the joins; None if there is nothing new."""
        del files, replaced
        plan = plans[-1]
        before = {split.id: split for split in plan.splits}
        rows_per_split: Any = plan.inputs["rows_per_split"]
        ranges = [before.get(split.id, split) for split in row_splits(dataset, self._read, rows_per_split)]
        known = all(split.id in before for split in ranges)
        splits = (*ranges, *(_joins(ranges, staged) if known else ()))
        if {split.id for split in splits} == before.keys():
            return None
        inputs = plan.inputs | facts_of(dataset)
        return msgspec.structs.replace(plan, created_at=now(), inputs=inputs, splits=splits, base=dataset.version)

    def writer(self, facts: WriterFacts, plans: Sequence[Plan]) -> Writer:
        """What executors stage values and join them with."""
        import pyarrow as pa

        schema = _columns_of(plans[-1]).append(pa.field(PLACE, pa.uint32()))
        return ColumnsWriter(dataclasses.replace(facts, schema=schema, fields=(), one_file=True))

    def landed(self, one: Sealed) -> set[str]:
        """The files that landed, and not the parts that some of them were joined from."""
        root = one.header.table.identifier
        return {f"{root}/data/{name}" for name, _ in _column_files(one.plan, one.staged).values()}

    def staged_schema(self, pinned: pa.Schema, sealed: Sequence[Sealed]) -> pa.Schema:
        """The new columns."""
        del pinned
        return _columns_of(sealed[0].plan)

    def swap(
        self, files: DatasetFiles, dataset: LanceDataset | None, sealed: Sequence[Sealed], staged: Sequence[StagedFragments]
    ) -> Swap:
        """Every fragment with the deletions that it has now, and the file of its new columns.

        :raises TableMovedError: if rows with values are in other fragments now.
        """
        del files, staged
        (one,) = sealed
        if dataset is None:
            raise TableMovedError(f"The Lance dataset {one.header.table.identifier} is gone.")
        columns = _columns_of(one.plan)
        there = [name for name in columns.names if name in dataset.schema.names]
        if not _own_columns(dataset, one.replaced).issuperset(there):
            raise SchemaMismatchError(
                f"Somebody else added {', '.join(map(repr, there))} to {one.header.table.identifier} since the key "
                f"{one.header.key!r} was begun. Nothing was committed, and what is staged stays staged. Drop those columns and run "
                "the commit again."
            )
        made = _column_files(one.plan, one.staged)
        fields = fields_of(dataset.lance_schema, self._read)
        found = {content_of(fragment, fields): fragment for fragment in live_fragments(dataset)}
        self._require_covered(one, found, made)
        schema = widened(dataset, columns, there)
        given = {fragment.id: made[of] for of, fragment in found.items() if of in made}
        return widening(dataset, schema, columns.names, given, instead=fields_of(dataset.lance_schema, there))

    def _require_covered(self, one: Sealed, found: Mapping[str, Any], made: Mapping[str, tuple[str, int]]) -> None:
        """Rows that were added since have no values; anything else that happened to fragments has to be looked at first."""
        gone, new = made.keys() - found.keys(), found.keys() - made.keys()
        rows: Any = one.plan.inputs["rows"]
        left = sum(fragment.num_rows for of, fragment in found.items() if of in made)
        # A row that was updated is deleted in one fragment and stands in another, where it would lose its value.
        if gone or (new and (left < rows or one.header.replaces is not None)):
            raise TableMovedError(
                f"{one.header.table.identifier} was changed since the columns of the key {one.header.key!r} were computed: "
                f"{len(gone)} fragments were rewritten or removed, and {len(new)} are new. Nothing was committed, and what is "
                f"staged stays staged. Clear the task {one.header.origin.task_id!r}: it computes what the change affects, and "
                "nothing else, before the commit runs again."
            )
        if new:
            _log.warning(
                "%s rows were added to %s after the columns of the key %s were computed. They have no values in them.",
                f"{sum(found[of].num_rows for of in new):,}", one.header.table.identifier, one.header.key,
            )  # fmt: skip

    @property
    def _read(self) -> list[str]:
        columns = self.parameters.get("read_columns")
        if not isinstance(columns, list) or not columns:
            raise InvalidInputError("mode='add_columns' needs read_columns: the columns that the transform is given.")
        return columns


def _own_columns(dataset: LanceDataset, replaced: Sealed | None) -> frozenset[str]:
    """Columns of the dataset that the generation which is replaced has added, and not somebody else since under the same name."""
    if replaced is None:
        return frozenset()
    names = frozenset(_columns_of(replaced.plan).names)
    files = {name for name, _ in _column_files(replaced.plan, replaced.staged).values()}
    there = (file for fragment in dataset.get_fragments() for file in fragment.data_files())
    landed = {number for file in there if file.path in files for number in file.fields}
    if not landed:
        # All of its files were compacted: nothing but the names is left of it.
        return names
    return frozenset(
        name for name in names & set(dataset.schema.names) if landed.issuperset(file_fields(dataset.lance_schema, [name]))
    )


def _joins(ranges: Sequence[Split], staged: StagedOf) -> list[Split]:
    """Splits that join ranges into one file, for the fragments that need it.

    :param ranges: that cover every fragment.
    """
    parts = _parts(ranges, staged([split.id for split in ranges]))
    last = {rows.of: rows for rows in sorted((Rows.from_json(split.read) for split in ranges), key=lambda rows: rows.stop)}
    return [
        _join(rows.fragment, Join(of, rows.stop, tuple((part.name, part.bytes) for part in parts[of])))
        for of, rows in last.items()
        if not (len(parts[of]) == 1 and parts[of][0].rows == rows.stop)
    ]


def _join(fragment: int, join: Join) -> Split:
    facts = hashlib.sha256(msgspec.json.encode([join.of, join.parts])).hexdigest()[:16]
    size = sum(size for _, size in join.parts)
    return Split(id=f"{JOIN}_{fragment:06d}_{facts}", bytes=size, read=join.to_json(), task=JOIN)


def _parts(ranges: Iterable[Split], records: Iterable[Staged]) -> dict[str, list[StagedFragment]]:
    """The staged files of ranges in the order of their rows, by what they are of; none of a range without a row left."""
    of_split = {split.id: Rows.from_json(split.read) for split in ranges}
    parts: dict[str, list[StagedFragment]] = {rows.of: [] for rows in of_split.values()}
    for record in sorted(records, key=lambda record: of_split[record.split].start):
        if record.manifest is not None:
            parts[of_split[record.split].of] += StagedFragments.from_json(record.manifest).fragments
    return parts


def _column_files(plan: Plan, staged: Sequence[Staged]) -> dict[str, tuple[str, int]]:
    """Name and bytes of the column file for each fragment, by what it is of."""
    records = {record.split: record for record in staged}
    ranges = [split for split in plan.splits if split.task == READ]
    found = {of: (own[0].name, own[0].bytes) for of, own in _parts(ranges, [records[split.id] for split in ranges]).items() if own}
    for split in plan.splits:
        if split.task == JOIN:
            file: Any = (records[split.id].scratch or {})["file"]
            found[Join.from_json(split.read).of] = (file[0], file[1])
    return found


def _columns_of(plan: Plan) -> pa.Schema:
    """The columns that are added, as the first plan pinned them."""
    return schema_from_json(str(plan.inputs["new"]))
