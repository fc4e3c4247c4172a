"""What a table's owner does to it while checkpoints are under way: other appends, expiry, roll-backs, edited properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.world import rows

from airflow_ckpt_provider.tables.iceberg.history import PROPERTY_PREFIX

if TYPE_CHECKING:
    from support.world import World

#: First id of rows that other writers append: apart from all ids of checkpoints.
FOREIGN = 1_000_000


def foreign_append(world: World, start: int = FOREIGN, count: int = 5) -> list[int]:
    """Append rows as a writer does who knows nothing of checkpoints."""
    table = world.table()
    table.append(rows(start, count).cast(table.schema().as_arrow()))
    return list(range(start, start + count))


def expire_all_but_the_head(world: World) -> None:
    table = world.table()
    head = table.current_snapshot().snapshot_id
    old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != head]
    table.maintenance.expire_snapshots().by_ids(old).commit()


def forget_commits(world: World) -> None:
    """Remove our properties from the table, as somebody does who tidies up."""
    table = world.table()
    names = [name for name in table.properties if name.startswith(PROPERTY_PREFIX)]
    with table.transaction() as transaction:
        transaction.remove_properties(*names)


def roll_back_to(world: World, snapshot_id: int) -> None:
    world.table().manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


def forget_the_record(world: World, checkpoint) -> None:
    """Take the commit record away: what a crash between the table's commit and the record leaves."""
    (world.root / "store" / checkpoint.paths.commit).unlink()
