"""An upsert without Spark and without a commit: all its splits, one after the other, and the rows that the table would have."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyarrow import parquet
from pyiceberg.table.snapshots import Operation

from airflow_ckpt_provider.scan.data_files import ScanFile
from airflow_ckpt_provider.scan.iceberg import IcebergScan, scan_files
from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest, to_manifest_file
from airflow_ckpt_provider.tables.iceberg.upsert import key_batches, matched_rows
from airflow_ckpt_provider.tables.iceberg.upsert.grouping import GroupSize, grouped
from airflow_ckpt_provider.tables.iceberg.upsert.plan import plan_matches
from airflow_ckpt_provider.tables.iceberg.upsert.writer import UpsertWriter
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter, WriterFacts
from support.replacing import commit_manifests

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import AnyPinned
    from airflow_ckpt_provider.scan.iceberg import Scanned
    from airflow_ckpt_provider.tables.iceberg.upsert.grouping import FileGroup
    from airflow_ckpt_provider.tables.writer import Written

_numbers = itertools.count()


class Upserted(NamedTuple):
    """What an upsert did.

    :param targets: live files before.
    :param matched: groups of files that were matched, and what became of each.
    :param rows: rows that the table would have after the commit.
    """

    targets: list[ScanFile]
    sources: list[Written]
    matched: list[tuple[FileGroup, Written]]
    inserted: list[Written]
    rows: list[dict[str, Any]]

    @property
    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for written in [written for _, written in self.matched] + self.inserted:
            for name, count in written.counts.items():
                found[name] = found.get(name, 0) + count
        return {name: count for name, count in found.items() if count}

    @property
    def matched_paths(self) -> list[str]:
        return sorted((path for group, _ in self.matched for path in group.paths), key=lambda path: path.rsplit("/", 1)[1])

    @property
    def replaced(self) -> set[str]:
        return {path for _, written in self.matched for path in written.replaces}


def facts_of(table: Table) -> WriterFacts:
    """What a writer has to know of the table as it is now."""
    metadata = table.metadata
    name = ".".join(table.name())
    return WriterFacts(name, metadata.location, table.schema(), table.spec(), dict(metadata.properties), dict(table.io.properties))


def add_rows(table: Table, *files: Iterable[pa.RecordBatch]) -> None:
    """Commit rows, at least one data file for each of ``files``."""
    writer = IcebergWriter(facts_of(table))
    for batches in files:
        written = writer.write(batches, f"ckpt-t{next(_numbers):06d}")
        if written.manifest is not None:
            snapshot_id = table.metadata.new_snapshot_id()
            manifest = to_manifest_file(StagedManifest.from_json(written.manifest), snapshot_id)
            commit_manifests(table, [manifest], Operation.APPEND, snapshot_id)


def add_files(table: Table, *files: Iterable[pa.RecordBatch]) -> None:
    """Commit rows in one snapshot, at least one data file for each of ``files``."""
    writer, snapshot_id = IcebergWriter(facts_of(table)), table.metadata.new_snapshot_id()
    written = [writer.write(batches, f"t{next(_numbers):06d}") for batches in files]
    manifests = [StagedManifest.from_json(one.manifest) for one in written if one.manifest is not None]
    commit_manifests(table, [to_manifest_file(one, snapshot_id) for one in manifests], Operation.APPEND, snapshot_id)


def live_files(table: Table) -> list[Scanned]:
    """Data files of the table, as they were added."""
    snapshot = table.current_snapshot()
    return sorted(scan_files(table, snapshot.snapshot_id if snapshot else None), key=lambda scanned: _name(scanned.file))


def upsert_writer(table: Table, keys: Sequence[str], **options: Any) -> UpsertWriter:
    """The writer, as it arrives on an executor."""
    return pickle.loads(pickle.dumps(UpsertWriter(facts_of(table), table, table.schema().schema_id, keys, **options)))


def upsert(
    table: Table,
    keys: Sequence[str],
    splits: Iterable[Iterable[pa.RecordBatch]],
    *,
    stem: str = "ckpt-u",
    size: GroupSize = GroupSize(),  # noqa: B008 - it is immutable
    **options: Any,
) -> Upserted:
    """Run all splits of an upsert.

    :param stem: another one for each upsert of a table.
    :param size: of groups of files; small files are matched together.
    """
    matched_rows.KEPT.clear()
    key_batches.KEPT.clear()
    writer = upsert_writer(table, keys, **options)
    schema_id = table.schema().schema_id
    snapshot = table.current_snapshot()
    head = snapshot.snapshot_id if snapshot else None
    targets = [scanned.file for scanned in live_files(table)]
    sources = [writer.write_source(batches, f"{stem}-s{number}") for number, batches in enumerate(splits)]
    records = [_stored(written.intermediate) for written in sources if written.intermediate is not None]
    for bucket in range(options.get("buckets", 1)):
        writer.check_unique(bucket, records)
    matched = [
        (group, writer.match(group.files(), records, f"{stem}-m{number}"))
        for number, group in enumerate(grouped(plan_matches(table, head, keys, records, schema_id), size))
    ]
    sidecars = [_stored(written.intermediate) for _, written in matched if written.intermediate is not None]
    inserts = records if options.get("insert", True) else []
    inserted = [writer.insert(record, sidecars, f"{stem}-i{number}") for number, record in enumerate(inserts)]
    replaced = {path for _, written in matched for path in written.replaces}
    scan = IcebergScan(table)
    rows = [row for file in targets if file.path not in replaced for row in rows_of(scan, file)]
    for written in [written for _, written in matched] + inserted:
        rows += [row for file in written_files(table, written) for row in rows_of(scan, file)]
    return Upserted(targets, sources, matched, inserted, rows)


def written_files(table: Table, written: Written) -> list[ScanFile]:
    """Data files that a split has written, as a scan would find them after the commit."""
    spec_id = table.spec().spec_id
    found = []
    for file in written.files:
        with table.io.new_input(file.path).open() as stream:
            rows = parquet.ParquetFile(stream).metadata.num_rows
        found.append(ScanFile(path=file.path, bytes=file.bytes, rows=rows, spec_id=spec_id))
    return found


def rows_of(scan: IcebergScan, file: ScanFile) -> list[dict[str, Any]]:
    return [row for batch in scan.read(file) for row in batch.to_pylist()]


def _name(file: ScanFile) -> str:
    return file.path.rsplit("/", 1)[1]


def _stored(record: AnyPinned) -> AnyPinned:
    """A record as the store gives it back."""
    return msgspec.convert(msgspec.json.decode(msgspec.json.encode(record.to_json())), type(record))
