"""CPU time and memory of this process with everything it started: the JVM, Spark's Python daemon and its workers.

Reads ``/proc``, so it runs on Linux only.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """User and system time of this process and all its descendants, with those that have ended and were waited for."""
    ticks = 0
    for pid in _tree():
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            # utime, stime, and cutime, cstime: those of children that were waited for.
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


@contextmanager
def peak_worker_mib() -> Iterator[list[float]]:
    """The highest resident size that any of Spark's Python workers reached, in MiB, as the only item of the list."""
    peak = [0.0]
    done = threading.Event()

    def look() -> None:
        while True:
            last = done.wait(0.2)
            peak[0] = max([peak[0], *map(_high_water_mib, _workers())])
            if last:
                return

    watcher = threading.Thread(target=look, name="peak-memory")
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _tree() -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def _workers() -> list[int]:
    """Spark forks its workers from a daemon, so they share its command line."""
    found = []
    for pid in _tree():
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"pyspark.daemon" in (_PROC / str(pid) / "cmdline").read_bytes():
                found.append(pid)
    return found


def _high_water_mib(pid: int) -> float:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
