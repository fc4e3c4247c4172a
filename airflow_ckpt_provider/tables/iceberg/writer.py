"""Writing one split on an executor: batches in, data files and one manifest out, in constant memory (I11)."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.exceptions import RowCountError
from airflow_ckpt_provider.scan.places import folders_at
from airflow_ckpt_provider.scan.sizes import file_sizes
from airflow_ckpt_provider.tables.fit import Conform, gathered
from airflow_ckpt_provider.tables.iceberg.fit import write_schema
from airflow_ckpt_provider.tables.iceberg.gathering import by_partition
from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest, write_manifest
from airflow_ckpt_provider.tables.iceberg.names import avro_codec
from airflow_ckpt_provider.tables.iceberg.partitions import Partitioner
from airflow_ckpt_provider.tables.iceberg.rolling import RollingFiles
from airflow_ckpt_provider.tables.writer import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

    from airflow_ckpt_provider.checkpoint.documents import Split, Staged
    from airflow_ckpt_provider.tables.iceberg.partitions import Partition

#: Rows of a staged file that are read at a time.
_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class WriterFacts:
    """What a writer has to know of its table.

    :param table: name, for messages.
    :param location: the table's location.
    :param properties: the table's properties.
    :param io_properties: storage properties, with credentials.
    """

    table: str
    location: str
    schema: Schema
    spec: PartitionSpec
    properties: dict[str, str]
    io_properties: dict[str, str]

    def io(self) -> FileIO:
        """Access to the table's storage."""
        from pyiceberg.io import load_file_io

        return load_file_io(self.io_properties, self.location)


class IcebergWriter:
    """Writes splits of one checkpoint. Picklable; holds the table's storage properties, so it never goes into the store."""

    def __init__(self, facts: WriterFacts) -> None:
        self.facts = facts

    @property
    def schema(self) -> pa.Schema:
        """The table's schema in Arrow, under its own column names."""
        import pyarrow as pa

        names = self._names()
        return pa.schema([field.with_name(names.get(field.name, field.name)) for field in write_schema(self.facts.schema)])

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Write the rows of one split; see ``Writer.write``."""
        return self.write_chunks(self.chunks(batches), stem)

    @property
    def folders(self) -> frozenset[str]:
        """The table's own; see ``Writer.folders``."""
        return folders_at(self.facts.location, self.facts.properties)

    def holding(self, record: Staged) -> list[StagedFile]:
        """The data files; see ``Writer.holding``."""
        return list(record.files)

    def named_in(self, record: Staged) -> list[StagedFile]:
        """The data files, and the manifest that lists them; see ``Writer.named_in``."""
        manifest = None if record.manifest is None else StagedManifest.from_json(record.manifest)
        return [*record.files, *([] if manifest is None else [StagedFile(manifest.path, manifest.length)])]

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """See ``Writer.sizes``."""
        return file_sizes(self.facts.io(), paths)

    def read(self, record: Staged) -> Iterator[pa.RecordBatch]:
        """Rows of the data files; see ``Writer.read``."""
        return self.read_files(self.holding(record))

    def read_files(self, files: Iterable[StagedFile]) -> Iterator[pa.RecordBatch]:
        """Rows of staged Parquet files, under the table's own column names."""
        import pyarrow.parquet as pq

        io, names = self.facts.io(), self.schema.names
        for held in files:
            with io.new_input(held.path).open() as stream, pq.ParquetFile(stream) as file:
                for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                    yield batch.rename_columns(names)

    def rewrite(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """As ``write``: the files have the table's own types."""
        return self.write(batches, stem)

    def work(self, split: Split, stem: str) -> Written:
        """Appending asks for no table splits."""
        del stem
        raise NotImplementedError(f"The split {split.id} asks for {split.task!r}, which a plain write does not do.")

    def write_chunks(self, chunks: Iterable[pa.Table], stem: str) -> Written:
        """Write rows that are in the table's schema, as from ``chunks``."""
        return self.listed(self.write_files(chunks, stem), stem)

    def write_files(self, chunks: Iterable[pa.Table], stem: str) -> list[DataFile]:
        """Write rows that are in the table's schema into data files, which no manifest lists yet. Leaves no file on an error."""
        from pyiceberg.table.locations import load_location_provider

        io = self.facts.io()
        coming = iter(chunks)
        first = next(coming, None)
        if first is None:
            return []
        locations = load_location_provider(self.facts.location, self.facts.properties)
        files = RollingFiles(io, locations, self.facts.schema, self.facts.spec.spec_id, self.facts.properties, stem, first)
        all_rows = itertools.chain([first], coming)
        # It is not kept beside the chunks that follow it.
        del first
        parts: Iterable[tuple[Partition | None, pa.Table]] = ((None, chunk) for chunk in all_rows)
        if self.facts.spec.fields:
            parts = by_partition(all_rows, Partitioner(self.facts.spec, self.facts.schema))
        rows = 0
        try:
            for partition, part in parts:
                rows += part.num_rows
                files.write(partition, part)
            closed = files.close()
        except BaseException:
            # Nothing refers to these files yet. Those of a killed process stay, and are known by their names (I4), as do those that
            # cannot be deleted now: what went wrong first is what matters.
            with contextlib.suppress(Exception):
                delete_files(io, files.abandon())
            raise
        held = sum(file.record_count for file in closed)
        if held != rows:
            raise RowCountError(f"{rows} rows were written to {stem}, but its files hold {held} (I2).")
        return closed

    def listed(self, files: Sequence[DataFile], stem: str) -> Written:
        """Write the manifest of a split's data files, if it has any."""
        from pyiceberg.table.locations import load_location_provider

        if not files:
            return Written(0, 0, (), None)
        locations = load_location_provider(self.facts.location, self.facts.properties)
        path = locations.new_metadata_location(f"{stem}.avro")
        codec = avro_codec(self.facts.properties, self.facts.table)
        manifest = write_manifest(self.facts.io(), path, files, self.facts.schema, self.facts.spec, codec)
        staged = tuple(StagedFile(file.file_path, file.file_size_in_bytes) for file in files)
        return Written(manifest.rows, manifest.bytes, staged, manifest.to_json())

    def remove(self, written: Written) -> None:
        """Remove the files of a split that lost the race to be published."""
        manifests = [str(written.manifest["path"])] if written.manifest else []
        delete_files(self.facts.io(), [file.path for file in written.files] + manifests)

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Rows in the table's schema, gathered into chunks of bounded size."""
        return gathered(batches, Conform(write_schema(self.facts.schema), self.facts.table, self._names()))

    def _names(self) -> dict[str, str]:
        """The table's column names, by the names that files have to use."""
        from pyiceberg.schema import sanitize_column_names

        names = [field.name for field in self.facts.schema.fields]
        written = [field.name for field in sanitize_column_names(self.facts.schema).fields]
        return {w: o for w, o in zip(written, names, strict=True) if w != o}


def delete_files(io: FileIO, paths: Iterable[str]) -> None:
    """Delete files of a split that nothing refers to."""
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            continue
