"""The mode ``add_columns``: which splits its rounds have, and what its commit is made of."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from airflow_ckpt_provider.checkpoint.anew import as_named, staged_anew
from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Pinned, Split
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import (
    CorruptObjectError,
    InvalidInputError,
    SchemaMismatchError,
    StagedFileMissingError,
    TableMovedError,
)
from airflow_ckpt_provider.scan.lance_rows import PLACE, Rows, content_of, fields_of, live_fragments
from airflow_ckpt_provider.scan.row_lineage import PinnedRows, moved_in, ranges_of
from airflow_ckpt_provider.tables.lance.columns.schema import widened
from airflow_ckpt_provider.tables.lance.columns.writer import JOIN, ColumnsWriter, Join, brought_back
from airflow_ckpt_provider.tables.lance.evolution import optional, unaddable
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.history import operations_since, rows_stayed
from airflow_ckpt_provider.tables.lance.intermediate import ColumnFile
from airflow_ckpt_provider.tables.lance.looks import goes_stale
from airflow_ckpt_provider.tables.lance.modes.base import LanceMode
from airflow_ckpt_provider.tables.lance.operations import widening
from airflow_ckpt_provider.tables.lance.schema import schema_from_json, schema_to_json
from airflow_ckpt_provider.tables.mode import Grouping
from airflow_ckpt_provider.tables.parameters import ModeParameters
from airflow_ckpt_provider.tables.summary import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Header, Plan, Staged
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.scan.row_lineage import MovedRows, Ranges
    from airflow_ckpt_provider.tables.lance.columns.writer import Run
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragment
    from airflow_ckpt_provider.tables.lance.operations import Swap
    from airflow_ckpt_provider.tables.writer import Writer

    #: A staged file, and which of its rows; all where they are if there is none.
    Part: TypeAlias = tuple[StagedFragment, tuple[Run, ...]]

_log = logging.getLogger(__name__)

#: Metadata of a column that was added: a digest of the checkpoint's header, which no other store has.
_MADE_BY = b"airflow.checkpoint.made"


class NewColumns(Pinned, frozen=True, kw_only=True, tag="add_columns"):
    """The columns that are added, as an Arrow schema."""

    columns: str


class AddColumnsParameters(ModeParameters, frozen=True, kw_only=True):
    """What is read, and how much of it at once."""

    read_columns: Annotated[list[str], Meta(description="the columns that the transform is given")]
    rows_per_split: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)] | None,
        Meta(description="rows whose values are computed and remembered at once"),
    ] = None


class AddColumns(LanceMode):
    """Every row gets values in new columns; no row is added, moved or removed."""

    Parameters = AddColumnsParameters
    parameters: AddColumnsParameters
    grouping = Grouping.ALONE
    provisional = True
    removes_rows = True
    pins_columns = False

    def validate(self) -> None:
        """Refuse columns to be read that the dataset does not have. What the others hold does not matter."""
        dataset, read = self.there, self.parameters.read_columns
        if PLACE in read:
            raise InvalidInputError(
                f"read_columns names {PLACE!r}: while columns are computed, rows carry their place in a column of that name. "
                "Rename the column of the dataset first."
            )
        absent = [name for name in read if name not in dataset.schema.names]
        if absent:
            raise InvalidInputError(
                f"read_columns names {', '.join(map(repr, absent))}, which the dataset {dataset.uri} does not have. Its columns "
                f"are: {', '.join(dataset.schema.names)}."
            )

    def placing(self, header: Header) -> dict[str, str] | None:
        """None: no whole row is written."""
        del header
        return None

    def first(self, write: StagedWrite, plan: Plan, made: Callable[[], pa.Schema]) -> Plan:
        """Pin the columns that the transform makes.

        :raises InvalidInputError: if it makes none, or some that the dataset has.
        :raises SchemaMismatchError: if they cannot be in the dataset.
        """
        import pyarrow as pa

        dataset, fields = self.there, list(made())
        # The place of the row is the last one; if the transform made one of that name, it is refused below.
        of_transform = fields[:-1] if fields and fields[-1].name == PLACE else fields
        # Optional, because rows that others add later have no values in them.
        columns = pa.schema(map(optional, of_transform))
        if not len(columns):
            raise InvalidInputError("The transform returned no column. With mode='add_columns' it returns those that are added.")
        replaced_columns = _own_columns(dataset, write.replaced)
        taken = [name for name in columns.names if name in dataset.schema.names and name not in replaced_columns]
        if taken:
            raise InvalidInputError(
                f"The transform returned {', '.join(map(repr, taken))}, which the dataset {dataset.uri} has already. Nothing was "
                "changed. It must return the new columns and no others; drop a column first if it is to be computed anew."
            )
        lines = unaddable(columns, dataset.data_storage_version)
        if lines:
            raise SchemaMismatchError(
                f"The columns that the transform makes cannot be added to {dataset.uri}:\n  " + "\n  ".join(lines)
            )
        return msgspec.structs.replace(plan, mode=NewColumns(columns=schema_to_json(columns)).to_json())

    def require_replaceable(self, landed: SealedWrite) -> None:
        """Columns are replaced wherever their rows are by now."""

    @goes_stale
    def plan(self, write: StagedWrite) -> Plan:
        """Once all of the last plan is staged, ranges that are not planned yet, and the joins if there are none."""
        dataset, plan = self.there, write.plan
        before = {split.id for split in plan.splits}
        if not before <= write.staged_ids():
            return plan
        rows_per_split = plan.source_as(PinnedRows).rows_per_split
        ranges = ranges_of(dataset, self.parameters.read_columns, rows_per_split, plan, lambda _: True)
        known = all(split.id in before for split in ranges.splits)
        joins = as_named(self._joins(dataset, ranges, write), plan).values() if known else ()
        splits = (*ranges.splits, *joins)
        if {split.id for split in splits} == before:
            return plan
        source = ranges.pinned(plan, dataset)
        return msgspec.structs.replace(plan, created_at=now(), source=source, splits=splits, base=dataset.version)

    @classmethod
    def staged_anew(cls, write: StagedWrite, lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which these are staged once more, without the joins of their values.

        :raises StagedFileMissingError: if values are lost whose rows were compacted since: what they were read from may be gone.
        """
        plan = write.plan
        moved = {piece.split for pieces in moved_in(plan).values() for piece in pieces}
        if moved & lost:
            raise StagedFileMissingError(
                f"Staged values of {len(moved & lost)} ranges are gone, and their rows were moved by a compaction since they were "
                "computed. Nothing was committed. Compute the columns from the start: "
                f"{how_to_restart()}."
            )
        again = staged_anew(plan, lost, len(write.plans) + 1)
        if not any(split.id in lost for split in plan.splits if split.task == READ):
            return again
        return msgspec.structs.replace(again, splits=tuple(split for split in again.splits if split.task == READ))

    @goes_stale
    def writer(self, write: StagedWrite) -> Writer:
        """What executors stage values and join them with."""
        import pyarrow as pa

        schema = _columns_of(write.plan).append(pa.field(PLACE, pa.uint32()))
        return ColumnsWriter(dataclasses.replace(self.facts(write.header), schema=schema, fields=(), one_file=True))

    def landed(self, write: SealedWrite) -> set[str]:
        """The files that landed, and not the parts that some of them were joined from."""
        root = write.header.table.identifier
        return {f"{root}/data/{name}" for name, _ in _column_files(write.plan, write.staged).values()}

    def staged_schema(self, writes: Sequence[SealedWrite]) -> pa.Schema:
        """The new columns."""
        return _columns_of(writes[0].plan)

    def swap(self, writes: Sequence[SealedWrite], staged: Sequence[StagedFragments]) -> Swap:
        """Every fragment with the deletions that it has now, and the file of its new columns.

        :raises TableMovedError: if rows with values are in other fragments now.
        """
        del staged
        (write,) = writes
        dataset = self.there
        columns = _columns_of(write.plan)
        taken = [name for name in columns.names if name in dataset.schema.names]
        if not _own_columns(dataset, write.replaced).issuperset(taken):
            raise SchemaMismatchError(
                f"Somebody else added {', '.join(map(repr, taken))} to {write.header.table.identifier} since the key "
                f"{write.header.key!r} was begun. Nothing was committed, and what is staged stays staged. Drop those columns and "
                "run the commit again."
            )
        made = _column_files(write.plan, write.staged)
        fields = fields_of(dataset.lance_schema, self.parameters.read_columns)
        live = {content_of(fragment, fields): fragment for fragment in live_fragments(dataset)}
        self._require_covered(write, dataset, live, made)
        _require_valued(write, dataset, live)
        _warn_of_indexes(dataset, taken)
        schema = widened(dataset, _signed(columns, write.header), taken)
        given = {fragment.id: made[of] for of, fragment in live.items() if of in made}
        return widening(dataset, schema, columns.names, given, instead=fields_of(dataset.lance_schema, taken))

    def _require_covered(
        self, write: SealedWrite, dataset: LanceDataset, live: Mapping[str, Any], made: Mapping[str, tuple[str, int]]
    ) -> None:
        """Rows that were added since have no values, and those that were deleted need none; anything else has to be looked at."""
        gone, new = made.keys() - live.keys(), live.keys() - made.keys()
        rows = write.plan.source_as(PinnedRows).rows
        left = sum(fragment.num_rows for of, fragment in live.items() if of in made)
        # A row that was updated is deleted in one fragment and stands in another, where it would lose its value.
        touched = gone or (new and left < rows)
        # Rows that were added to columns which are replaced have values of others in them.
        if (new and write.header.replaces is not None) or (touched and not rows_stayed(dataset, write.plan.base or 0)):
            raise TableMovedError(
                f"{write.header.table.identifier} was changed since the columns of the key {write.header.key!r} were computed: "
                f"{len(gone)} fragments were rewritten or removed, and {len(new)} are new. Nothing was committed, and what is "
                f"staged stays staged. Clear the task {write.header.origin.task_id!r}: it computes what the change affects, and "
                "nothing else, before the commit runs again."
            )
        if new:
            _log.warning(
                "%s rows were added to %s after the columns of the key %s were computed. They have no values in them.",
                f"{sum(live[of].num_rows for of in new):,}", write.header.table.identifier, write.header.key,
            )  # fmt: skip

    def _joins(self, dataset: LanceDataset, ranges: Ranges, write: StagedWrite) -> Iterator[Split]:
        """Splits that join staged values into one file, for the fragments that need it."""
        fields = fields_of(dataset.lance_schema, self.parameters.read_columns)
        files = _files_of(write.records([split.id for split in ranges.splits]))
        reads = _by_fragment(ranges.splits)
        for fragment in live_fragments(dataset):
            of = content_of(fragment, fields)
            read = reads.get(of, [])
            if of in ranges.moved:
                parts = _moved_parts(ranges.moved[of], read, files, dataset.uri)
            elif [files[split.id].rows for split in read if split.id in files] == [fragment.physical_rows]:
                # A value for every row, in one file: it is the fragment's as it is.
                continue
            else:
                parts = [(files[split.id], ()) for split in read if split.id in files]
            runs = tuple(own_runs for _, own_runs in parts)
            named = tuple((file.name, file.bytes) for file, _ in parts)
            yield _join(fragment.id, Join(of, fragment.physical_rows, named, runs if any(runs) else ()))


