"""The Spark session of one stage: in this process against a master, or a Spark Connect client."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import re
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.secrets import REDACTED, without_credentials
from airflow_ckpt_provider.exceptions import InvalidInputError, PySparkVersionError
from airflow_ckpt_provider.spark.code_shipping import is_connect, ship_package
from airflow_ckpt_provider.spark.connect import require_reachable
from airflow_ckpt_provider.spark.jvm import Starting, start_jvm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

#: Master used when no Spark connection is set up.
DEFAULT_MASTER = "local[*]"

_LOCAL = re.compile(r"^local(\[.*\])?$")
_LOOPBACK = re.compile(r"^(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:\d+)?$")

#: Settings of an Airflow Spark connection's extra that are not Spark's own names.
_EXTRA = {"queue": "spark.yarn.queue", "namespace": "spark.kubernetes.namespace"}


@dataclass(frozen=True)
class SparkTarget:
    """Where a stage runs.

    :param master: Spark master, such as ``local[2]`` or ``spark://host:7077``; empty for Spark Connect.
    :param remote: Spark Connect URL, with its token: never shown.
    :param conf: Spark configuration on top of it.
    :param conn_id: id of the connection it is from, for messages.
    """

    master: str = field(default=DEFAULT_MASTER, repr=False)
    remote: str = field(default="", repr=False)
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    conn_id: str = ""

    @property
    def in_process(self) -> bool:
        """True if the executors are threads of this machine's driver."""
        return bool(_LOCAL.match(self.master)) and not self.remote

    @property
    def on_this_machine(self) -> bool:
        """True if executors see this machine's file system.

        A Connect server is never counted: ``sc://localhost`` is as often a tunnel into a cluster.
        """
        scheme, _, hosts = self.master.partition("://")
        return self.in_process or (scheme == "spark" and all(_LOOPBACK.match(host) for host in hosts.split(",")))

    @property
    def name(self) -> str:
        """What to show of it."""
        return "Spark Connect" if self.remote else f"Spark {without_credentials(self.master)}"


