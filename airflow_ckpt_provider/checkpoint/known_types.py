"""Types that msgspec knows, before several threads ask it for one of them.

Decision: what msgspec has to know of a struct it finds out when it first decodes one, by running Python code, and other threads run
meanwhile. Two threads that decode a type for the first time at once end the process with a segmentation fault (msgspec 0.22.0).
Documents are read by many threads at a time, so each type is made known under a lock.
"""

from __future__ import annotations

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")

_known: set[object] = set()
_lock = threading.Lock()


def known(kind: type[T]) -> type[T]:
    """The type itself, which msgspec knows by now, with all that it consists of."""
    if kind not in _known:
        with _lock:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind
