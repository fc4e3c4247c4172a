"""Many staged files in little time: all are copies of one small Parquet file, described by real manifests.

What a plan, a seal and a commit do depends on the number of files, manifests and partitions, not on what is in the files.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.iceberg.manifest import write_manifest
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter
from airflow_ckpt_provider.tables.writer import Written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_ckpt_provider.tables.iceberg.writer import WriterFacts
    from airflow_ckpt_provider.write.attempt import WriteAttempt

SCHEMA = Schema(
    NestedField(1, "part", IntegerType(), required=True),
    NestedField(2, "id", LongType(), required=True),
    NestedField(3, "value", DoubleType()),
    NestedField(4, "name", StringType()),
)
#: The same with more columns, for tables whose files are never opened.
WIDE = Schema(*SCHEMA.fields, *(NestedField(number, f"more {number}", LongType()) for number in range(5, 11)))

SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))


def source(folder: Path, splits: int) -> Files:
    """One small input file for each split."""
    folder.mkdir(exist_ok=True)
    for number in range(splits):
        rows = {"part": pa.array([0], pa.int32()), "id": [number], "value": [number / 4], "name": [f"name {number}"]}
        pq.write_table(pa.table(rows), folder / f"{number:05d}.parquet")
    return reopened(folder)


def reopened(folder: Path) -> Files:
    """The source of a folder that is filled."""
    return Files(str(folder), max_split_bytes=1)


def data_files(paths: Iterable[str], partitions: int, size: int, first: int = 0, schema: Schema = SCHEMA) -> list[DataFile]:
    """Files as a manifest describes them, with statistics of all columns; they go around the partitions."""
    columns = len(schema.fields)
    return [_data_file(path, number % partitions, size, columns) for number, path in enumerate(paths, first)]


def stage(attempt: WriteAttempt, files_each: int, partitions: int, template: Path) -> None:
    """Stage all splits, each as so many files."""
    content = template.read_bytes()
    found = attempt.next_round()
    work = attempt.begin("benchmark", 1)
    if not isinstance(work.writer, IcebergWriter):
        raise TypeError("An append has a plain writer.")
    work = dataclasses.replace(work, writer=_ManyFiles(work.writer.facts, files_each, partitions, content))
    for split in found.missing if found else []:
        work.run(split, "0")


class _ManyFiles(IcebergWriter):
    """Writes the same small file many times, whatever it is given."""

    def __init__(self, facts: WriterFacts, files: int, partitions: int, content: bytes) -> None:
        super().__init__(facts)
        self._files, self._partitions, self._content = files, partitions, content

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Files of the split whose number is the only id."""
        (number,) = [n for batch in batches for n in batch.column("id").to_pylist()]
        facts = self.facts
        io = facts.io()
        places = load_location_provider(facts.location, facts.properties)
        first = number * self._files
        paths = []
        for at in range(first, first + self._files):
            path = places.new_data_location(f"part={at % self._partitions}/{stem}-{at:06d}.parquet")
            local = Path(path.removeprefix("file://"))
            local.parent.mkdir(parents=True, exist_ok=True)
            local.write_bytes(self._content)
            paths.append(path)
        own = data_files(paths, self._partitions, len(self._content), first)
        manifest = write_manifest(io, places.new_metadata_location(f"{stem}.avro"), own, facts.schema, facts.spec, "gzip")
        staged = tuple(StagedFile(file.file_path, file.file_size_in_bytes) for file in own)
        return Written(manifest.rows, manifest.bytes, staged, manifest.to_json())


def _data_file(path: str, partition: int, size: int, columns: int) -> DataFile:
    part = partition.to_bytes(4, "little")
    numbers = range(1, columns + 1)
    other: dict[int, Any] = {2: part + bytes(4), 3: bytes(8), 4: b"name"} | {number: part + bytes(4) for number in numbers[4:]}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(partition),
        record_count=1,
        file_size_in_bytes=size,
        column_sizes=dict.fromkeys(numbers, 60),
        value_counts=dict.fromkeys(numbers, 1),
        null_value_counts=dict.fromkeys(numbers, 0),
        nan_value_counts={3: 0},
        lower_bounds={1: part, **other},
        upper_bounds={1: part, **other},
        split_offsets=[4],
    )
    file.spec_id = 0
    return file