def require_equal_pyspark() -> None:
    """Refuse to start with ``pyspark`` and ``pyspark-client`` at different versions.

    Both own the files of the package ``pyspark``; at unequal versions the one installed last wins, file by file, and Python
    tasks fail with errors that do not say why.

    :raises PySparkVersionError: saying which versions there are.
    """
    versions = {}
    for name in ("pyspark", "pyspark-client"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    if "pyspark" not in versions and "pyspark-client" not in versions:
        raise PySparkVersionError("pyspark is not installed. Install it: pip install 'pyspark==4.2.0' 'pyspark-client==4.2.0'.")
    if len(set(versions.values())) > 1:
        raise PySparkVersionError(
            f"pyspark {versions['pyspark']} and pyspark-client {versions['pyspark-client']} are both installed. They overwrite "
            "each other's files, so that Python tasks fail at random. Install equal versions, both in one command: "
            f"pip install --force-reinstall --no-deps 'pyspark=={versions['pyspark-client']}' "
            f"'pyspark-client=={versions['pyspark-client']}'."
        )


@contextlib.contextmanager
def spark_session(target: SparkTarget, name: str, starting: Starting | None = None) -> Iterator[SparkSession]:
    """A Spark session with this package on its executors, stopped on leaving unless it was there before.

    A process has one classic Spark context, so one that is active is used as it is. A Connect session is always an own one.

    :param name: application name, as the Spark UI shows it.
    :param starting: what can stop the start from another thread or a signal handler.
    """
    starting = starting or Starting()
    require_equal_pyspark()
    quiet()
    with contextlib.ExitStack() as stack:
        if target.remote and "SPARK_CONNECT_MODE_ENABLED" not in os.environ:
            # The mark that Connect leaves on a process, and that would turn every later session into a Connect client.
            stack.callback(os.environ.pop, "SPARK_CONNECT_MODE_ENABLED", None)
        with _environment(target), starting:
            spark, ours = _open(target, name, starting)
        if ours:
            stack.callback(spark.stop)
        with_package(spark)
        yield spark


def _runs_here(spark: SparkSession) -> bool:
    """Whether executors are threads of this process's own driver."""
    return not is_connect(spark) and bool(_LOCAL.match(spark.conf.get("spark.master") or ""))


def with_package(spark: SparkSession) -> None:
    """Put this package on the executors of a session, unless they are threads of this process."""
    if not _runs_here(spark):
        ship_package(spark)


@contextlib.contextmanager
def same_python(spark: SparkSession) -> Iterator[None]:
    """Within the block, tasks of a session of the user's own run this very Python, if nobody has said which, and they are local.

    PySpark would run whatever ``python3`` is on the path, which may lack what this process has.
    """
    if not _runs_here(spark):
        yield
        return
    context: Any = spark.sparkContext
    before = context.pythonExec
    if "PYSPARK_PYTHON" not in os.environ and before == "python3":
        context.pythonExec = sys.executable
    try:
        yield
    finally:
        context.pythonExec = before


def _open(target: SparkTarget, name: str, starting: Starting) -> tuple[SparkSession, bool]:
    """A session, and whether it is ours to stop."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if target.remote:
        require_reachable(target.remote, target.conn_id, starting.stopping)
        builder = builder.remote(target.remote)
        for key, value in target.conf.items():
            builder = builder.config(key, value)
        return builder.create(), True
    before = SparkSession.getActiveSession()
    if before is not None:
        return before, False
    builder = builder.master(target.master)
    settings = _defaults(target) | dict(target.conf)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # PySpark forks to start its JVM, and the child does nothing else: it never comes to Lance, and takes no lock.
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
        start_jvm(target.master, name, settings, starting.stopping)
        return builder.getOrCreate(), True


def _defaults(target: SparkTarget) -> dict[str, str]:
    """Spark settings that the user may override."""
    # What its user interface and event log show as redacted; Spark's own pattern leaves out the keys of Azure and Google.
    settings = {"spark.ui.showConsoleProgress": "false", "spark.redaction.regex": REDACTED}
    if target.on_this_machine:
        # Nothing outside this machine talks to the driver; a host name that resolves elsewhere must not stop it.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if target.in_process:
        settings["spark.ui.enabled"] = "false"
        if not {"SPARK_HOME", "SPARK_CONF_DIR"} & os.environ.keys():
            # Only where no administrator has set up logging.
            logging_conf = Path(__file__).with_name("log4j2.properties").as_uri()
            settings["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={logging_conf}"
    return settings


@contextlib.contextmanager
def _environment(target: SparkTarget) -> Iterator[None]:
    """Variables that Spark reads when a session starts.

    Executors on this machine run this very Python, not whatever ``python3`` is on the path. The setting
    ``spark.pyspark.python`` comes before the variable, as it does in ``spark-submit``.
    """
    wanted = {}
    python = target.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    if python or target.on_this_machine:
        wanted["PYSPARK_PYTHON"] = python or sys.executable
    if target.on_this_machine:
        wanted["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def quiet() -> None:
    """Keep out of the task log what no user can act on: a warning about pandas, which no stage uses, and py4j's own log."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    py4j = logging.getLogger("py4j")
    if py4j.level == logging.NOTSET:
        py4j.setLevel(logging.WARNING)


def target_of(
    conn_type: str | None, host: str, port: int | None, extra: Mapping[str, object], conf: Mapping[str, str]
) -> SparkTarget:
    """Where a connection of type ``spark`` points.

    :param host: master without or with its port, such as ``spark://host`` or ``local[4]``.
    :param extra: the connection's extra; ``deploy-mode`` other than client is refused, Spark settings are taken.
    :raises InvalidInputError: if it is no place a stage can run at.
    """
    if extra.get("deploy-mode", "client") not in {"client", "", None}:
        raise InvalidInputError(
            f"The Spark connection asks for deploy-mode {extra['deploy-mode']!r}. This version runs the driver in the Airflow task "
            "(client mode) only; remove deploy-mode from the connection's extra."
        )
    if not host:
        raise InvalidInputError(f"The connection of type {conn_type!r} has no host: put the Spark master there, such as local[*].")
    master = f"{host}:{port}" if port else host
    settings = {key: str(value) for key, value in extra.items() if key.startswith("spark.")}
    settings |= {setting: str(extra[name]) for name, setting in _EXTRA.items() if extra.get(name)}
    return SparkTarget(master=master, conf=settings | dict(conf))
