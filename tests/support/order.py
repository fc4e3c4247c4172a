"""In which order several processes run all tests: what takes long first, so that no process is left with it in the end.

Each process gets a part of the list, and one that is done steals from the end of another's. Of what starts Airflow, Spark or
processes that crash, one process runs all of a kind: it migrates one database, starts few JVMs, and has one process to fork from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

#: What takes long in one process and without Spark: by module, or by folder.
_LONG = ("protocol/histories/", "protocol/races/", "contract/catalog/", "memory.py", "upsert_row_ids.py", "test_removal.py")


def dealt(items: Iterable[pytest.Item], processes: int) -> list[pytest.Item]:
    """All of them, so that equal parts of the list begin with what takes long."""
    queues: list[list[pytest.Item]] = [[] for _ in range(processes)]
    short: list[pytest.Item] = []
    long: dict[str, list[pytest.Item]] = {}
    for item in items:
        path = item.path.as_posix()
        kind = _kind(item, path)
        if kind is not None:
            queues[kind % processes].append(item)
        elif any(part in path for part in _LONG):
            long.setdefault(path, []).append(item)
        else:
            short.append(item)
    for number, module in enumerate(long.values()):
        queues[number % processes] += module
    left = sum(map(len, queues)) + len(short)
    found: list[pytest.Item] = []
    for number, queue in enumerate(queues):
        share = left // (processes - number)
        left -= share
        count = max(0, share - len(queue))
        found += queue + short[:count]
        short = short[count:]
    return found + short


def _kind(item: pytest.Item, path: str) -> int | None:
    marks = {mark.name for mark in item.iter_markers()}
    if "airflow" in marks:
        return 0
    if marks & {"spark", "cluster"}:
        return 1
    if "crash" in marks:
        return 2 if "lance" in path else 3
    return None
