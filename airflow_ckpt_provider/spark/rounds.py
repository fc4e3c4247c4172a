"""All rounds of one attempt, in one Spark session that is started when the first of them has something to do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from airflow_ckpt_provider.checkpoint.documents import READ
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.spark.frame.run import FrameRun
from airflow_ckpt_provider.spark.jvm import Starting
from airflow_ckpt_provider.spark.session import spark_session
from airflow_ckpt_provider.spark.stage import StageRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.spark.attempt import Round, WriteAttempt
    from airflow_ckpt_provider.spark.session import SparkTarget
    from airflow_ckpt_provider.spark.stage import Progress


class LazySession:
    """A session that is started at its first use, and stopped on leaving if it was.

    :param name: application name, as the Spark UI shows it.
    :param starting: told before the session is started.
    """

    def __init__(self, target: SparkTarget, name: str, starting: Callable[[SparkTarget], None]) -> None:
        self.target = target
        self._name = name
        self._starting = starting
        self._start = Starting()
        self._opened: AbstractContextManager[SparkSession] | None = None
        self._spark: SparkSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._opened is not None:
            self._opened.__exit__(kind, error, trace)

    @property
    def started(self) -> bool:
        return self._spark is not None

    def get(self) -> SparkSession:
        """The session."""
        if self._spark is None:
            self._starting(self.target)
            opened = spark_session(self.target, self._name, self._start)
            self._spark = opened.__enter__()
            self._opened = opened
        return self._spark

    def cancel(self) -> None:
        """Stop the start of the session, or keep it from being started. One that has started stays as it is."""
        self._start.stop()


class StageRounds:
    """Stages what an attempt finds missing, round after round. Can be stopped from another thread or a signal handler."""

    def __init__(self, session: LazySession, try_number: int) -> None:
        self._session = session
        self._try_number = try_number
        self._run: StageRun | None = None
        self._cancelled = threading.Event()

    def run(self, attempt: WriteAttempt, announce: Callable[[Round], None], report: Callable[[Progress], None]) -> None:
        """Stage until there is no further round.

        :param announce: told each round before it begins.
        :param report: told the progress every few seconds.
        """
        while (found := attempt.next_round()) is not None:
            announce(found)
            spark = self._session.get()
            self._run = self._stage_run(spark, attempt, found)
            try:
                if self._cancelled.is_set():
                    # It was asked to stop while the session was starting, or between two rounds.
                    self._run.cancel()
                self._run.run(report)
            finally:
                self._run = None

    def cancel(self) -> None:
        """Stop the Spark job, or keep it from starting (I12). What is staged stays staged."""
        self._cancelled.set()
        self._session.cancel()
        if self._run is not None:
            self._run.cancel()

    def _stage_run(self, spark: SparkSession, attempt: WriteAttempt, found: Round) -> StageRun:
        work = attempt.begin(engine=self._session.target.name, try_number=self._try_number)
        checkpoint, source = attempt.checkpoint, attempt.source
        if isinstance(source, SparkDataFrame) and any(split.task == READ for split in found.missing):
            return FrameRun(spark, checkpoint, work, source, found.plan, found.missing, attempt.check_fit)
        return StageRun(spark, checkpoint, work, found.missing, len(found.plan.splits) - len(found.missing))
