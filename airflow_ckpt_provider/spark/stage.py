"""Running the missing splits on Spark: one task each, progress from the store, and a stop that stops.

The tasks are scheduled through the DataFrame API only, so that classic sessions and Spark Connect run the same code.

Decision: what each task has to do is a row of a local table, which Spark cuts into as many partitions as it has rows. There is no
shuffle whose files a lost executor could take with it. A task gets one split, or several where there are thousands of tiny ones: a
task costs Spark some 30 ms before it does anything. Each split is published by itself all the same.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Split
from airflow_ckpt_provider.checkpoint.known_types import known
from airflow_ckpt_provider.checkpoint.pieces import rows_saved
from airflow_ckpt_provider.exceptions import InvalidInputError, StageFailedError, StoppedError, TerminalError, terminal_error
from airflow_ckpt_provider.spark.code_shipping import dumps, is_connect
from airflow_ckpt_provider.spark.error_summary import error_summary, terminal_in
from airflow_ckpt_provider.spark.session import quiet
from airflow_ckpt_provider.write.rounds import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.write.work import SplitWork

#: Seconds between progress reports; longer where looking takes long.
REPORT_EVERY_S = 5.0

#: A look at the store may take this share of the time.
_LOOKING_SHARE = 0.05

#: Seconds that ``StageRun.cancel`` waits for the job to end. Airflow kills a task five seconds after it asked it to stop.
CANCEL_WAIT_S = 4.0

#: As long as there are no more splits than that, each has a task of its own; then tiny ones are put together, until a task has so
#: many of them, or so many bytes to read.
_MANY_SPLITS, _MOST_OF_A_TASK, _BYTES_OF_A_TASK = 1024, 32, 8 << 20

#: A job that was not submitted yet when it was cancelled is cancelled as soon as it is.
_CANCEL_AGAIN_S = 0.25


class StageRun:
    """The missing splits of one attempt, as one Spark job.

    :param spark: an open session; classic or Connect.
    :param work: what each task does.
    :param splits: the splits that are not staged.
    :param recovered: number of splits that are.
    """

    def __init__(
        self, spark: SparkSession, checkpoint: Checkpoint, work: SplitWork, splits: Sequence[Split], recovered: int
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._work = work
        self._splits = {split.id: split for split in splits}
        self._recovered = recovered
        self._tag = f"ckpt-{uuid.uuid4().hex}"
        self._seen: dict[str, int] = {}
        self._saved: dict[str, tuple[int, int]] = {}
        self._started = 0.0
        self._job: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._problem: BaseException | None = None
        self._failures: list[tuple[str, str, str]] = []

    def run(self, report: Callable[[Progress], None]) -> None:
        """Stage all splits. However this is left, no job is left running.

        :param report: called every few seconds, and at the end.
        :raises InvalidInputError: if the transform cannot be sent to executors.
        :raises TerminalError: if a split can never be staged as it is; all others are staged first.
        :raises StageFailedError: if tasks failed, or the stage was stopped.
        """
        quiet()
        payload = self._payload()
        self._started = time.monotonic()
        self._job = threading.Thread(target=self._run_job, args=(payload,), name="checkpoint-stage", daemon=True)
        self._job.start()
        try:
            self._watch(self._job, report)
        except BaseException:
            self.cancel()
            raise
        # At least: when a job fails, tasks that were running then may still publish.
        staged = (
            f"At least {self._recovered + len(self._seen)} of {self._recovered + len(self._splits)} splits are staged and stay; "
            "a retry writes only the others."
        )
        if self._problem is not None and self._cancelled.is_set():
            raise StoppedError(f"The stage of the key {self._checkpoint.key.value!r} was stopped. {staged}") from self._problem
        if isinstance(self._problem, TerminalError):
            raise self._problem
        if self._problem is not None and (terminal := terminal_in(self._problem)) is not None:
            raise terminal from self._problem
        if self._problem is not None:
            raise StageFailedError(
                f"Spark could not stage all splits of the key {self._checkpoint.key.value!r}: "
                f"{error_summary(self._problem)}\n{staged}"
            ) from self._problem
        if self._failures:
            raise self._failure()

    def cancel(self) -> None:
        """Stop the job (I12) and wait a moment for its end. Safe at any time, in a signal handler too, and before ``run``."""
        self._cancelled.set()
        if self._job is not None and self._job.is_alive():
            # In a thread of its own, because a signal may have come while this one was talking to Spark.
            stopper = threading.Thread(target=self._interrupt, args=(self._job,), name="checkpoint-stop", daemon=True)
            stopper.start()
            stopper.join(CANCEL_WAIT_S)

    def _interrupt(self, job: threading.Thread) -> None:
        while job.is_alive():
            if is_connect(self._spark):
                self._spark.interruptTag(self._tag)
            else:
                # The tags of a classic session are known to the thread that set them only; those of its context are not.
                self._spark.sparkContext.cancelJobsWithTag(self._tag)
            job.join(_CANCEL_AGAIN_S)

    def _watch(self, job: threading.Thread, report: Callable[[Progress], None]) -> None:
        """Report until the job has ended, and once more then."""
        pause = REPORT_EVERY_S
        while job.is_alive():
            job.join(pause)
            if job.is_alive():
                looked = time.monotonic()
                report(self.progress())
                pause = max(REPORT_EVERY_S, (time.monotonic() - looked) / _LOOKING_SHARE)
        report(self.progress())

    @property
    def _has_ended(self) -> bool:
        """True once the job was started and runs no more."""
        return self._job is not None and not self._job.is_alive()

    def progress(self) -> Progress:
        """How far the stage is, from what is in the store."""
        fresh = (self._checkpoint.staged_ids() & self._splits.keys()) - self._seen.keys()
        for staged in self._checkpoint.staged(sorted(fresh)):
            self._seen[staged.split] = staged.rows
        done = sum(self._splits[split_id].bytes for split_id in self._seen)
        return Progress(
            done=self._recovered + len(self._seen),
            total=self._recovered + len(self._splits),
            recovered=self._recovered,
            rows=sum(self._seen.values()),
            input_bytes=done,
            input_bytes_left=sum(split.bytes for split in self._splits.values()) - done,
            seconds=time.monotonic() - self._started,
            saved=self._rows_saved(),
        )

    def _rows_saved(self) -> int:
        unfinished = [split for split in self._splits.values() if split.is_input and split.id not in self._seen]
        if not unfinished:
            return 0
        return rows_saved(self._checkpoint.store, self._checkpoint.paths, unfinished, self._saved)

    def _task(self) -> object:
        """What is sent to every task."""
        return self._work

    def _payload(self) -> bytes:
        """What every task needs, pickled."""
        try:
            return dumps(self._task())
        except Exception as error:
            name = self._work.transform.name if self._work.transform is not None else "none"
            raise InvalidInputError(
                f"The transform {name} of the key {self._checkpoint.key.value!r} cannot be sent to Spark's executors: {error}. It "
                "holds something that belongs to one process, such as a lock, a connection or an open file. Create that inside "
                "the function."
            ) from error

    def _run_job(self, payload: bytes) -> None:
        try:
            # Tags belong to a thread, so this one sets its own.
            if is_connect(self._spark):
                self._spark.addTag(self._tag)
            else:
                self._spark.sparkContext.addJobTag(self._tag)
                self._spark.sparkContext.setJobDescription(f"checkpoint {self._checkpoint.key}: {len(self._splits)} splits")
            if self._cancelled.is_set():
                raise StoppedError("It was stopped before it began.")
            self._failures = self._run_tasks(payload)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._problem = error

    def _run_tasks(self, payload: bytes) -> list[tuple[str, str, str]]:
        """Run one task per split.

        :returns: split, kind and message of each error that no repetition can cure.
        """
        import pyarrow as pa

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from airflow_ckpt_provider.spark.stage import run_task

            return run_task(payload, batches)

        tasks = pa.table(
            {"splits": [msgspec.json.encode(of_task).decode() for of_task in splits_of_tasks(list(self._splits.values()))]}
        )
        settings = {
            "spark.sql.leafNodeDefaultParallelism": str(tasks.num_rows),
            "spark.sql.execution.arrow.localRelationThreshold": "1g",
        }
        with spark_settings(self._spark, settings):
            frame = self._spark.createDataFrame(tasks).mapInArrow(task, "split string, error string, message string")
            return [(row["split"], row["error"], row["message"]) for row in frame.collect() if row["error"]]

    def _failure(self) -> TerminalError:
        """The first failure, as the error it was, with how many there are."""
        split_id, kind, message = min(self._failures)
        more = f" ({len(self._failures) - 1} more splits failed too)" if len(self._failures) > 1 else ""
        return terminal_error(kind, f"Split {split_id} of the key {self._checkpoint.key.value!r}{more}: {message}")


def splits_of_tasks(splits: Sequence[Split]) -> list[list[Split]]:
    """The splits of each task: one, or some tiny ones that follow each other, if there are many.

    :param splits: in the order in which they are to be staged.
    """
    at_most = min(_MOST_OF_A_TASK, -(-len(splits) // _MANY_SPLITS))
    tasks: list[list[Split]] = []
    size = 0
    for split in splits:
        if not tasks or len(tasks[-1]) >= at_most or size + split.bytes > _BYTES_OF_A_TASK:
            tasks.append([])
            size = 0
        tasks[-1].append(split)
        size += split.bytes
    return tasks


def run_task(payload: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a Spark task runs on the executor.

    An error that no repetition can cure is returned as a row, not raised, so that Spark does not repeat the task.
    """
    import pickle

    import pyarrow as pa
    from pyspark import TaskContext

    work: SplitWork = pickle.loads(payload)  # noqa: S301 - from this attempt's driver, over Spark's own channel
    context = TaskContext.get()
    task_attempt = str(context.taskAttemptId()) if context else uuid.uuid4().hex[:8]
    for batch in batches:
        of_task = [
            split for text in batch.column("splits").to_pylist() for split in msgspec.json.decode(text, type=known(list[Split]))
        ]
        for split in of_task:
            error = message = None
            try:
                work.run(split, task_attempt, repeated=context is not None and context.attemptNumber() > 0)
            except TerminalError as problem:
                error, message = type(problem).__name__, str(problem)
            row: dict[str, Any] = {"split": [split.id], "error": [error], "message": [message]}
            yield pa.RecordBatch.from_pydict(row, schema=pa.schema([(name, pa.string()) for name in row]))


@contextlib.contextmanager
def spark_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """``settings`` on ``spark`` for a while: it may be the user's own session."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
