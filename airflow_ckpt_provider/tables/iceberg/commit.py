"""One atomic Iceberg commit: a snapshot built on exactly one base, and the compare-and-swap of it; see ``write.commit_loop``.

Never handed to ``Transaction.commit_transaction``: it refreshes, rebuilds and retries by itself without a look at the
history (eight racers with one key make three to eight snapshots), and with its retries switched off it deletes the manifests
of a commit whose reply was lost.

Why it lands once:

- the requirement on the branch's head makes the swap succeed only on the base that was searched for the group;
- a request that is still under way in the catalog carries its old base: it lands and is found, or our own commit moved the
  head and it fails;
- the snapshot id is derived from the group, so that even after a roll-back to an old base it cannot be added twice.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from airflow_ckpt_provider.exceptions import RowCountError
from airflow_ckpt_provider.tables.iceberg.clock import timestamp_after
from airflow_ckpt_provider.tables.iceberg.creation import birth
from airflow_ckpt_provider.tables.iceberg.history import (
    PROPERTY_PREFIX,
    RememberedCommit,
    begin_remembering,
    lineage_of,
    remembered_commits_of,
    snapshot_id_of,
)
from airflow_ckpt_provider.tables.iceberg.manifest import to_manifest_file
from airflow_ckpt_provider.tables.iceberg.manifest_rewrite import remove
from airflow_ckpt_provider.tables.iceberg.names import avro_codec
from airflow_ckpt_provider.tables.iceberg.search import head_of, time_of
from airflow_ckpt_provider.tables.iceberg.undo import Restored
from airflow_ckpt_provider.tables.iceberg.watermarks import remembering
from airflow_ckpt_provider.tables.state import Landed
from airflow_ckpt_provider.tables.summary import keys_of, summary_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from airflow_ckpt_provider.checkpoint.documents import Group
    from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest
    from airflow_ckpt_provider.tables.iceberg.removals import Removal


class SnapshotChange(NamedTuple):
    """A snapshot that is written, but for the swap that makes it the table's; see ``Change``.

    :param catalog: that holds the table.
    :param new: what it consists of.
    """

    catalog: Catalog
    new: NewSnapshot
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    timestamp_ms: int

    def swap(self) -> Landed:
        """Commit the snapshot on the very base that was searched for the group."""
        reply = self.catalog.commit_table(self.new.table, self.requirements, self.updates)
        return self._verified(reply.metadata)

    def _verified(self, metadata: TableMetadata) -> Landed:
        """The commit as the catalog's reply shows it (I2).

        Some catalogs reply with the table as it is by then. One that moved on so fast that the snapshot is gone again (expired,
        rolled back) still proves nothing wrong: the catalog said yes.
        """
        new, timestamp_ms = self.new, self.timestamp_ms
        snapshot = metadata.snapshot_by_id(new.snapshot_id)
        if snapshot is not None:
            rows = sum(manifest.rows for manifest in new.manifests) + new.restored.rows
            added = snapshot.summary["added-records"] if snapshot.summary else None
            if added is None or int(added) != rows:
                raise RowCountError(
                    f"Snapshot {new.snapshot_id} of {new.name} says that it added {added} rows; {rows} were sealed for "
                    f"{keys_of(new.group)}. The snapshot has landed: compare the table with its source before anything else "
                    "writes to it."
                )
            timestamp_ms = snapshot.timestamp_ms
        return Landed(new.snapshot_id, time_of(timestamp_ms), landed_now=True)


class NewSnapshot(NamedTuple):
    """What the snapshot of a group's commit consists of.

    :param table: the base, as it was loaded.
    :param identity: of all members; see ``tables.summary``.
    :param manifests: all staged manifests of the group.
    :param removals: what the snapshot removes from the base.
    :param marks: how far sources were read, by name; stands in the snapshot's summary and is remembered in table properties.
    :param computed_by: see ``GroupCommit.computed_by``.
    :param restored: files of an earlier snapshot that come back.
    """

    table: Table
    group: Group
    branch: str
    identity: str
    manifests: Sequence[StagedManifest]
    removals: Sequence[Removal]
    marks: Mapping[str, str]
    computed_by: Mapping[str, int]
    restored: Restored = Restored()

    @property
    def snapshot_id(self) -> int:
        """Its id, which follows from the group."""
        return snapshot_id_of(self.group.id)

    @property
    def name(self) -> str:
        """Of the table."""
        return ".".join(self.table.name())

    def written(self, catalog: Catalog) -> SnapshotChange:
        """Write its manifests and manifest list, and say what the catalog is to be asked on exactly the base's metadata."""
        from pyiceberg.table import StagedTable
        from pyiceberg.table.update import (
            AddSnapshotUpdate,
            AssertCreate,
            AssertCurrentSchemaId,
            AssertRefSnapshotId,
            AssertTableUUID,
            SetPropertiesUpdate,
            SetSnapshotRefUpdate,
        )

        metadata, snapshot = self.table.metadata, self._snapshot()
        remembered = remembered_commits_of(metadata, self.group.stream) or begin_remembering(lineage_of(metadata, self.branch))
        sequence_number = snapshot.sequence_number or 0
        remembered = remembered.adding(
            RememberedCommit(self.group.id, self.snapshot_id, snapshot.timestamp_ms, sequence_number, self.identity)
        )
        properties = {PROPERTY_PREFIX + self.group.stream: msgspec.json.encode(remembered).decode()}
        properties |= remembering(self.marks, sequence_number)
        updates: tuple[TableUpdate, ...] = (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(snapshot_id=self.snapshot_id, ref_name=self.branch, type="branch"),  # type: ignore[call-arg]
            SetPropertiesUpdate(updates=properties),
        )
        if isinstance(self.table, StagedTable):
            return SnapshotChange(catalog, self, (*birth(metadata), *updates), (AssertCreate(),), snapshot.timestamp_ms)
        ref = metadata.refs.get(self.branch)
        requirements = (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId(ref=self.branch, snapshot_id=ref.snapshot_id if ref else None),
            # The rows were checked against this schema.
            AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        )
        return SnapshotChange(catalog, self, updates, requirements, snapshot.timestamp_ms)

    def _snapshot(self) -> Snapshot:
        from pyiceberg.manifest import write_manifest_list
        from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries

        table, metadata, snapshot_id = self.table, self.table.metadata, self.snapshot_id
        parent = head_of(metadata, self.branch)
        sequence_number = metadata.next_sequence_number()
        places = table.location_provider()
        name = f"{self.group.id[:20]}-{uuid.uuid4()}"
        numbers = itertools.count()

        def new_path() -> str:
            return places.new_metadata_location(f"{name}-m{next(numbers)}.avro")

        removed = remove(metadata, table.io, parent, self.removals, snapshot_id, new_path)
        added = [to_manifest_file(manifest, snapshot_id) for manifest in self.manifests]
        added += self.restored.manifests(table, snapshot_id, new_path)
        path = places.new_metadata_location(f"snap-{snapshot_id}-{name}.avro")
        parent_id = parent.snapshot_id if parent else None
        codec = avro_codec(metadata.properties, self.name)
        with write_manifest_list(2, table.io.new_output(path), snapshot_id, parent_id, sequence_number, codec) as writer:  # type: ignore[arg-type]
            writer.add_manifests(added + removed.manifests)
        partitions = {partition for manifest in self.manifests for partition in manifest.partitions} | removed.partitions
        restored = Counter(self.restored.facts)
        staged = {
            "added-data-files": sum(manifest.files for manifest in self.manifests),
            "added-records": sum(manifest.rows for manifest in self.manifests),
            "added-files-size": sum(manifest.bytes for manifest in self.manifests),
        }
        facts = {
            **restored,
            **{name: count + restored[name] for name, count in staged.items()},
            **removed.facts,
            "changed-partition-count": len(partitions | self.restored.partitions(table)),
        }
        entries = {fact: str(value) for fact, value in facts.items() if value or fact == "added-records"}
        entries |= {**self.marks, **summary_of(self.group, self.identity, self.computed_by)}
        return Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent_id,
            manifest_list=path,
            sequence_number=sequence_number,
            timestamp_ms=timestamp_after(metadata),
            summary=update_snapshot_summaries(
                Summary(operation=Operation.OVERWRITE if removed.facts or self.restored.files else Operation.APPEND, **entries),
                parent.summary if parent else None,
            ),
            schema_id=metadata.current_schema_id,
        )
