"""The Spark session of one stage: in this process against a master, or a Spark Connect client."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError, PySparkVersionError
from airflow_ckpt_provider.spark.ship import zipped_package

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

#: Master used when no Spark connection is set up.
DEFAULT_MASTER = "local[*]"

_LOCAL = re.compile(r"^local(\[.*\])?$")
_LOOPBACK = re.compile(r"^\w+://(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:\d+)?(,|$)")


@dataclass(frozen=True)
class SparkTarget:
    """Where a stage runs.

    :param master: Spark master, such as ``local[2]`` or ``spark://host:7077``; empty for Spark Connect.
    :param remote: Spark Connect URL, with its token: never shown.
    :param conf: Spark configuration on top of it.
    """

    master: str = DEFAULT_MASTER
    remote: str = field(default="", repr=False)
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def in_process(self) -> bool:
        """True if the executors are threads of this machine's driver."""
        return bool(_LOCAL.match(self.master)) and not self.remote

    @property
    def on_this_machine(self) -> bool:
        """True if executors see this machine's file system."""
        return self.in_process or bool(_LOOPBACK.match(self.master))

    @property
    def name(self) -> str:
        """What to show of it."""
        return "Spark Connect" if self.remote else f"Spark {self.master}"


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
            f"pyspark {versions['pyspark']} and pyspark-client {versions['pyspark-client']} are both installed. They overwrite each "
            "other's files, so that Python tasks fail at random. Install equal versions, both in one command: "
            f"pip install --force-reinstall --no-deps 'pyspark=={versions['pyspark-client']}' "
            f"'pyspark-client=={versions['pyspark-client']}'."
        )


@contextlib.contextmanager
def spark_session(target: SparkTarget, name: str) -> Iterator[SparkSession]:
    """A Spark session, stopped on leaving unless it was there before.

    :param name: application name, as the Spark UI shows it.
    """
    require_equal_pyspark()
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    with _python_of(target):
        if before is not None:
            yield before
            return
        spark = _builder(target, name).getOrCreate()
        try:
            if not target.in_process:
                with zipped_package() as path:
                    spark.addArtifacts(str(path), pyfile=True)
                    yield spark
            else:
                yield spark
        finally:
            spark.stop()


def _builder(target: SparkTarget, name: str) -> SparkSession.Builder:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    defaults = {} if target.remote else {"spark.ui.showConsoleProgress": "false"}
    if target.remote:
        builder = builder.remote(target.remote)
    else:
        builder = builder.master(target.master)
    if target.in_process:
        # Nothing outside this machine talks to the driver; a host name that resolves elsewhere must not stop it.
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
    for key, value in (defaults | dict(target.conf)).items():
        builder = builder.config(key, value)
    return builder


@contextlib.contextmanager
def _python_of(target: SparkTarget) -> Iterator[None]:
    """Executors on this machine run this very Python, not whatever ``python3`` is on the path."""
    python = target.conf.get("spark.pyspark.python") or (sys.executable if target.on_this_machine else None)
    if python is None or "PYSPARK_PYTHON" in os.environ:
        yield
        return
    os.environ["PYSPARK_PYTHON"] = python
    try:
        yield
    finally:
        os.environ.pop("PYSPARK_PYTHON", None)


def target_of(conn_type: str, host: str, port: int | None, extra: Mapping[str, object], conf: Mapping[str, str]) -> SparkTarget:
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
    if extra.get("queue"):
        settings["spark.yarn.queue"] = str(extra["queue"])
    return SparkTarget(master=master, conf=settings | dict(conf))
