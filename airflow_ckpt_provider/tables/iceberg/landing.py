"""How rows land in an Iceberg table: what each mode stages beyond the source's rows, and what its commit removes.

Decision: what a commit removes is found on the very base that it is swapped against, never remembered from the stage. So after
an ``overwrite`` the table holds exactly what was staged, whatever others committed meanwhile: it is as if they had come first.
Where staged files were computed from files of the table (boundary files of a filter, files of an upsert), those are compared
with what the base holds, file by file with their deletes; if they differ, nothing is committed and the stage looks again.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, ClassVar

import msgspec

from airflow_ckpt_provider.checkpoint.anew import as_named, staged_anew
from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Split
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.scan.iceberg import IcebergScan, scan_files
from airflow_ckpt_provider.tables.iceberg.cover import Everything, Matching, Partitions, Paths, key_of
from airflow_ckpt_provider.tables.iceberg.guards import (
    require_one_spec,
    require_same_files,
    require_same_schema,
    require_there,
    require_whole,
)
from airflow_ckpt_provider.tables.iceberg.manifest import FACTS, Entries, StagedManifest
from airflow_ckpt_provider.tables.iceberg.removal import classify
from airflow_ckpt_provider.tables.iceberg.where import KeepingWriter, RowFilter
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Plan
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.scan.iceberg import ScanFile
    from airflow_ckpt_provider.tables.iceberg.cover import Key, Removal
    from airflow_ckpt_provider.tables.iceberg.writer import WriterFacts
    from airflow_ckpt_provider.tables.protocol import Writer


class Append:
    """Rows are added. Also the mode ``create``, whose table begins with them.

    :param parameters: what the mode was told.
    """

    #: Names of the parameters that the mode takes.
    takes: ClassVar[frozenset[str]] = frozenset()

    #: Whether staged files depend on files of the table.
    provisional: ClassVar[bool] = False

    #: Whether several checkpoints can land together.
    together: ClassVar[bool] = True

    #: Whether commits one after the other leave each other's rows where they are.
    additive: ClassVar[bool] = True

    #: Whether the commit removes rows even if it adds none.
    replaces: ClassVar[bool] = False

    #: Whether a row that stands in the table already is found by its key, and not added once more.
    matches_rows: ClassVar[bool] = False

    def __init__(self, parameters: JsonObject) -> None:
        self.parameters = parameters

    def validate(self, table: Table | None) -> None:
        """Refuse parameters that cannot work on this table (None: it does not exist yet)."""

    def plan(self, table: Table, write: StagedWrite) -> Plan:
        """What the write consists of on the table as it is now; its last plan if that has all of it."""
        del table
        return write.plan

    def staged_anew(self, write: StagedWrite, lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which these splits are staged once more. None of the others was computed from them."""
        return staged_anew(write.plan, lost, len(write.plans) + 1)

    def writer(self, facts: WriterFacts, table: Table, write: StagedWrite) -> Writer:
        """What executors write the last round with."""
        del table, write
        return IcebergWriter(facts)

    def require_replaceable(self, table: Table, landed: SealedWrite) -> None:
        """Check that a replacement of what has landed could be committed now; see ``Table.require_replaceable``."""
        files = frozenset(landed.own_files)
        require_there(table, landed.header, files)
        if files and not self.matches_rows:
            require_whole(table, landed.header, files)

    def removals(self, table: Table, sealed: Sequence[SealedWrite]) -> list[Removal]:
        """What the commit removes from this base.

        :raises TableMovedError: if staged files were computed from what the table does not hold any more.
        """
        replaced = frozenset(path for one in sealed for path in one.replaced_files)
        if not replaced:
            return []
        if not self.matches_rows:
            require_whole(table, sealed[0].header, replaced)
        return [Paths(replaced)]


class Overwrite(Append):
    """All rows of the table are replaced."""

    additive = False
    replaces = True

    def removals(self, table: Table, sealed: Sequence[SealedWrite]) -> list[Removal]:
        """Everything: also what others added while the rows were staged."""
        return super().removals(table, sealed) if _again(sealed) else [Everything()]


