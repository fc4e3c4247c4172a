"""Requests to checkpoint stores, counted where the library of the stores makes them."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import mock

import obstore

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What asks an object store for anything.
_OPERATIONS = ("put", "get", "head", "list", "list_with_delimiter", "delete")


class Requests(Counter[str]):
    """How often each operation was asked for, and the bytes that were put."""

    bytes_put: int = 0


@contextlib.contextmanager
def counted() -> Iterator[Requests]:
    """Count what this process asks of object stores."""
    requests, lock = Requests(), threading.Lock()

    def counting(name: str, original: Any) -> Any:
        def ask(*args: Any, **settings: Any) -> Any:
            with lock:
                requests[name] += 1
                if name == "put":
                    requests.bytes_put += len(args[2])
            return original(*args, **settings)

        return ask

    with contextlib.ExitStack() as patches:
        for name in _OPERATIONS:
            patches.enter_context(mock.patch.object(obstore, name, counting(name, getattr(obstore, name))))
        yield requests
