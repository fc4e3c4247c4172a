"""Ids of staged rows: written by the task that stages them, read by Spark to leave them out. The driver handles file names only.

One Parquet file beside each staged record, in the checkpoint store. Decision: in the store and not in the table's folder, where an
orphan clean-up would take them for garbage, and a retry would write the rows twice. The name holds split and writer, so that the
published record, which holds both, says which file is its own; files of writers that lost the race are never read.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.spark.code_shipping import dumps
from airflow_ckpt_provider.spark.frame.buckets import canonical_sql

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore

#: Writer of splits that turned out to have no rows. They have no files and no ids.
EMPTY_WRITER = "empty"

#: Tasks that read ids, at most; and ids for which it is worth to start one.
_READERS, _IDS_OF_A_TASK = 64, 250_000

#: Ids of one partition that Spark may hold in a table: some hundred bytes each.
_HASHED, _PARTITIONS = 500_000, "spark.sql.shuffle.partitions"


class IdFile:
    """The id file of one split, being written. It is in the store when ``publish`` returns, whole or not at all.

    :param name: see ``CheckpointPaths.ids``.
    """

    def __init__(self, store: CheckpointStore, name: str) -> None:
        self._store = store
        self._name = name
        # On disk: the ids of a large split need not fit into memory (I11).
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by whoever holds this
        self._writer: Any = None

    def write(self, ids: pa.RecordBatch) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, ids.schema, compression="zstd", write_page_checksum=True)
        self._writer.write_batch(ids)

    def publish(self) -> None:
        """Put the file into the store. Comes before the split is published."""
        import obstore

        self._writer.close()
        self._writer = None
        self._file.seek(0)
        obstore.put(self._store.location.open(create=True), self._name, self._file)
        self._store.location.restrict(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file.close()

    def remove(self) -> None:
        """Take back a file that no published record names."""
        import obstore

        obstore.delete(self._store.location.open(create=True), self._name)


def without_staged(
    spark: SparkSession,
    frame: DataFrame,
    store: CheckpointStore,
    staged: StagedIds,
    id_columns: Sequence[str],
    kinds: Sequence[DataType],
) -> DataFrame:
    """The rows of ``frame`` whose ids are not staged; null is equal to null."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructField, StructType

    if not staged.names:
        return frame
    aliases = [f"__ckpt_id_{number}" for number in range(len(id_columns))]
    schema = StructType([StructField(name, kind) for name, kind in zip(aliases, kinds, strict=True)])
    payload = dumps(IdFiles(store, tuple(staged.names)))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        files = pickle.loads(payload)  # noqa: S301 - from this attempt's driver, over Spark's own channel
        for batch in batches:
            yield from files.read(batch.column(0).to_pylist(), schema)

    readers = min(len(staged.names), _READERS, 1 + staged.rows // _IDS_OF_A_TASK)
    ids = spark.range(0, len(staged.names), 1, readers).mapInArrow(read, schema)
    same = " AND ".join(
        f"{canonical_sql(column, kind)} <=> {name}" for column, kind, name in zip(id_columns, kinds, aliases, strict=True)
    )
    # Spark takes the ids for as few as the files, and would send all of them through the driver as a broadcast. A table of the ids
    # of each partition saves it to sort all rows; where that would be large, rows are sorted, which needs no memory.
    how = "shuffle_hash" if staged.rows <= _HASHED * int(spark.conf.get(_PARTITIONS) or 1) else "merge"
    return frame.join(ids.hint(how), f.expr(same), "left_anti")


class StagedIds(NamedTuple):
    """Ids that are staged.

    :param names: of the files that hold them.
    :param rows: how many there are: one for each row of the input, whatever a transform has made of it.
    """

    names: Sequence[str]
    rows: int


def staged_ids(checkpoint: Checkpoint, split_ids: Sequence[str]) -> StagedIds:
    """The ids of the rows of these staged splits.

    :raises CorruptObjectError: if a file of them is gone: its rows would be written a second time.
    """
    records = [record for record in checkpoint.staged(split_ids) if not record.writer.endswith(f".{EMPTY_WRITER}")]
    names = [checkpoint.paths.ids(record.split, record.writer) for record in records]
    rows = sum(record.rows if record.input_rows is None else record.input_rows for record in records)
    if not names:
        return StagedIds(names, rows)
    gone = sorted(set(names) - set(checkpoint.store.names(checkpoint.paths.ids_folder)))
    if gone:
        raise CorruptObjectError(
            f"Object {gone[0]} is gone from the checkpoint store {checkpoint.store.uri}, with {len(gone) - 1} more; it holds the "
            "ids of rows that are staged, which would be written twice without it. Restore it, or redo the write: "
            f"{how_to_restart(checkpoint.header)}."
        )
    return StagedIds(names, rows)


@dataclass(frozen=True)
class IdFiles:
    """Reads id files on an executor. Travels by pickle, never into the store: the store's options are credentials."""

    store: CheckpointStore
    names: tuple[str, ...]

    def read(self, numbers: Sequence[int], schema: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - a Spark StructType
        """Ids in the files with these numbers, in the types of today's DataFrame.

        :raises CorruptObjectError: if a file is damaged.
        """
        import obstore
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyspark.sql.pandas.types import to_arrow_schema

        want = to_arrow_schema(schema, timezone="UTC")
        objects = self.store.location.open()
        for name in (self.names[number] for number in numbers):
            data = pa.BufferReader(memoryview(obstore.get(objects, name).bytes()))
            try:
                for batch in pq.ParquetFile(data, page_checksum_verification=True).iter_batches():
                    columns = [column.cast(kind) for column, kind in zip(batch.columns, want.types, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, schema=want)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
                raise CorruptObjectError(
                    f"Object {name} in the checkpoint store {self.store.uri} is damaged, or its ids are no longer of the type of "
                    f"the id columns: {error}. Restore it, or redo the write: {how_to_restart()}."
                ) from error
