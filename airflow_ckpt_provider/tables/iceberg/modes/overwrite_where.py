"""The mode ``overwrite`` with a filter: rows that match it are replaced, and the files at its boundary rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from airflow_ckpt_provider.checkpoint.restaged import as_named
from airflow_ckpt_provider.scan.iceberg import IcebergScan, scan_files
from airflow_ckpt_provider.tables.iceberg.conflict_checks import require_same_files
from airflow_ckpt_provider.tables.iceberg.manifest_rewrite import classify
from airflow_ckpt_provider.tables.iceberg.modes.base import IcebergMode, replaces_all
from airflow_ckpt_provider.tables.iceberg.modes.creating import MayCreateParameters
from airflow_ckpt_provider.tables.iceberg.modes.splits import table_split, with_table_splits
from airflow_ckpt_provider.tables.iceberg.removals import RemoveFiles, RemoveWhere
from airflow_ckpt_provider.tables.iceberg.row_filter import KeepingWriter, RowFilter
from airflow_ckpt_provider.tables.mode import Grouping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.documents import Plan, Split
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.iceberg.removals import Removal
    from airflow_ckpt_provider.tables.writer import Writer


class OverwriteParameters(MayCreateParameters, frozen=True, kw_only=True):
    """Which rows are replaced: all, or those of a filter."""

    overwrite_filter: Annotated[str | None, Meta(description="the rows to replace, such as \"day = '2026-01-01'\"")] = None
    overwrite_parameters: Annotated[dict[str, str | int | float] | None, Meta(description="values of the filter's parameters")] = (
        None
    )

    def problem(self) -> str | None:
        """Values of parameters of no filter."""
        if self.overwrite_parameters is None or self.overwrite_filter:
            return super().problem()
        return "overwrite_parameters are values of parameters of overwrite_filter, and there is none."


class OverwriteWhere(IcebergMode):
    """Rows that match a filter are replaced. Files that hold others too are rewritten without them, each as a split."""

    Parameters = OverwriteParameters
    parameters: OverwriteParameters
    grouping = Grouping.ALONE
    provisional = True
    removes_rows = True

    def validate(self) -> None:
        """Refuse a filter that is none."""
        self._filter.bound(self.table.schema())

    def plan(self, write: StagedWrite) -> Plan:
        """The source's splits, and one for each file at the filter's boundary."""
        plan = write.plan
        if write.header.replaces is not None:
            return plan
        head = self.same_schema_head(write.header)
        boundary = as_named(self._boundary(head).values(), plan)
        return plan if boundary == _table_splits(plan) else with_table_splits(plan, boundary.values(), head)

    def writer(self, write: StagedWrite) -> Writer:
        """A writer that also rewrites boundary files."""
        facts = self.facts(write)
        return KeepingWriter(facts, self._filter, IcebergScan(self.table, facts.schema.schema_id))

    def removals(self, writes: Sequence[SealedWrite]) -> list[Removal]:
        """Files of which all rows match, and the rewritten ones."""
        if replaces_all(writes):
            return super().removals(writes)
        boundary = self._boundary(self.same_schema_head(writes[0].header)).values()
        for write in writes:
            require_same_files(as_named(boundary, write.plan), _table_splits(write.plan), write.header)
        rewritten = frozenset(path for write in writes for record in write.staged for path in record.replaces)
        expression = self._filter.expression()
        removed: list[Removal] = [RemoveWhere(expression)]
        return [*removed, RemoveFiles(rewritten)] if rewritten else removed

    @property
    def _filter(self) -> RowFilter:
        return RowFilter(self.parameters.overwrite_filter or "", self.parameters.overwrite_parameters or {})

    def _boundary(self, head: int | None) -> dict[str, Split]:
        if head is None:
            return {}
        table, expression = self.table, self._filter.expression()
        partial = {file.file_path for file in classify(table, head, expression).partial}
        files = (scanned.file for scanned in scan_files(table, head, expression) if scanned.file.path in partial)
        return {split.id: split for split in (table_split("boundary", file) for file in files)}


def _table_splits(plan: Plan) -> dict[str, Split]:
    return {split.id: split for split in plan.splits if not split.is_input}
