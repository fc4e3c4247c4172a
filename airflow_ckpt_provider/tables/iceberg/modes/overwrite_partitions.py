"""The mode ``overwrite_partitions``: the partitions that occur in the staged rows are replaced, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.iceberg.conflict_checks import require_one_spec
from airflow_ckpt_provider.tables.iceberg.manifest import FACTS, Entries, StagedManifest
from airflow_ckpt_provider.tables.iceberg.modes.base import IcebergMode, replaces_all
from airflow_ckpt_provider.tables.iceberg.modes.creating import MayCreateParameters
from airflow_ckpt_provider.tables.iceberg.removals import RemovePartitions, key_of
from airflow_ckpt_provider.tables.mode import Grouping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.iceberg.removals import Key, Removal


class OverwritePartitionsParameters(MayCreateParameters, frozen=True, kw_only=True):
    """What the table is to be, if there is none."""

    def problem(self) -> str | None:
        """A table without partitions."""
        if self.create_if_missing and not self.partition_by:
            return "mode='overwrite_partitions' with create_if_missing=True needs partition_by, such as day(ts)."
        return super().problem()


class OverwritePartitions(IcebergMode):
    """The partitions that occur in the staged rows are replaced."""

    Parameters = OverwritePartitionsParameters
    grouping = Grouping.ONE_COMMIT

    def validate(self) -> None:
        """Refuse a table without partitions."""
        if self.table.spec().is_unpartitioned():
            raise InvalidInputError(
                f"mode='overwrite_partitions' needs a partitioned table, and {'.'.join(self.table.name())} is not. Use "
                "mode='overwrite', with overwrite_filter to replace a part of it."
            )

    def removals(self, writes: Sequence[SealedWrite]) -> list[Removal]:
        """Live files of the partitions that the staged manifests hold.

        :raises InvalidInputError: if the table has files of another partition spec: rows of these partitions may be in them.
        """
        if replaces_all(writes):
            return super().removals(writes)
        staged: dict[int, set[Key]] = {}
        for manifest in (StagedManifest.from_json(manifest) for write in writes for manifest in write.seal.manifests):
            with Entries(self.table.io, manifest.path, FACTS) as entries:
                staged.setdefault(manifest.spec_id, set()).update(key_of(entries.partition(entry.file)) for entry in entries)
        for write in writes:
            require_one_spec(self.table, write.header)
        partitions: list[Removal] = [RemovePartitions(spec_id, frozenset(keys)) for spec_id, keys in staged.items()]
        return [*super().removals(writes), *partitions]
