"""Trying out a store: whether it does what all checkpoints rely on; put-if-absent above all, which some storages only pretend."""

from __future__ import annotations

import contextlib
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.layout import probe
from airflow_ckpt_provider.exceptions import StoreUnusableError

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore

#: Writers that put one name at the same moment, and how often.
RACERS, ROUNDS = 8, 3


def try_out(store: CheckpointStore) -> None:
    """List, put, race, read and remove, in the root of a store. What is put is removed.

    :raises StoreError: if the store does not answer, or does not let these credentials do one of these.
    :raises StoreUnusableError: if it lets two writers put the same object, so that no checkpoint is safe in it.
    """
    store.check()
    for _ in range(ROUNDS):
        name = probe(uuid.uuid4().hex)
        try:
            _race(store, name)
        finally:
            with contextlib.suppress(StoreUnusableError):
                store.remove([name])
    if store.exists(name):
        raise StoreUnusableError(f"The checkpoint store {store.uri} shows an object that was removed: {name}.")


def _race(store: CheckpointStore, name: str) -> None:
    contents = [f"{name} {racer}".encode() for racer in range(RACERS)]
    with ThreadPoolExecutor(RACERS) as pool:
        won = list(pool.map(lambda content: store.put_if_absent(name, content), contents))
    winners = [content for content, is_first in zip(contents, won, strict=True) if is_first]
    if len(winners) != 1:
        raise StoreUnusableError(
            f"{len(winners)} of {RACERS} writers that put the same new object into the checkpoint store {store.uri} at the same "
            "moment were told that they were the first, and it must be one. The storage does not keep conditional writes "
            "(If-None-Match): two attempts could both believe that they have staged a split. Use another storage, or a version of "
            "it that does."
        )
    stored = store.bytes_of(name)
    if stored != winners[0]:
        raise StoreUnusableError(
            f"The checkpoint store {store.uri} told a writer that it was the first to put {name}, and holds what another one put."
        )
