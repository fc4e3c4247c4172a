"""Staged rows as a Spark DataFrame, read by executors with this package's own reader when an action asks for them.

Spark needs neither Iceberg's jars nor a connector for the storage: a local table lists the files, and each task reads its share.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import TYPE_CHECKING, Self

import msgspec

from airflow_ckpt_provider.checkpoint.known_types import known
from airflow_ckpt_provider.exceptions import StoppedError
from airflow_ckpt_provider.sources.packing import pack
from airflow_ckpt_provider.spark.checks.sql import VIEW
from airflow_ckpt_provider.spark.checks.types import shown, shown_schema
from airflow_ckpt_provider.spark.code_shipping import dumps, is_connect
from airflow_ckpt_provider.spark.session import quiet
from airflow_ckpt_provider.spark.stage import CANCEL_WAIT_S, spark_settings
from airflow_ckpt_provider.tables.storage import DataFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.tables.storage import StagedScan

#: Bytes that one task reads, and what opening a file counts for.
_TASK_BYTES, _OPEN_BYTES = 32 << 20, 1 << 20

_CANCEL_AGAIN_S = 0.25


class StagedFrame:
    """The DataFrame of some files, which SQL sees as a view, and the Spark jobs that look at it. Nothing is left on leaving it.

    :param scan: reads the files.
    :param open_session: opens a Spark session; called once, when the DataFrame is asked for.
    """

    def __init__(self, scan: StagedScan, files: Sequence[DataFile], open_session: Callable[[], SparkSession]) -> None:
        self.scan = scan
        self.files = files
        self._open_session = open_session
        self._tag = f"ckpt-check-{uuid.uuid4().hex}"
        self._spark: SparkSession | None = None
        self._frame: DataFrame | None = None
        self._stopped = threading.Event()
        self._closed = threading.Event()
        self._stopper: threading.Thread | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        if self._stopper is not None:
            self._stopper.join(CANCEL_WAIT_S)
        self._stack.close()

    @property
    def stopped(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._stopped.is_set()

    def require_running(self) -> None:
        """Stop here if ``cancel`` was called.

        :raises StoppedError: if so.
        """
        if self.stopped:
            raise StoppedError("The checks were stopped.")

    @property
    def dataframe(self) -> DataFrame:
        """The rows. Nothing is read before an action."""
        self.require_running()
        if self._frame is None:
            spark = self._open_session()
            quiet()
            self._enter(spark)
            self._spark = spark
            # The signal may have come while the session was starting.
            self.require_running()
            self._frame = self._build(spark)
        return self._frame

    def cancel(self) -> None:
        """Stop the jobs of this thread's checks (I12). Safe at any time, in a signal handler too."""
        self._stopped.set()
        spark = self._spark
        if spark is None or self._closed.is_set() or self._stopper is not None:
            return
        asked = threading.Event()

        def interrupt() -> None:
            while not self._closed.is_set():
                if is_connect(spark):
                    spark.interruptTag(self._tag)
                else:
                    # The tags of a classic session are known to the thread that set them only; those of its context are not.
                    spark.sparkContext.cancelJobsWithTag(self._tag)
                asked.set()
                self._closed.wait(_CANCEL_AGAIN_S)

        # In a thread of its own, because a signal may have come while this one was talking to Spark, which goes on after it.
        self._stopper = threading.Thread(target=interrupt, name="checkpoint-stop", daemon=True)
        self._stopper.start()
        asked.wait(CANCEL_WAIT_S)

    def _enter(self, spark: SparkSession) -> None:
        if is_connect(spark):
            spark.addTag(self._tag)
            self._stack.callback(spark.removeTag, self._tag)
        else:
            spark.sparkContext.addJobTag(self._tag)
            self._stack.callback(spark.sparkContext.removeJobTag, self._tag)

    def _build(self, spark: SparkSession) -> DataFrame:
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_schema

        shares = pack([(file, max(file.bytes, _OPEN_BYTES)) for file in self.files], _TASK_BYTES, "The staged files")
        listed = pa.table({"files": pa.array([msgspec.json.encode(files).decode() for files, _ in shares], pa.string())})
        payload = dumps(self.scan)

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from airflow_ckpt_provider.spark.checks.frame import read_files

            return read_files(payload, batches)

        settings = {
            # Jobs run when the checks ask for rows, so these stay until the end: a task for each share.
            "spark.sql.leafNodeDefaultParallelism": str(max(1, len(shares))),
            "spark.sql.execution.arrow.localRelationThreshold": "1g",
        }
        self._stack.enter_context(spark_settings(spark, settings))
        frame = spark.createDataFrame(listed).mapInArrow(task, from_arrow_schema(shown_schema(self.scan.schema)))
        frame.createOrReplaceTempView(VIEW)
        self._stack.callback(spark.catalog.dropTempView, VIEW)
        return frame


def read_files(payload: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a Spark task runs on the executor: the rows of its share of the files."""
    import pickle

    scan: StagedScan = pickle.loads(payload)  # noqa: S301 - from this task's driver, over Spark's own channel
    schema = shown_schema(scan.schema)
    for batch in batches:
        for text in batch.column("files").to_pylist():
            for file in msgspec.json.decode(text, type=known(list[DataFile])):
                for rows in scan.read(file):
                    yield shown(rows, schema)
