"""The staged files of writes in the storage of an Iceberg table; see ``StagedStorage``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.scan.data_files import ScanFile
from airflow_ckpt_provider.scan.iceberg import IcebergScan
from airflow_ckpt_provider.scan.sizes import file_sizes
from airflow_ckpt_provider.tables.iceberg.evolution import pinned_schema
from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest, merge, worth_merging
from airflow_ckpt_provider.tables.iceberg.ownership import require_listed, require_owned_files, require_owned_records
from airflow_ckpt_provider.tables.iceberg.upsert.sidecar import MatchSidecar
from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFile
from airflow_ckpt_provider.tables.staged_files import lost_of
from airflow_ckpt_provider.tables.storage import DataFile, Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Staged
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite


class IcebergStorage:
    """What is staged below the locations of a table.

    :param table: as it was loaded.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def place(self) -> Place:
        """The table's location, and its catalog; see ``StagedStorage.place``."""
        return Place.in_catalog(self._table.metadata.location, self._table.catalog.properties)

    def partitions(self, writes: Sequence[SealedWrite]) -> Sequence[str]:
        """Partitions of the staged manifests; see ``StagedStorage.partitions``."""
        manifests = (StagedManifest.from_json(manifest) for write in writes for manifest in write.seal.manifests)
        return sorted({partition for manifest in manifests for partition in manifest.partitions})

    def named_in(self, record: Staged) -> list[StagedFile]:
        """Data files, their manifest, and the staged source file or sidecar of an upsert; see ``StagedStorage.named_in``."""
        manifest = None if record.manifest is None else StagedManifest.from_json(record.manifest)
        listed = [] if manifest is None else [StagedFile(manifest.path, manifest.length)]
        kept = record.intermediate_as(SourceFile, MatchSidecar)
        return [*record.files, *listed, *([] if kept is None else [StagedFile(kept.path, kept.bytes)])]

    def needed_to_commit(self, write: SealedWrite) -> list[StagedFile]:
        """Data files, and the manifests that list them; see ``StagedStorage.needed_to_commit``."""
        manifests = [StagedManifest.from_json(manifest) for manifest in write.seal.manifests]
        listed = [StagedFile(manifest.path, manifest.length) for manifest in manifests]
        return [*(file for record in write.staged for file in record.files), *listed]

    def lost(self, files: Sequence[StagedFile]) -> list[StagedFile]:
        """Staged files that are gone or have another size; see ``StagedStorage.lost``."""
        return lost_of(files, file_sizes(self._table.io, [file.path for file in files]))

    def require_owned_records(self, write: StagedWrite, records: Sequence[Staged]) -> None:
        """Refuse records that name files that the generation has not written; see ``StagedStorage.require_owned_records``."""
        require_owned_records(self._table.metadata, write.header, write.names, write.plans, records)

    def require_owned_files(self, writes: Sequence[SealedWrite]) -> None:
        """Refuse to land files that the write has not staged; see ``StagedStorage.require_owned_files``."""
        metadata = self._table.metadata
        for write in writes:
            require_owned_files(metadata, write)
            replaced = write.replaced
            # What an undo takes out, the table's history says, and no record.
            if replaced is not None and write.header.undoes is None:
                require_owned_records(metadata, replaced.header, replaced.names, [replaced.plan], replaced.staged)

    def require_listed(self, writes: Sequence[SealedWrite]) -> None:
        """Refuse manifests that list other files than were staged; see ``StagedStorage.require_listed``."""
        for write in writes:
            require_listed(self._table.metadata, self._table.io, write)

    def writes_manifests(self, manifests: Sequence[JsonObject]) -> bool:
        """Whether there are so many tiny manifests that they are merged; see ``StagedStorage.writes_manifests``."""
        return worth_merging([StagedManifest.from_json(manifest) for manifest in manifests])

    def merged_manifests(self, write: StagedWrite, manifests: Sequence[JsonObject], stem: str) -> Sequence[JsonObject]:
        """Merge tiny manifests; see ``StagedStorage.merged_manifests``."""
        del write
        if not self.writes_manifests(manifests):
            return manifests
        staged = [StagedManifest.from_json(manifest) for manifest in manifests]
        places = self._table.location_provider()
        merged = merge(self._table.io, staged, lambda number: places.new_metadata_location(f"{stem}-{number:05d}.avro"))
        return [manifest.to_json() for manifest in merged]

    def data_files(self, writes: Sequence[SealedWrite]) -> list[DataFile]:
        """The data files that a commit of these would add."""
        return [file for write in writes for file in _data_files(write)]

    def scan(self, writes: Sequence[SealedWrite], columns: Sequence[str] | None = None) -> StagedFilesScan:
        """What reads those files; see ``StagedStorage.scan``."""
        # Each may have pinned a schema of its own; the newest has the columns of all.
        binding = max((write.header.table for write in writes), key=lambda binding: binding.schema_id)
        pinned_schema(self._table, binding)
        return StagedFilesScan(IcebergScan(self._table, binding.schema_id, columns))


class StagedFilesScan:
    """Reads staged data files, which have no deletes; see ``StagedScan``."""

    def __init__(self, scan: IcebergScan) -> None:
        self._scan = scan

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return self._scan.schema

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Rows of one file."""
        return self._scan.read(ScanFile(path=file.path, bytes=file.bytes, rows=file.rows, spec_id=file.spec_id))


def _data_files(write: SealedWrite) -> Iterator[DataFile]:
    for record in write.staged:
        for file in record.files:
            # The record counts the rows of all its files; the share of each only sizes the batches.
            rows = max(1, record.rows * file.bytes // max(record.bytes, 1))
            yield DataFile(path=file.path, bytes=file.bytes, rows=rows, spec_id=write.header.table.spec_id)
