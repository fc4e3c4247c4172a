"""Writes that have landed, and stores as they look weeks later."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from support.world import World


def landed(world: World, key: str = "orders/1", **changes: Any) -> Checkpoint:
    """Stage and commit a key."""
    attempt = world.stage(world.request(key, **changes))
    world.commit(attempt)
    return attempt.checkpoint


def grow_old(world: World, key: str | None = None, days: int = 15) -> None:
    """Let all objects of the store, or of one key, have been put that many days ago, as the store's own clock has it."""
    at = time.time() - days * 86_400
    folder = world.root / "store"
    for path in (folder / IdempotenceKey(key).hash if key else folder).rglob("*"):
        if path.is_file():
            os.utime(path, (at, at))
