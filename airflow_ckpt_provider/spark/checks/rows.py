"""What a check gets to see: the rows that the commit is about to add, as a DataFrame and as Arrow batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.scan.iceberg import IcebergScan, ScanFile
from airflow_ckpt_provider.tables.iceberg.evolution import pinned_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from airflow_ckpt_provider.spark.checks.frame import StagedFrame
    from airflow_ckpt_provider.tables.iceberg.table import IcebergTarget
    from airflow_ckpt_provider.tables.protocol import Sealed


class StagedRows:
    """The rows of the files that the commit is about to add. A check is called with it.

    A write that rewrites files of the table, an upsert, adds whole files: rows that it carries over are among them.

    :ivar table: ``namespace.table``.
    :ivar keys: idempotence keys of the checkpoints that land together.
    :ivar rows: number of rows.
    """

    def __init__(self, table: str, sealed: Sequence[Sealed], files: StagedFiles, frame: StagedFrame) -> None:
        self.table = table
        self.keys = tuple(one.header.key for one in sealed)
        self.rows = sum(one.seal.rows for one in sealed)
        self._files = files
        self._frame = frame

    @property
    def dataframe(self) -> DataFrame:
        """The rows as a Spark DataFrame. Spark is started when this is first asked for; rows are read when an action needs them.

        A UUID and a time of day are strings in it, a fixed is a binary. Its ``sparkSession`` reads other tables.
        """
        return self._frame.dataframe

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches: the table's columns."""
        return self._files.scan.schema

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow, one batch after the other, read in this process in bounded memory. Starts no Spark.

        :param columns: columns to read, in this order; all if None.
        :raises ValueError: if there is no such column.
        """
        scan = self._files.scan if columns is None else self._files.scan_of(columns)
        return self._read(scan)

    def _read(self, scan: IcebergScan) -> Iterator[pa.RecordBatch]:
        for file in self._files.files:
            for batch in scan.read(file):
                self._frame.require_running()
                yield batch


class StagedFiles:
    """The data files that sealed checkpoints would add, and how they are read."""

    def __init__(self, table: IcebergTarget, sealed: Sequence[Sealed]) -> None:
        # Each may have pinned a schema of its own; the newest has the columns of all.
        binding = max((one.header.table for one in sealed), key=lambda binding: binding.schema_id)
        self._table = table.load_bound(binding)
        pinned_schema(self._table, binding)
        self._schema_id = binding.schema_id
        self.files = [file for one in sealed for file in _files(one)]
        self.scan = self.scan_of(None)

    def scan_of(self, columns: Sequence[str] | None) -> IcebergScan:
        """A reader of these columns, or of all."""
        return IcebergScan(self._table, self._schema_id, columns)


def _files(one: Sealed) -> Iterator[ScanFile]:
    for record in one.staged:
        for file in record.files:
            # The record counts the rows of all its files; the share of each only sizes the batches.
            rows = max(1, record.rows * file.bytes // max(record.bytes, 1))
            yield ScanFile(path=file.path, bytes=file.bytes, rows=rows, spec_id=one.header.table.spec_id)