def _warn_of_indexes(dataset: LanceDataset, replaced: Sequence[str]) -> None:
    """Say which indexes go with the values that are replaced."""
    for index in dataset.describe_indices() if replaced else ():
        if set(index.field_names) & set(replaced):
            _log.warning(
                "The index %s of %s is over values that are replaced, and goes with them. Create it anew.", index.name, dataset.uri
            )


def _require_valued(write: SealedWrite, dataset: LanceDataset, live: Mapping[str, Any]) -> None:
    """Refuse fragments with rows that were deleted when the columns were computed, and are back: they would have no values.

    Only a dataset that is restored to an earlier version brings rows back.
    """
    records = {record.split: record for record in write.staged}
    splits = [split for split in write.plan.splits if split.task == READ]
    reads, moved = _by_fragment(splits), moved_in(write.plan)
    # Of a piece that was moved, every row has a value: the join has looked.
    valued = {
        of: sum(records[split.id].rows for split in reads.get(of, ()))
        + sum(piece.rows for piece in moved.get(of, ()) if piece.split)
        for of in live
        if of in reads or of in moved
    }
    missing = any(live[of].num_rows > rows for of, rows in valued.items())
    if not missing and any(rows < live[of].physical_rows for of, rows in valued.items()):
        first = min(Rows.from_json(split.read).version for split in splits)
        missing = "Restore" in (operations_since(dataset, first) or ())
    if missing:
        raise brought_back(write.header.table.identifier)


