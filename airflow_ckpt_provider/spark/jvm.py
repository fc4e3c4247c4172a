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
import threading
import time
from typing import TYPE_CHECKING, Self

import psutil

from airflow_ckpt_provider.checkpoint.secrets import is_secret, without_credentials
from airflow_ckpt_provider.exceptions import StoppedError
from airflow_ckpt_provider.spark.java import require_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

#: Settings that do nothing once the JVM runs.
_FOR_THE_START = ("spark.jars", "spark.submit.", "spark.driver.extra", "spark.driver.default")

_KILL_AGAIN_S = 0.2

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"

#: Of the module that Spark computes with, at every start, whatever its logging is set to. No user can act on it.
_SAID_BY_EVERY_JVM = b"WARNING: Using incubator modules: jdk.incubator.vector"

_STDERR = 2

#: Seconds to wait for the last words of a JVM that did not start.
_SAYING_S = 2.0


class Starting:
    """The start of a session, which can be stopped: whatever processes it has started are killed then.

    PySpark waits for its JVM, and a JVM for a cluster that has no room, for minutes or without end. A JVM outlives the process that
    started it for as long as it does not look at its standard input, which it does when it is up.
    """

    def __init__(self) -> None:
        #: Set when the start is to be stopped.
        self.stopping = threading.Event()
        self._before: set[int] | None = None

    def __enter__(self) -> Self:
        self._before = {process.pid for process in _children()}
        if self.stopping.is_set():
            raise StoppedError("It was stopped before a Spark session was started.")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and (self.stopping.is_set() or not isinstance(error, Exception)):
            # A signal handler may have raised, or a process been started after the others were killed.
            self._kill()
        self._before = None
        if isinstance(error, Exception) and self.stopping.is_set():
            raise StoppedError("It was stopped while the Spark session was starting. What is staged stays staged.") from error

    def stop(self) -> None:
        """Stop the start, if it is under way, or keep it from beginning. Safe in a signal handler."""
        self.stopping.set()
        if self._before is not None:
            self._kill()
            # A process may be about to be started.
            threading.Thread(target=self._kill_all, name="checkpoint-stop-start", daemon=True).start()

    def _kill_all(self) -> None:
        while self._before is not None:
            self._kill()
            time.sleep(_KILL_AGAIN_S)

    def _kill(self) -> None:
        before = self._before
        for process in _children():
            if before is not None and process.pid not in before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def _children() -> list[psutil.Process]:
    return list(psutil.Process().children(recursive=True))


def start_jvm(master: str, name: str, settings: Mapping[str, str], stopping: threading.Event) -> None:
    """Start the JVM of this process if there is none.

    :param master: Spark master.
    :param name: application name.
    :param settings: all settings of the session; the secret ones are set on its context later.
    :param stopping: set when it is not to be started any more.
    :raises InvalidInputError: if there is no Java that Spark can run on.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:  # noqa: SLF001
        return
    require_java()
    shown = SparkConf(loadDefaults=False).setMaster(without_credentials(master)).setAppName(name)
    early = {}
    for key, value in settings.items():
        if not is_secret(key, value):
            shown.set(key, value)
        elif key.startswith(_FOR_THE_START):
            early[key] = value
    if stopping.is_set():
        raise StoppedError("It was stopped before a JVM was started.")
    with _properties(early), _said_by_jvm() as stderr:
        # In a group of its own: Airflow sends its SIGTERM to all of the task's group, and a JVM that ends first leaves the driver
        # talking to nobody. It ends when the driver does, whose end of its standard input is closed then.
        gateway = launch_gateway(shown, {"stderr": stderr, "start_new_session": True})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - whatever else starts it takes all settings


@contextlib.contextmanager
def _said_by_jvm() -> Iterator[int]:
    """A file descriptor for what the JVM says: all of it goes where this process says its own, but for what every JVM says."""
    read, write = os.pipe()
    passing = threading.Thread(target=_pass_on, args=(read,), name="checkpoint-jvm-stderr", daemon=True)
    # Before the JVM is there: what it says while it starts may be more than a pipe holds.
    passing.start()
    try:
        yield write
    except BaseException:
        os.close(write)
        # Why it did not start comes before the error.
        passing.join(_SAYING_S)
        raise
    os.close(write)


def _pass_on(read: int) -> None:
    with os.fdopen(read, "rb") as said:
        for line in said:
            if not line.startswith(_SAID_BY_EVERY_JVM):
                with contextlib.suppress(OSError):
                    os.write(_STDERR, line)


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
