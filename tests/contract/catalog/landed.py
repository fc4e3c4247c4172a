"""What must be found after one write of twenty rows, and before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract.catalog.modes import TABLE, rows
from protocol.crash.exactly_once import assert_exactly_once, own_snapshots
from support.readers import assert_same_everywhere

if TYPE_CHECKING:
    from contract.catalog.modes import Mode
    from support.world import World


def assert_landed(world: World, mode: Mode, key: str = "orders") -> None:
    """The write is there, once, as the mode says, for every reader."""
    expected = mode.expected(rows(0, 20))
    assert_exactly_once(world, sorted(row["id"] for row in expected), (key,))
    assert_same_everywhere(world.table(), expected)


def assert_nothing_landed(world: World, mode: Mode) -> None:
    """The table is as it was, or still not there."""
    if mode.creates:
        assert not world.catalog.table_exists(TABLE)
    else:
        assert own_snapshots(world) == []
        assert_same_everywhere(world.table(), mode.before)