def _own_columns(dataset: LanceDataset, replaced: SealedWrite | None) -> frozenset[str]:
    """Columns of the dataset that the generation which is replaced has added, and not somebody else since under the same name."""
    if replaced is None:
        return frozenset()
    made = identity_of([replaced.header]).encode()
    return frozenset(
        name
        for name in _columns_of(replaced.plan).names
        if name in dataset.schema.names and (dataset.schema.field(name).metadata or {}).get(_MADE_BY) == made
    )


def _signed(columns: pa.Schema, header: Header) -> pa.Schema:
    """The columns, each saying which checkpoint has made it: names and files do not tell, after others have worked on them."""
    import pyarrow as pa

    made = {_MADE_BY: identity_of([header]).encode()}
    return pa.schema([field.with_metadata({**(field.metadata or {}), **made}) for field in columns])


def _join(fragment: int, join: Join) -> Split:
    facts = hashlib.sha256(msgspec.json.encode([join.content, join.parts])).hexdigest()[:16]
    size = sum(size for _, size in join.parts)
    return Split(id=f"{JOIN}_{fragment:06d}_{facts}", bytes=size, read=join.to_json(), task=JOIN)


def _files_of(records: Iterable[Staged]) -> dict[str, StagedFragment]:
    """The file that each split has staged; none of a range without a row left."""
    files = {}
    for record in records:
        if record.manifest is not None:
            (files[record.split],) = StagedFragments.from_json(record.manifest).fragments
    return files


