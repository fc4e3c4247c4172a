"""Starting Spark's JVM without a secret on its command line, which every user of the machine can read.

PySpark puts all settings there. Those that are secret reach the JVM later, over the socket between the two processes, when the
context is made. The few that are needed before that, such as a repository of jars with a password, are in a file of mode 0600
that is gone when the JVM runs.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.secrets import is_secret, without_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Settings that do nothing once the JVM runs.
_FOR_THE_START = ("spark.jars", "spark.submit.", "spark.driver.extra", "spark.driver.default")

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


def start_jvm(master: str, name: str, settings: Mapping[str, str]) -> None:
    """Start the JVM of this process if there is none.

    :param master: Spark master.
    :param name: application name.
    :param settings: all settings of the session; the secret ones are set on its context later.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is not None:  # noqa: SLF001
        return
    shown = SparkConf(loadDefaults=False).setMaster(without_credentials(master)).setAppName(name)
    early = {}
    for key, value in settings.items():
        if not is_secret(key, value):
            shown.set(key, value)
        elif key.startswith(_FOR_THE_START):
            early[key] = value
    with _properties(early):
        SparkContext._ensure_initialized(conf=shown)  # noqa: SLF001 - whatever else starts it takes all settings


@contextlib.contextmanager
def _properties(settings: Mapping[str, str]) -> Iterator[None]:
    """Have ``spark-submit`` read ``settings`` from a file that only this user can read, for as long as this lasts."""
    if not settings:
        yield
        return
    before = os.environ.get(_ARGUMENTS)
    # Made with the mode 0600.
    handle, path = tempfile.mkstemp(prefix="airflow-ckpt-", suffix=".conf")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{key} {_escaped(value)}\n" for key, value in settings.items())
        os.environ[_ARGUMENTS] = f"--load-spark-defaults --properties-file {shlex.quote(path)} {before or 'pyspark-shell'}"
        yield
    finally:
        os.unlink(path)
        if before is None:
            os.environ.pop(_ARGUMENTS, None)
        else:
            os.environ[_ARGUMENTS] = before


def _escaped(value: str) -> str:
    """A value of a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
