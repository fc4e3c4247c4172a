"""What a check gets to see: the rows that the commit is about to add, as a DataFrame and as Arrow batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.write.looks import look_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.spark.checks.frame import StagedFrame
    from airflow_ckpt_provider.tables.storage import StagedScan
    from airflow_ckpt_provider.tables.table import Table


class StagedRows:
    """The rows of the files that the commit is about to add. A check is called with it.

    A write that rewrites files of the table, an upsert, adds whole files: rows that it carries over are among them.

    :ivar table: ``namespace.table``.
    :ivar keys: idempotence keys of the checkpoints that land together.
    :ivar rows: number of rows.
    """

    def __init__(self, table: Table, writes: Sequence[SealedWrite], frame: StagedFrame) -> None:
        self.table = table.identifier
        self.keys = tuple(write.header.key for write in writes)
        self.rows = sum(write.seal.rows for write in writes)
        self._table = table
        self._writes = writes
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
        return self._frame.scan.schema

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow, one batch after the other, read in this process in bounded memory. Starts no Spark.

        :param columns: columns to read, in this order; all if None.
        :raises ValueError: if there is no such column.
        """
        return self._read(self._frame.scan if columns is None else self._scan(columns))

    def _scan(self, columns: Sequence[str]) -> StagedScan:
        return look_at(self._table, self._writes[0].header.table, lambda state: state.storage.scan(self._writes, columns))

    def _read(self, scan: StagedScan) -> Iterator[pa.RecordBatch]:
        for file in self._frame.files:
            for batch in scan.read(file):
                self._frame.require_running()
                yield batch
