"""The mode ``overwrite``: all rows of the dataset are replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.tables.lance.modes.append import MayCreateParameters
from airflow_ckpt_provider.tables.lance.modes.base import LanceMode
from airflow_ckpt_provider.tables.lance.operations import overwriting
from airflow_ckpt_provider.tables.mode import Grouping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
    from airflow_ckpt_provider.tables.lance.operations import Swap


class Overwrite(LanceMode):
    """All rows of the dataset are replaced."""

    Parameters = MayCreateParameters
    grouping = Grouping.ONE_COMMIT
    removes_rows = True

    def swap(self, writes: Sequence[SealedWrite], staged: Sequence[StagedFragments]) -> Swap:
        """Everything, also what others added while the rows were staged; of a committed generation that is replaced, its files."""
        if self.dataset is None or all(write.header.replaces is not None for write in writes):
            return super().swap(writes, staged)
        return overwriting(self.dataset.lance_schema, staged)
