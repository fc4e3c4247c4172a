"""Spark as what runs the splits of a write: a session that the first round with something to do starts, or the user's own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from airflow_ckpt_provider.checkpoint.documents import READ
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.frame_transform import FrameTransform
from airflow_ckpt_provider.sources.protocol import PinningSource, SessionSource
from airflow_ckpt_provider.spark.code_shipping import is_connect
from airflow_ckpt_provider.spark.frame.cut import counted_cut
from airflow_ckpt_provider.spark.frame.partitions import PartitionRun, partitions_of
from airflow_ckpt_provider.spark.frame.run import FrameRun
from airflow_ckpt_provider.spark.frame.splits import rows_read
from airflow_ckpt_provider.spark.jvm import Starting
from airflow_ckpt_provider.spark.session import DEFAULT_MASTER, SparkTarget, spark_session, with_package
from airflow_ckpt_provider.spark.stage import StageRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Plan
    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from airflow_ckpt_provider.write.planning import Round
    from airflow_ckpt_provider.write.work import SplitWork


class SparkEngine:
    """Runs splits in a session that is started at its first use, and stopped on leaving if it was.

    :param application: name of the application, as the Spark UI shows it.
    :param starting: told before the session is started.
    :param ready: told what is there once it is: see ``ready_session``.
    """

    def __init__(
        self,
        target: SparkTarget,
        application: str,
        starting: Callable[[SparkTarget], None],
        ready: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.target = target
        self._application = application
        self._starting = starting
        self._ready = ready
        #: Id of the application, once there is one in this process; it stays when the session is stopped.
        self.application: str | None = None
        #: Address of the driver's web page, once there is one in this process.
        self.web_ui: str | None = None
        self._start = Starting()
        self._opened: AbstractContextManager[SparkSession] | None = None
        self._spark: SparkSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._opened is not None:
            self._opened.__exit__(kind, error, trace)

    @property
    def name(self) -> str:
        """The master, without secrets."""
        return self.target.name

    @property
    def started(self) -> bool:
        """Whether a session was started."""
        return self._spark is not None

    def start(self) -> None:
        """Start the session, if it was not."""
        self.session()

    def session(self) -> SparkSession:
        """The session, started now if it was not."""
        if self._spark is None:
            self._starting(self.target)
            began = time.monotonic()
            opened = spark_session(self.target, self._application, self._start)
            self._spark = opened.__enter__()
            self._opened = opened
            self.application = application_of(self._spark)
            self.web_ui = web_ui_of(self._spark)
            self._ready(ready_session(self._spark, time.monotonic() - began))
        return self._spark

    def cancel(self) -> None:
        """Stop the start of the session, or keep it from being started. One that has started stays as it is."""
        self._start.stop()

    def job(self, attempt: WriteAttempt, missing: Round, work: SplitWork) -> StageRun:
        """The missing splits of a round as one Spark job; see ``Engine.job``."""
        return job_of(self.session(), attempt, missing, work)


class SessionEngine:
    """Runs splits in a session of the user's own, which stays as it is."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        #: Whether there was anything to compute.
        self.started = False

    @property
    def target(self) -> SparkTarget:
        """Where the session runs."""
        if is_connect(self.spark):
            return SparkTarget(remote="sc://")
        return SparkTarget(master=self.spark.conf.get("spark.master") or DEFAULT_MASTER)

    @property
    def name(self) -> str:
        """The master, without secrets."""
        return self.target.name

    @property
    def application(self) -> str | None:
        """Id of the application, if it was used and is one of this process."""
        return application_of(self.spark) if self.started else None

    def start(self) -> None:
        """Put this package on the executors."""
        with_package(self.spark)
        self.started = True

    def cancel(self) -> None:
        """There is no start to stop."""

    def job(self, attempt: WriteAttempt, missing: Round, work: SplitWork) -> StageRun:
        """The missing splits of a round as one Spark job; see ``Engine.job``."""
        return job_of(self.spark, attempt, missing, work)


def application_of(spark: SparkSession) -> str | None:
    """Id of the application of a session; None over Spark Connect, whose server has one for all of its sessions."""
    return None if is_connect(spark) else spark.sparkContext.applicationId


def web_ui_of(spark: SparkSession) -> str | None:
    """Address of the web page of a session's driver, as Spark says it.

    :returns: None without one, as with ``spark.ui.enabled=false``, and over Spark Connect, whose driver is elsewhere.
    """
    return None if is_connect(spark) else spark.sparkContext.uiWebUrl


def ready_session(spark: SparkSession, seconds: float) -> str:
    """What there is to know of a session that was started: where a user finds what it does.

    :param seconds: that the start took.
    """
    if is_connect(spark):
        return f"Spark {spark.version} is ready after {seconds:.1f} s, over Spark Connect."
    page = web_ui_of(spark)
    where = f", {page}" if page else ""
    return f"Spark {spark.version} is ready after {seconds:.1f} s: application {spark.sparkContext.applicationId}{where}."


def job_of(spark: SparkSession, attempt: WriteAttempt, missing: Round, work: SplitWork) -> StageRun:
    """The missing splits of a round as one Spark job; see ``Engine.job``."""
    checkpoint, source = attempt.checkpoint, attempt.source
    # What else is missing follows when there is something that it can be computed from.
    buckets = [split for split in missing.missing if split.task == READ]
    if isinstance(source, SessionSource) and buckets:
        plan: Plan = missing.plan
        if isinstance(source, PinningSource):
            source, plan = source.reading(plan)
        run = PartitionRun if source.recover == "partitions" else FrameRun
        return run(spark, checkpoint, work, source, plan, buckets, attempt.check_fit)
    return StageRun(spark, checkpoint, work, missing.missing, len(missing.plan.splits) - len(missing.missing))


def planned_in(source: Source, session: Callable[[], SparkSession]) -> Source:
    """A source that can be planned: a session tells partitions of a DataFrame, and rows of its buckets, when it is asked.

    One that makes a DataFrame of another source can read that in a session, too.
    """
    if isinstance(source, FrameTransform):
        source = source.read_by(rows_read)
    if isinstance(source, SparkDataFrame) and source.is_planned_in_session:
        return source.planned_by(lambda told: partitions_of(session(), told), lambda told: counted_cut(session(), told))
    return source
