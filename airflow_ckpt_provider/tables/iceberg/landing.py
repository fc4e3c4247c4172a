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

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Split
from airflow_ckpt_provider.exceptions import InvalidInputError, SchemaMismatchError, TableMovedError
from airflow_ckpt_provider.scan.iceberg import IcebergScan, scan_files
from airflow_ckpt_provider.tables.iceberg.avro import Entries
from airflow_ckpt_provider.tables.iceberg.conflicts import changes_since, touching
from airflow_ckpt_provider.tables.iceberg.cover import Everything, Matching, Partitions, Paths, key_of
from airflow_ckpt_provider.tables.iceberg.entries import FACTS
from airflow_ckpt_provider.tables.iceberg.manifests import StagedManifest
from airflow_ckpt_provider.tables.iceberg.removal import classify
from airflow_ckpt_provider.tables.iceberg.where import KeepingWriter, RowFilter
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter
from airflow_ckpt_provider.tables.sealed import own_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject, Plan
    from airflow_ckpt_provider.scan.iceberg import ScanFile
    from airflow_ckpt_provider.tables.iceberg.cover import Key, Removal
    from airflow_ckpt_provider.tables.iceberg.writer import WriterFacts
    from airflow_ckpt_provider.tables.protocol import Sealed, StagedOf, Writer


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

    def __init__(self, parameters: JsonObject) -> None:
        self.parameters = parameters

    def validate(self, table: Table | None) -> None:
        """Refuse parameters that cannot work on this table (None: it does not exist yet)."""

    def following(
        self, table: Table, header: Header, head: int | None, plans: Sequence[Plan], staged: StagedOf, replaced: Sealed | None
    ) -> Plan | None:
        """The plan of the next round on the table as it is now; None if there is none."""
        del table, header, head, plans, staged, replaced
        return None

    def stands(
        self, table: Table, header: Header, head: int | None, plans: Sequence[Plan], staged: StagedOf, replaced: Sealed | None
    ) -> bool:
        """Whether the mode's own splits of the last plan are those of the table as it is now."""
        del table, header, head, plans, staged, replaced
        return True

    def writer(self, facts: WriterFacts, table: Table, plans: Sequence[Plan], staged: StagedOf) -> Writer:
        """What executors write the last round with."""
        del table, plans, staged
        return IcebergWriter(facts)

    def removals(self, table: Table, sealed: Sequence[Sealed]) -> list[Removal]:
        """What the commit removes from this base.

        :raises TableMovedError: if staged files were computed from what the table does not hold any more.
        """
        del table
        replaced = frozenset(path for one in sealed for path in own_files(one.replaced))
        return [Paths(replaced)] if replaced else []


class Overwrite(Append):
    """All rows of the table are replaced."""

    additive = False
    replaces = True

    def removals(self, table: Table, sealed: Sequence[Sealed]) -> list[Removal]:
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

    def removals(self, table: Table, sealed: Sequence[Sealed]) -> list[Removal]:
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
            _require_one_spec(table, one.header)
        partitions: list[Removal] = [Partitions(spec_id, frozenset(keys)) for spec_id, keys in found.items()]
        return [*super().removals(table, sealed), *partitions]


class OverwriteWhere(Append):
    """Rows that match a filter are replaced. Files that hold others too are rewritten without them, each as a split."""

    takes = frozenset({"overwrite_filter"})
    provisional = True
    together = False
    replaces = True

    def validate(self, table: Table | None) -> None:
        """Refuse a filter that is none."""
        if table is not None:
            self._filter.bound(table.schema())

    def following(
        self, table: Table, header: Header, head: int | None, plans: Sequence[Plan], staged: StagedOf, replaced: Sealed | None
    ) -> Plan | None:
        """The source's splits, and one for each file at the filter's boundary."""
        del staged, replaced
        if header.replaces is not None:
            return None
        require_same_schema(table, header)
        boundary = self._boundary(table, head)
        if boundary == _table_splits(plans[-1]):
            return None
        return with_table_splits(plans[-1], boundary.values(), head)

    def stands(
        self, table: Table, header: Header, head: int | None, plans: Sequence[Plan], staged: StagedOf, replaced: Sealed | None
    ) -> bool:
        """Whether the files at the boundary are those that are to be rewritten."""
        return self.following(table, header, head, plans, staged, replaced) is None

    def writer(self, facts: WriterFacts, table: Table, plans: Sequence[Plan], staged: StagedOf) -> Writer:
        """A writer that also rewrites boundary files."""
        del plans, staged
        return KeepingWriter(facts, self._filter, IcebergScan(table, facts.schema.schema_id))

    def removals(self, table: Table, sealed: Sequence[Sealed]) -> list[Removal]:
        """Files of which all rows match, and the rewritten ones."""
        if _again(sealed):
            return super().removals(table, sealed)
        require_same_schema(table, sealed[0].header)
        boundary = self._boundary(table, head_id(table, sealed[0].header.table.branch))
        for one in sealed:
            require_same_files(boundary, _table_splits(one.plan), one.header)
        rewritten = frozenset(path for one in sealed for record in one.staged for path in record.replaces)
        expression = self._filter.expression()
        found: list[Removal] = [Matching(expression)]
        return [*found, Paths(rewritten)] if rewritten else found

    @property
    def _filter(self) -> RowFilter:
        return RowFilter(str(self.parameters["overwrite_filter"]))

    def _boundary(self, table: Table, head: int | None) -> dict[str, Split]:
        if head is None:
            return {}
        expression = self._filter.expression()
        partial = {file.file_path for file in classify(table, head, expression).partial}
        files = (scanned.file for scanned in scan_files(table, head, expression) if scanned.file.path in partial)
        return {split.id: split for split in (table_split("keep", file) for file in files)}