def _by_fragment(splits: Iterable[Split]) -> dict[str, list[Split]]:
    """Splits that read ranges, in the order of these, by what they are of."""
    reads: dict[str, list[Split]] = {}
    for split in sorted(splits, key=lambda split: Rows.from_json(split.read).start):
        reads.setdefault(Rows.from_json(split.read).content, []).append(split)
    return reads


def _moved_parts(pieces: Iterable[MovedRows], read: Iterable[Split], files: Mapping[str, StagedFragment], table: str) -> list[Part]:
    """The files with values of a fragment that others compacted, in the order of its rows, and which rows of them.

    :param read: splits that have read its other rows.
    :raises TableMovedError: if there is no value of a row that was moved.
    """
    parts: list[tuple[int, Part]] = [
        (Rows.from_json(split.read).start, (files[split.id], ())) for split in read if split.id in files
    ]
    runs: dict[str, list[Run]] = {}
    at = 0
    for piece in pieces:
        if piece.split and piece.split not in files:
            # All rows of that range were deleted when it was read.
            raise brought_back(table)
        if piece.split:
            runs.setdefault(piece.split, []).append((piece.start, piece.stop, at))
        at += piece.rows
    parts += [(moved_runs[0][2], (files[split], tuple(moved_runs))) for split, moved_runs in runs.items()]
    return [part for _, part in sorted(parts, key=lambda placed: placed[0])]


def _column_files(plan: Plan, staged: Sequence[Staged]) -> dict[str, tuple[str, int]]:
    """Name and bytes of the column file for each fragment, by what it is of."""
    records = {record.split: record for record in staged}
    moved = {piece.split for pieces in moved_in(plan).values() for piece in pieces}
    read = [split for split in plan.splits if split.task == READ and split.id not in moved]
    files = _files_of(records[split.id] for split in read)
    column_files = {
        of: (files[reads[0].id].name, files[reads[0].id].bytes) for of, reads in _by_fragment(read).items() if reads[0].id in files
    }
    for split in plan.splits:
        if split.task == JOIN:
            file = records[split.id].intermediate_as(ColumnFile)
            if file is None:
                raise CorruptObjectError(
                    f"The record of the split {split.id} in the checkpoint store does not say which file has the columns that it "
                    f"joined. The store was altered; nothing was changed. Redo the write: {how_to_restart()}."
                )
            column_files[Join.from_json(split.read).content] = (file.name, file.bytes)
    return column_files


def _columns_of(plan: Plan) -> pa.Schema:
    """The columns that are added, as the first plan pinned them."""
    pinned = plan.mode_as(NewColumns)
    if pinned is None:
        raise CorruptObjectError(
            "A plan of mode='add_columns' in the checkpoint store does not say which columns are added. The store was altered; "
            f"nothing was changed. Redo the write: {how_to_restart()}."
        )
    return schema_from_json(pinned.columns)
