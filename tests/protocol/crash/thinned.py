"""Which of many crash points are taken where several tests go through points that differ in little.

A write that is killed at each of its effects is one test for each format; its relatives, in other modes or with other helpers
beside them, take every third point, and not the same ones. ``dev.py matrix --only crashes`` takes all.
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

#: Whether the environment asks for all.
ALL = bool(os.environ.get("CRASH_ALL"))

#: Effects at which it is decided whether rows land: never left out.
_DECISIVE = ("commit of the table", "put g1/group.json")

_EVERY = 3


def some(points: Iterable[T], name: str) -> list[T]:
    """Some of the points, or all of them if the environment asks for it.

    :param points: whose text has the names of their effects.
    :param name: of the test's case; says with which point it begins.
    """
    listed = list(points)
    first = zlib.crc32(name.encode()) % _EVERY
    return [
        point
        for number, point in enumerate(listed)
        if ALL or number % _EVERY == first or any(effect in str(point) for effect in _DECISIVE)
    ]
