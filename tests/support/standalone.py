"""A real Spark cluster on loopback: a standalone master and workers, or a Connect server, from the installed pyspark.

Only processes that were started here are ever signalled, by their id.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyspark

import airflow_ckpt_provider
from support import jvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOME = Path(pyspark.__file__).parent
START_S = 120.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Wait until ``condition`` is true, and return what it returned."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    """True if the process runs; a zombie that nobody waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
    return found


def python_without_the_package(folder: Path) -> Path:
    """A Python with everything that executors need installed, but not this project."""
    root = str(Path(airflow_ckpt_provider.__file__).parent.parent)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.path = [path for path in sys.path if path != {root!r}]\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


class Standalone:
    """A master and workers of two cores each, every worker at a loopback address of its own.

    Spark never speculates on the host where the slow task is, so workers of one host would never race.

    :param folder: where logs and work directories go.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.port, self._ui = free_port(), free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._workers = workers

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            web = str(self._ui)
            self._start(
                "master", "org.apache.spark.deploy.master.Master", "127.0.0.1", "--port", str(self.port), "--webui-port", web
            )
            # A worker that finds no master tries again only after seconds.
            wait_until(lambda: _listens(self.port) and self._state() is not None, "the master", START_S)
            for number in range(self._workers):
                self.start_worker(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            stop(process)

    def start_worker(self, number: int) -> None:
        before = self._alive_workers()
        name = f"worker-{number}"
        arguments = ["--webui-port", str(free_port()), "--cores", "2", "--memory", "2g", "--work-dir", str(self.folder / name)]
        self._start(name, "org.apache.spark.deploy.worker.Worker", f"127.0.0.{number + 1}", *arguments, self.url)
        wait_until(lambda: self._alive_workers() > before, f"{name} at the master", START_S)

    def kill_worker(self, number: int) -> None:
        process = self._processes.pop(f"worker-{number}")
        process.kill()
        process.wait()
        wait_until(lambda: self._alive_workers() == len(self._processes) - 1, f"the master to miss worker {number}")

    def executors(self, number: int) -> list[int]:
        """Ids of the executor JVMs that a worker runs."""
        return children(self._processes[f"worker-{number}"].pid)

    def _start(self, name: str, main: str, host: str, *arguments: str) -> None:
        command = [main, "--host", host, *arguments]
        self._processes[name] = spark_class(self.folder / f"{name}.log", *command, SPARK_LOCAL_IP=host)

    def _alive_workers(self) -> int:
        state = self._state()
        return 0 if state is None else sum(worker["state"] == "ALIVE" for worker in state["workers"])

    def _state(self) -> Any:
        """What the master's page says as JSON; None before it says anything."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ui}/json/", timeout=10) as answer:
                return json.load(answer)
        # While it starts, the page is there a moment before its JSON is, and answers for it.
        except (urllib.error.URLError, ConnectionError, json.JSONDecodeError):
            return None


@contextlib.contextmanager
def connect_server(folder: Path, python: Path) -> Iterator[str]:
    """The URL of a Spark Connect server on two local cores, whose tasks run ``python``."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = ["--class", main, "--master", "local[2]", *options, "spark-internal"]
    variables = {"PYSPARK_PYTHON": str(python), "SPARK_DAEMON_MEMORY": "1g"}
    process = spark_class(folder / "connect.log", "org.apache.spark.deploy.SparkSubmit", *submit, **variables)
    try:
        wait_until(lambda: _listens(port) or process.poll() is not None, "the Connect server", START_S)
        assert process.poll() is None, (folder / "connect.log").read_text()
        yield f"sc://127.0.0.1:{port}"
    finally:
        stop(process)


def spark_class(log: Path, *command: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start a Spark daemon. ``spark-class`` becomes the JVM, so the process is the daemon."""
    own = {
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(log.parent / "local"),
        # Also of the executors that it starts.
        "JDK_JAVA_OPTIONS": jvm.options(),
    }
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *command],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | own | variables,
            cwd=log.parent,
        )


def stop(process: subprocess.Popen[bytes], how: int = signal.SIGTERM) -> None:
    """End a process that was started here, and wait for it."""
    if process.poll() is None:
        process.send_signal(how)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