class OverwritePartitions(Append):
    """The partitions that occur in the staged rows are replaced, and no other."""

    additive = False

    def validate(self, table: Table | None) -> None:
        """Refuse a table without partitions."""
        if table is not None and table.spec().is_unpartitioned():
            raise InvalidInputError(
                f"mode='overwrite_partitions' needs a partitioned table, and {'.'.join(table.name())} is not. Use "
                "mode='overwrite', with overwrite_filter to replace a part of it."
            )

    def removals(self, table: Table, sealed: Sequence[SealedWrite]) -> list[Removal]:
        """Live files of the partitions that the staged manifests hold.

        :raises InvalidInputError: if the table has files of another partition spec: rows of these partitions may be in them.
        """
        if _again(sealed):
            return super().removals(table, sealed)
        found: dict[int, set[Key]] = {}
        for manifest in (StagedManifest.from_json(manifest) for one in sealed for manifest in one.seal.manifests):
            with Entries(table.io, manifest.path, FACTS) as entries:
                found.setdefault(manifest.spec_id, set()).update(key_of(entries.partition(entry.file)) for entry in entries)
        for one in sealed:
            require_one_spec(table, one.header)
        partitions: list[Removal] = [Partitions(spec_id, frozenset(keys)) for spec_id, keys in found.items()]
        return [*super().removals(table, sealed), *partitions]


class OverwriteWhere(Append):
    """Rows that match a filter are replaced. Files that hold others too are rewritten without them, each as a split."""

    takes = frozenset({"overwrite_filter", "overwrite_parameters"})
    provisional = True
    together = False
    replaces = True

    def validate(self, table: Table | None) -> None:
        """Refuse a filter that is none."""
        if table is not None:
            self._filter.bound(table.schema())

    def plan(self, table: Table, write: StagedWrite) -> Plan:
        """The source's splits, and one for each file at the filter's boundary."""
        header, plan = write.header, write.plan
        if header.replaces is not None:
            return plan
        require_same_schema(table, header)
        head = head_id(table, header.table.branch)
        boundary = as_named(self._boundary(table, head).values(), plan)
        return plan if boundary == _table_splits(plan) else with_table_splits(plan, boundary.values(), head)

    def writer(self, facts: WriterFacts, table: Table, write: StagedWrite) -> Writer:
        """A writer that also rewrites boundary files."""
        del write
        return KeepingWriter(facts, self._filter, IcebergScan(table, facts.schema.schema_id))

    def removals(self, table: Table, sealed: Sequence[SealedWrite]) -> list[Removal]:
        """Files of which all rows match, and the rewritten ones."""
        if _again(sealed):
            return super().removals(table, sealed)
        require_same_schema(table, sealed[0].header)
        boundary = self._boundary(table, head_id(table, sealed[0].header.table.branch)).values()
        for one in sealed:
            require_same_files(as_named(boundary, one.plan), _table_splits(one.plan), one.header)
        rewritten = frozenset(path for one in sealed for record in one.staged for path in record.replaces)
        expression = self._filter.expression()
        found: list[Removal] = [Matching(expression)]
        return [*found, Paths(rewritten)] if rewritten else found

    @property
    def _filter(self) -> RowFilter:
        return RowFilter(str(self.parameters["overwrite_filter"]), self.parameters.get("overwrite_parameters", {}))  # type: ignore[arg-type]

    def _boundary(self, table: Table, head: int | None) -> dict[str, Split]:
        if head is None:
            return {}
        expression = self._filter.expression()
        partial = {file.file_path for file in classify(table, head, expression).partial}
        files = (scanned.file for scanned in scan_files(table, head, expression) if scanned.file.path in partial)
        return {split.id: split for split in (table_split("keep", file) for file in files)}


def _again(sealed: Sequence[SealedWrite]) -> bool:
    """Whether all of these take the place of committed generations: what those removed, and others added since, is not theirs."""
    return all(one.header.replaces is not None for one in sealed)


def table_split(task: str, file: ScanFile, *more: str) -> Split:
    """Work of the table's own on one of its files: its id says which file it is, with which deletes."""
    facts = "\0".join([file.path, *sorted(delete.path for delete in file.deletes), *more])
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return Split(id=f"{task}{digest}", bytes=file.bytes, read=msgspec.to_builtins(file), task=task)


def with_table_splits(plan: Plan, splits: Iterable[Split], base: int | None) -> Plan:
    """``plan`` with these for its table's own splits."""
    own = [split for split in plan.splits if split.task == READ]
    return msgspec.structs.replace(plan, created_at=now(), splits=(*own, *splits), base=base)


def head_id(table: Table, branch: str) -> int | None:
    """Id of the snapshot that a branch shows."""
    from airflow_ckpt_provider.tables.iceberg.search import head_of

    head = head_of(table.metadata, branch)
    return head.snapshot_id if head else None


def _table_splits(plan: Plan) -> dict[str, Split]:
    return {split.id: split for split in plan.splits if split.task != READ}
