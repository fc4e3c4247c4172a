"""What other engines do to a table and pyiceberg cannot: position deletes, deletion vectors, equality deletes, compaction."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files
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
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.typedef import Record
from pyroaring import BitMap

from support import world as worlds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

    from support.world import World

_numbers = itertools.count()

POSITION_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def rows(start: int, count: int) -> pa.Table:
    """Rows of the world, as pyiceberg appends them: where the table has a required column, so have they."""
    plain = worlds.rows(start, count)
    return plain.cast(pa.schema([plain.schema.field(0).with_nullable(False), *list(plain.schema)[1:]]))


def options_of(world: World) -> dict[str, str]:
    """The catalog of a world, as the operator hands it to a source."""
    return {
        "name": "iceberg_default",
        "type": "sql",
        "uri": f"sqlite:///{world.root}/catalog.db",
        "warehouse": f"file://{world.root}/warehouse",
    }


def data_files(table: Table, snapshot_id: int | None = None) -> list[DataFile]:
    """Data files of a snapshot, in the order in which they were added."""
    snapshot = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    manifests = [m for m in snapshot.manifests(table.io) if m.content == ManifestContent.DATA]
    entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
    return [entry.data_file for entry in sorted(entries, key=lambda entry: (entry.sequence_number, entry.data_file.file_path))]


def added_by(table: Table) -> list[tuple[DataFile, int]]:
    """Live data files, each with the id of the snapshot that added it."""
    found = []
    for manifest in table.current_snapshot().manifests(table.io):
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io):
                entry.data_file.spec_id = manifest.partition_spec_id
                found.append((entry.data_file, entry.snapshot_id))
    return found


def delete_positions(table: Table, positions: Mapping[str, Sequence[int]], partition: Record | None = None) -> Table:
    """Delete rows by a Parquet file of paths and positions."""
    path = f"{table.location()}/data/deletes-{next(_numbers)}.parquet"
    pairs = [{"file_path": file, "pos": pos} for file in sorted(positions) for pos in positions[file]]
    with table.io.new_output(path).create() as out:
        pq.write_table(pa.Table.from_pylist(pairs, schema=POSITION_DELETES), out)
    return _delete(table, path, FileFormat.PARQUET, DataFileContent.POSITION_DELETES, len(pairs), partition)


def delete_by_vector(table: Table, positions: Mapping[str, Sequence[int]], partition: Record | None = None) -> Table:
    """Delete rows by a Puffin file with one deletion vector for each data file."""
    path = f"{table.location()}/data/deletes-{next(_numbers)}.puffin"
    with table.io.new_output(path).create() as out:
        out.write(_puffin(positions))
    return _delete(table, path, FileFormat.PUFFIN, DataFileContent.POSITION_DELETES, sum(map(len, positions.values())), partition)


def delete_by_equality(table: Table, column: str, value: int, partition: Record | None = None) -> Table:
    """Delete rows by value."""
    path = f"{table.location()}/data/deletes-{next(_numbers)}.parquet"
    with table.io.new_output(path).create() as out:
        pq.write_table(pa.table({column: [value]}), out)
    ids = [table.schema().find_field(column).field_id]
    return _delete(table, path, FileFormat.PARQUET, DataFileContent.EQUALITY_DELETES, 1, partition, equality_ids=ids)


def compact(table: Table, branch: str = "main") -> Table:
    """Rewrite all rows of a branch into one file: a snapshot that replaces files and changes no row."""
    snapshot = table.snapshot_by_name(branch)
    rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    files = list(_dataframe_to_data_files(table.metadata, rows, table.io))
    return land(table, Operation.REPLACE, [_manifest(table, files)], keep=False, branch=branch)


def land(table: Table, operation: Operation, manifests: list[ManifestFile], *, keep: bool, branch: str = "main") -> Table:
    """Commit a snapshot of ``manifests``, and those of its parent if they are kept."""
    parent = table.snapshot_by_name(branch)
    snapshot_id, number = _snapshot_id(manifests), table.metadata.next_sequence_number()
    path = f"{table.location()}/metadata/snap-{snapshot_id}.avro"
    with write_manifest_list(2, table.io.new_output(path), snapshot_id, parent.snapshot_id, number, "gzip") as writer:
        writer.add_manifests([*manifests, *(parent.manifests(table.io) if keep else [])])
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent.snapshot_id,
        sequence_number=number,
        manifest_list=path,
        summary=Summary(operation=operation),
        schema_id=table.metadata.current_schema_id,
    )
    table.catalog.commit_table(
        table,
        (AssertRefSnapshotId(ref=branch, snapshot_id=parent.snapshot_id),),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(ref_name=branch, type="branch", snapshot_id=snapshot_id),
        ),
    )
    return table.refresh()


def _snapshot_id(manifests: list[ManifestFile]) -> int:
    return manifests[0].added_snapshot_id


def _manifest(table: Table, files: Sequence[DataFile]) -> ManifestFile:
    snapshot_id = uuid.uuid4().int >> 66
    output = table.io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}.avro")
    with write_manifest(2, table.spec(), table.schema(), output, snapshot_id, "gzip") as writer:
        for file in files:
            writer.add_entry(_added(file, snapshot_id))
    return writer.to_manifest_file()


def _delete(
    table: Table,
    path: str,
    file_format: FileFormat,
    content: DataFileContent,
    count: int,
    partition: Record | None,
    equality_ids: list[int] | None = None,
) -> Table:
    snapshot_id = uuid.uuid4().int >> 66
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=file_format,
        partition=partition or Record(),
        record_count=count,
        file_size_in_bytes=len(table.io.new_input(path)),
        equality_ids=equality_ids,
    )
    file.spec_id = table.spec().spec_id
    output = table.io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}.avro")
    with _DeleteManifest(table.spec(), table.schema(), output, snapshot_id, "gzip") as writer:
        writer.add_entry(_added(file, snapshot_id))
    return land(table, Operation.DELETE, [writer.to_manifest_file()], keep=True)


def _added(file: DataFile, snapshot_id: int) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot_id,
        sequence_number=None,
        file_sequence_number=None,
        data_file=file,
    )


def _puffin(positions: Mapping[str, Sequence[int]]) -> bytes:
    """A Puffin file as the spec lays it out: magic, blobs, footer."""
    data, blobs = b"PFA1", []
    for path, numbers in sorted(positions.items()):
        bitmap = (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + BitMap(numbers).serialize()
        vector = b"\xd1\xd3\x39\x64" + bitmap
        blob = len(vector).to_bytes(4, "big") + vector + bytes(4)
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(data),
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(len(numbers))},
            }
        )
        data += blob
    footer = msgspec.json.encode({"blobs": blobs})
    return data + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
