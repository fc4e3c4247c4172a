"""CPU time and memory of a process with everything it started: the JVM, Spark's Python daemon and its workers.

Reads ``/proc``, so it runs on Linux only.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


#: Seconds between two looks at who is there: a process that ends takes at most so much of its time with it.
_LOOK_EVERY_S = 0.25

_looking = threading.Lock()
_seen: dict[tuple[int, int], int] = {}
_looker: threading.Thread | None = None


def cpu_seconds() -> float:
    """User and system time of this process and of all that it has ever started, since the first call.

    Those that have ended count as they were when they were seen last: whether the one that started them has waited for them, so
    that the kernel adds their time to its own, is chance. Spark's Python workers are ended so.
    """
    global _looker  # noqa: PLW0603 - one for the process
    if _looker is None:
        _looker = threading.Thread(target=_keep_looking, name="cpu-seconds", daemon=True)
        _looker.start()
    return _look() / _TICKS


def _keep_looking() -> None:
    while True:
        time.sleep(_LOOK_EVERY_S)
        _look()


def _look() -> int:
    """The ticks of all processes, each as it was seen last."""
    with _looking:
        for pid in tree():
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
                # Its number may be another process's later; the time of its start tells them apart.
                _seen[pid, int(fields[19])] = int(fields[11]) + int(fields[12])
        return sum(_seen.values())


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


def tree(root: int | None = None) -> list[int]:
    """A process, this one if none is given, and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [os.getpid() if root is None else root]
    for pid in found:
        found += children.get(pid, [])
    return found


class Memory(NamedTuple):
    """Memory of a process with its descendants, in MiB.

    Proportional set sizes: memory that forked processes share is counted once.
    """

    everything: float = 0.0
    without_jvm: float = 0.0
    largest: float = 0.0

    def or_more(self, other: Memory) -> Memory:
        """The larger of each figure."""
        return Memory(*map(max, self, other))


def memory_of(root: int) -> Memory:
    """What a process and its descendants have now."""
    found: list[float] = []
    java = 0.0
    for pid in tree(root):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            mib = _proportional_mib(pid)
            found.append(mib)
            if (_PROC / str(pid) / "comm").read_text().strip() == "java":
                java += mib
    return Memory(sum(found), sum(found) - java, max(found, default=0.0))


def high_water_mib() -> float:
    """The highest resident size that this process has reached, in MiB."""
    return _high_water_mib(os.getpid())


def _proportional_mib(pid: int) -> float:
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _workers() -> list[int]:
    """Spark forks its workers from a daemon, so they share its command line."""
    found = []
    for pid in tree():
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
