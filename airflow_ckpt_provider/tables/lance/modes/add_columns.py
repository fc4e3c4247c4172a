"""The mode ``add_columns``: which splits its rounds have, and what its commit is made of."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ
from airflow_ckpt_provider.checkpoint.restaged import as_named, restaged
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    SchemaMismatchError,
    StagedFileMissingError,
)
from airflow_ckpt_provider.scan.lance_rows import PLACE, content_of, fields_of, live_fragments
from airflow_ckpt_provider.scan.row_lineage import PinnedRows, moved_in, ranges_of
from airflow_ckpt_provider.tables.lance.columns.joining import column_files, joins_of
from airflow_ckpt_provider.tables.lance.columns.landing import own_columns, require_covered, require_valued, signed, warn_of_indexes
from airflow_ckpt_provider.tables.lance.columns.pinned import NewColumns, columns_of
from airflow_ckpt_provider.tables.lance.columns.schema import widened
from airflow_ckpt_provider.tables.lance.columns.writer import ColumnsWriter
from airflow_ckpt_provider.tables.lance.evolution import optional, unaddable
from airflow_ckpt_provider.tables.lance.looks import goes_stale
from airflow_ckpt_provider.tables.lance.modes.base import LanceMode
from airflow_ckpt_provider.tables.lance.operations import widening
from airflow_ckpt_provider.tables.lance.schema import schema_to_json
from airflow_ckpt_provider.tables.mode import Grouping
from airflow_ckpt_provider.tables.parameters import ModeParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Header, Plan
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
    from airflow_ckpt_provider.tables.lance.operations import Swap
    from airflow_ckpt_provider.tables.writer import Writer


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
        dataset, read = self.existing, self.parameters.read_columns
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

        dataset, fields = self.existing, list(made())
        # The place of the row is the last one; if the transform made one of that name, it is refused below.
        of_transform = fields[:-1] if fields and fields[-1].name == PLACE else fields
        # Optional, because rows that others add later have no values in them.
        columns = pa.schema(map(optional, of_transform))
        if not len(columns):
            raise InvalidInputError("The transform returned no column. With mode='add_columns' it returns those that are added.")
        replaced_columns = own_columns(dataset, write.replaced)
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
        dataset, plan = self.existing, write.plan
        before = {split.id for split in plan.splits}
        if not before <= write.staged_ids():
            return plan
        rows_per_split = plan.source_as(PinnedRows).rows_per_split
        ranges = ranges_of(dataset, self.parameters.read_columns, rows_per_split, plan, lambda _: True)
        known = all(split.id in before for split in ranges.splits)
        joins = as_named(joins_of(dataset, ranges, write, self.parameters.read_columns), plan).values() if known else ()
        splits = (*ranges.splits, *joins)
        if {split.id for split in splits} == before:
            return plan
        source = ranges.pinned(plan, dataset)
        return msgspec.structs.replace(plan, created_at=now(), source=source, splits=splits, base=dataset.version)

    @classmethod
    def restaged(cls, write: StagedWrite, lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which these are staged again, without the joins of their values.

        :raises StagedFileMissingError: if values are lost whose rows were compacted since: what they were read from may be gone.
        """
        plan = write.plan
        moved = {stretch.split for stretches in moved_in(plan).values() for stretch in stretches}
        if moved & lost:
            raise StagedFileMissingError(
                f"Staged values of {len(moved & lost)} ranges are gone, and their rows were moved by a compaction since they were "
                "computed. Nothing was committed. Compute the columns from the start: "
                f"{how_to_restart()}."
            )
        next_plan = restaged(plan, lost, len(write.plans) + 1)
        if not any(split.id in lost for split in plan.splits if split.task == READ):
            return next_plan
        return msgspec.structs.replace(next_plan, splits=tuple(split for split in next_plan.splits if split.task == READ))

    @goes_stale
    def writer(self, write: StagedWrite) -> Writer:
        """What executors stage values and join them with."""
        import pyarrow as pa

        schema = columns_of(write.plan).append(pa.field(PLACE, pa.uint32()))
        return ColumnsWriter(dataclasses.replace(self.facts(write.header), schema=schema, fields=(), one_file=True))

    def landed(self, write: SealedWrite) -> set[str]:
        """The files that landed, and not the parts that some of them were joined from."""
        root = write.header.table.identifier
        return {f"{root}/data/{name}" for name, _ in column_files(write.plan, write.staged).values()}

    def staged_schema(self, writes: Sequence[SealedWrite]) -> pa.Schema:
        """The new columns."""
        return columns_of(writes[0].plan)

    def swap(self, writes: Sequence[SealedWrite], staged: Sequence[StagedFragments]) -> Swap:
        """Every fragment with the deletions that it has now, and the file of its new columns.

        :raises TableMovedError: if rows with values are in other fragments now.
        """
        del staged
        (write,) = writes
        dataset = self.existing
        columns = columns_of(write.plan)
        taken = [name for name in columns.names if name in dataset.schema.names]
        if not own_columns(dataset, write.replaced).issuperset(taken):
            raise SchemaMismatchError(
                f"Somebody else added {', '.join(map(repr, taken))} to {write.header.table.identifier} since the key "
                f"{write.header.key!r} was begun. Nothing was committed, and what is staged stays staged. Drop those columns and "
                "run the commit again."
            )
        made = column_files(write.plan, write.staged)
        fields = fields_of(dataset.lance_schema, self.parameters.read_columns)
        live = {content_of(fragment, fields): fragment for fragment in live_fragments(dataset)}
        require_covered(write, dataset, live, made)
        require_valued(write, dataset, live, self.facts(write.header).files)
        warn_of_indexes(dataset, taken)
        schema = widened(dataset, signed(columns, write.header), taken)
        given = {fragment.id: made[of] for of, fragment in live.items() if of in made}
        return widening(dataset, schema, columns.names, given, instead=fields_of(dataset.lance_schema, taken))
