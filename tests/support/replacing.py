"""Commits that remove files, and what foreign writers commit, through manifests alone: no checkpoint, no staged rows."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate

from airflow_ckpt_provider.tables.iceberg.manifest_rewrite import remove

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyiceberg.manifest import (
        ManifestFile,
    )
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from airflow_ckpt_provider.tables.iceberg.manifest_rewrite import Removed
    from airflow_ckpt_provider.tables.iceberg.removals import Removal


def new_table(
    root: Path, schema: Schema, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC, properties: dict[str, str] | None = None
) -> Table:
    """A version 2 table in a catalog of its own."""
    (root / "warehouse").mkdir(parents=True, exist_ok=True)
    catalog = load_catalog("tests", type="sql", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")
    catalog.create_namespace_if_not_exists("shop")
    return catalog.create_table("shop.orders", schema, partition_spec=spec, properties=properties or {})


def without(table: Table, *removals: Removal, operation: Operation = Operation.DELETE, added: Sequence[DataFile] = ()) -> Removed:
    """Commit a snapshot that removes what ``removals`` take, and adds files; ``table`` shows it then."""
    snapshot_id = table.metadata.new_snapshot_id()
    removed = remove(table.metadata, table.io, table.current_snapshot(), removals, snapshot_id, lambda: new_path(table, "m"))
    facts = {name: str(count) for name, count in removed.facts.items()}
    manifests = list(removed.manifests)
    if added:
        spec = table.metadata.specs()[added[0].spec_id]
        with write_manifest(2, spec, table.schema(), table.io.new_output(new_path(table, "a")), snapshot_id, "gzip") as writer:
            for file in added:
                writer.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file))
        manifests.append(writer.to_manifest_file())
    _commit(table, snapshot_id, manifests, Summary(operation, **facts))
    return removed


def commit_manifests(table: Table, added: Sequence[ManifestFile], operation: Operation, snapshot_id: int, **facts: str) -> None:
    """Commit manifests besides those that are there."""
    parent = table.current_snapshot()
    _commit(table, snapshot_id, [*added, *(parent.manifests(table.io) if parent else ())], Summary(operation, **facts))


def delete_positions(table: Table, path: str, positions: Iterable[int]) -> str:
    """Commit a position delete file for rows of one data file, as other writers do; its path."""
    (file,) = [task.file for task in table.scan().plan_files() if task.file.file_path == path]
    positions = sorted(positions)
    where = f"{table.location()}/data/deletes-{uuid.uuid4()}.parquet"
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
        ]
    )
    with table.io.new_output(where).create() as out:
        pq.write_table(pa.table({"file_path": [path] * len(positions), "pos": positions}, schema=schema), out)
    bound = {2147483546: path.encode()}
    delete = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=where,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=len(positions),
        file_size_in_bytes=len(table.io.new_input(where)),
        lower_bounds=bound,
        upper_bounds=bound,
    )
    snapshot_id = table.metadata.new_snapshot_id()
    writer = _DeletesWriter(
        table.metadata.specs()[file.spec_id], table.schema(), table.io.new_output(new_path(table, "d")), snapshot_id, "gzip"
    )
    with writer:
        writer.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=delete))
    facts = {
        "added-delete-files": "1",
        "added-position-delete-files": "1",
        "added-position-deletes": str(len(positions)),
        "added-files-size": str(delete.file_size_in_bytes),
    }
    commit_manifests(table, [writer.to_manifest_file()], Operation.DELETE, snapshot_id, **facts)
    return where


def new_path(table: Table, name: str) -> str:
    return table.location_provider().new_metadata_location(f"{uuid.uuid4()}-{name}.avro")


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _commit(table: Table, snapshot_id: int, manifests: list[ManifestFile], summary: Summary) -> None:
    metadata, parent = table.metadata, table.current_snapshot()
    parent_id = parent.snapshot_id if parent else None
    sequence_number, path = metadata.next_sequence_number(), new_path(table, f"snap-{snapshot_id}")
    with write_manifest_list(2, table.io.new_output(path), snapshot_id, parent_id, sequence_number, "gzip") as writer:
        writer.add_manifests(manifests)
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent_id,
        manifest_list=path,
        sequence_number=sequence_number,
        # pyiceberg counts no totals for a compaction.
        summary=summary
        if summary.operation == Operation.REPLACE
        else update_snapshot_summaries(summary, parent.summary if parent else None),
        schema_id=metadata.current_schema_id,
    )
    updates = (AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate(snapshot_id=snapshot_id, ref_name="main", type="branch"))
    table.catalog.commit_table(table, (AssertRefSnapshotId(ref="main", snapshot_id=parent_id),), updates)
    table.refresh()
