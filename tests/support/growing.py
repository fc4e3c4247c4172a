"""A table that grows, and the runs of a task that copies what is new in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.sources import IcebergTable
from support.foreign import options_of, rows
from support.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_ckpt_provider.write.groups import Settled
    from airflow_ckpt_provider.write.request import WriteRequest


def growing_table(root: Path) -> World:
    """The world of an Iceberg table with two rows."""
    world = World(root)
    world.create_table()
    grow(world, range(2))
    return world


def grow(source: World, ids: range) -> None:
    """Append rows with these ids."""
    source.table().append(rows(ids.start, len(ids)))


def request(world: World, source: World, key: str, reads: IcebergTable | None = None, **changes: Any) -> WriteRequest:
    """A run of the task, which writes into ``world``."""
    reads = reads or IcebergTable("shop.orders", since="last_commit", max_split_bytes=1)
    return world.request(key, source=reads, options=options_of(source), **changes)


def run(world: World, source: World, key: str, **changes: Any) -> Settled:
    """Stage and commit."""
    (settled,) = world.commit(world.stage(request(world, source, key, **changes)))
    return settled