def _again(sealed: Sequence[Sealed]) -> bool:
    """Whether all of these take the place of committed generations: what those removed, and others added since, is not theirs."""
    return all(one.header.replaces is not None for one in sealed)


def _require_one_spec(table: Table, header: Header) -> None:
    from airflow_ckpt_provider.tables.iceberg.commit import head_of

    head = head_of(table.metadata, header.table.branch)
    listed = head.manifests(table.io) if head else []
    others = {m.partition_spec_id for m in listed if m.has_added_files() or m.has_existing_files()} - {header.table.spec_id}
    if others:
        raise InvalidInputError(
            f"{header.table.identifier} has files of the partition spec {min(others)}, and the rows of the key {header.key!r} are "
            f"staged for spec {header.table.spec_id}: which of those files belong to the partitions to overwrite cannot be told. "
            "Nothing was committed. Rewrite the old files into the current spec (compaction), or use mode='overwrite' with "
            "overwrite_filter."
        )


def table_split(task: str, file: ScanFile, *more: str) -> Split:
    """Work of the table's own on one of its files: its id says which file it is, with which deletes."""
    facts = "\0".join([file.path, *sorted(delete.path for delete in file.deletes), *more])
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return Split(id=f"{task}{digest}", bytes=file.bytes, read=msgspec.to_builtins(file), task=task)


def with_table_splits(plan: Plan, splits: Iterable[Split], base: int | None) -> Plan:
    """``plan`` with these for its table's own splits."""
    own = [split for split in plan.splits if split.task == READ]
    return msgspec.structs.replace(plan, created_at=now(), splits=(*own, *splits), base=base)


def require_same_files(now_there: dict[str, Split], planned: dict[str, Split], header: Header) -> None:
    """Refuse to commit files that were computed from others than the table holds now.

    :raises TableMovedError: saying how many differ.
    """
    changed = now_there.keys() ^ planned.keys()
    if changed:
        raise TableMovedError(
            f"{header.table.identifier} was changed since the write of the key {header.key!r} was planned: {len(changed)} of the "
            "files that it rewrites were changed, removed or added. Nothing was committed, and what is staged stays staged. "
            f"Clear the task {header.origin.task_id!r}: it stages what the change affects, and nothing else, before the commit "
            "runs again."
        )


def require_same_schema(table: Table, header: Header) -> None:
    """Refuse to rewrite files of the table with an older schema than it has: columns added since would be lost from them.

    :raises SchemaMismatchError: saying what to do.
    """
    if table.metadata.current_schema_id != header.table.schema_id:
        raise SchemaMismatchError(
            f"The schema of {header.table.identifier} changed since the write of the key {header.key!r} was begun. It rewrites "
            "files of the table, which would lose what was added. Nothing was committed. Redo the write with the configuration "
            '{"checkpoint": "restart"}.'
        )


def require_unread(table: Table, sealed: Sequence[Sealed], removals: Sequence[Removal]) -> None:
    """Refuse to replace rows that were computed from the same table, if that changed where it is replaced since it was read.

    Rows that are read from elsewhere replace what is there at the commit. These are made of what was there when they were read:
    what others added since would be lost.

    :raises TableMovedError: naming the commit.
    """
    for one in sealed if removals else ():
        inputs = one.plan.inputs
        if inputs.get("table_uuid") != one.header.table.uuid:
            continue
        changes = changes_since(table, one.header.table.branch, msgspec.convert(inputs.get("snapshot_id"), int | None))
        touched = next(filter(None, (touching(changes, removal) for removal in removals)), None) if changes else None
        if changes is None or touched:
            raise TableMovedError(
                f"The rows of the key {one.header.key!r} were read from {one.header.table.identifier} itself at snapshot "
                f"{inputs.get('snapshot_id')}, to replace rows of it, and it was changed since: "
                f"{touched or 'that snapshot is not in its history any more'}. Nothing was committed. Redo the write with the "
                'configuration {"checkpoint": "restart"}.'
            )


def head_id(table: Table, branch: str) -> int | None:
    """Id of the snapshot that a branch shows."""
    from airflow_ckpt_provider.tables.iceberg.commit import head_of

    head = head_of(table.metadata, branch)
    return head.snapshot_id if head else None


def _table_splits(plan: Plan) -> dict[str, Split]:
    return {split.id: split for split in plan.splits if split.task != READ}
