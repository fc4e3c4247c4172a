"""The mode ``overwrite``: all rows of the table are replaced, or those of a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.tables.iceberg.modes.base import IcebergMode, replaces_all
from airflow_ckpt_provider.tables.iceberg.modes.overwrite_where import OverwriteParameters, OverwriteWhere
from airflow_ckpt_provider.tables.iceberg.removals import RemoveAll
from airflow_ckpt_provider.tables.mode import Grouping, OneOfTwo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.iceberg.removals import Removal


class Overwrite(IcebergMode, OneOfTwo):
    """All rows of the table are replaced."""

    Parameters = OverwriteParameters
    grouping = Grouping.ONE_COMMIT
    removes_rows = True

    @classmethod
    def asked_by(cls, parameters: JsonObject) -> type[IcebergMode]:
        """The overwrite of all rows, or of those that match a filter."""
        return OverwriteWhere if "overwrite_filter" in parameters else cls

    def removals(self, writes: Sequence[SealedWrite]) -> list[Removal]:
        """RemoveAll: also what others added while the rows were staged."""
        return super().removals(writes) if replaces_all(writes) else [RemoveAll()]
