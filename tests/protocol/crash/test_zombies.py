"""A process that hangs at any effect while others do the same work, and wakes up when they are done: nothing is doubled.

The zombie is suspended by a signal, not by a hook, so that it goes on in the middle of whatever it was doing.
"""

from __future__ import annotations

import itertools
import signal

import pytest
from protocol.crash.exactly_once import assert_exactly_once, assert_files_are_known, own_snapshots
from protocol.crash.maintenance import expire_all_but_the_head, foreign_append
from protocol.crash.points import said
from protocol.crash.scenarios import MAPPED, PIECES, UNPARTITIONED
from protocol.crash.thinned import some
from protocol.crash.worlds import Prepared

pytestmark = pytest.mark.crash

#: How a zombie may end: it finished, or it was told that its work is not wanted any more.
HARMLESS = {None, "DiscardedError", "RestartRefusedError"}

CHANGED = {"marked": True, "on_change": "restart"}


def suspended(runs, world, scenario, at, writes=()):
    run = runs.run(world, *(writes or scenario.writes), fatal=at, how=signal.SIGSTOP)
    # It may be over, or refused, before it gets that far.
    assert run.suspended == (0 < at == len(run.effects))
    return run


def resume(runs, zombie):
    if zombie.suspended:
        runs.resume(zombie)
    assert zombie.signal == 0
    assert zombie.error in HARMLESS, zombie.found["traceback"]


def whole(runs, root, scenario):
    return runs.run(scenario.world(root), *scenario.writes)


def effects_of(runs, root, scenario):
    return whole(runs, root, scenario).effects


@pytest.mark.parametrize("scenario", [UNPARTITIONED, MAPPED, PIECES], ids=lambda scenario: scenario.name)
def test_a_zombie_that_wakes_up_after_its_retry_has_committed_changes_nothing(runs, tmp_path, scenario):
    stops = whole(runs, tmp_path / "whole", scenario).stops
    worlds = Prepared(tmp_path / "world", scenario.world)
    problems = []
    for number, name in stops if scenario is UNPARTITIONED else some(stops, scenario.name):
        world = worlds.again()
        zombie = suspended(runs, world, scenario, number)
        retry = runs.run(world, *scenario.writes)
        try:
            assert retry.result
            snapshot = world.table().current_snapshot().snapshot_id
            resume(runs, zombie)
            assert zombie.error is None
            assert world.table().current_snapshot().snapshot_id == snapshot
            assert_exactly_once(world, scenario.ids, scenario.keys)
        except AssertionError as error:
            problems.append(f"suspended at {number} {name}: {said(error)}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("scenario", "apart"), [(UNPARTITIONED, 8), (PIECES, 16)], ids=["whole", "in pieces"])
def test_a_zombie_and_its_retry_that_take_turns_publish_each_split_once(runs, tmp_path, scenario, apart):
    total = len(effects_of(runs, tmp_path / "whole", scenario))
    worlds = Prepared(tmp_path / "world", scenario.world)
    for first, second in itertools.product(range(5, total, apart), range(2, total, 2 * apart - 3)):
        world = worlds.again()
        zombie = suspended(runs, world, scenario, first)
        retry = suspended(runs, world, scenario, second)
        resume(runs, zombie)
        resume(runs, retry)
        assert (zombie.error, retry.error) == (None, None), f"{first}, {second}: {zombie.found} {retry.found}"
        assert_exactly_once(world, scenario.ids)


def test_a_zombie_of_a_discarded_generation_never_lands_beside_the_newer_one(runs, tmp_path):
    """The commit of generation 1 against a restart, at every effect of the first and some of the second."""
    effects = effects_of(runs, tmp_path / "whole", UNPARTITIONED)
    bound = effects.index("before put g1/group.json")
    worlds = Prepared(tmp_path / "world", UNPARTITIONED.world)
    problems = []
    for first, second in itertools.product([9, *range(bound, len(effects) + 1)], [3, 40, 46]):
        world = worlds.again()
        zombie = suspended(runs, world, UNPARTITIONED, first)
        newer = suspended(runs, world, UNPARTITIONED, second, (CHANGED,))
        try:
            resume(runs, zombie)
            resume(runs, newer)
            kinds = set(world.table().scan().to_arrow()["kind"].to_pylist())
            assert len(own_snapshots(world)) == 1
            assert world.ids() == UNPARTITIONED.ids
            assert kinds == {"marked"} or "marked" not in kinds
            assert [zombie.error, newer.error].count(None) >= 1
            assert_files_are_known(world)
        except AssertionError as error:
            problems.append(f"generation 1 at {first} {effects[first - 1]}, generation 2 at {second}: {said(error)}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("second", [38, 46])
def test_a_zombie_that_landed_and_expired_while_the_newer_generation_hangs_is_not_doubled(runs, tmp_path, second):
    effects = effects_of(runs, tmp_path / "whole", UNPARTITIONED)
    worlds = Prepared(tmp_path / "world", UNPARTITIONED.world)
    for first in range(effects.index("after put g1/group.json"), effects.index("after close metadata") + 2):
        world = worlds.again()
        zombie = suspended(runs, world, UNPARTITIONED, first)
        newer = suspended(runs, world, UNPARTITIONED, second, (CHANGED,))
        resume(runs, zombie)
        foreign = foreign_append(world)
        expire_all_but_the_head(world)
        if newer.suspended:
            runs.resume(newer)
        assert newer.error in HARMLESS | {"HistoryExpiredError"}, newer.found["traceback"]
        landed = [row for row in world.ids() if row < foreign[0]]
        assert landed in ([], UNPARTITIONED.ids), f"generation 1 at {first}, generation 2 at {second}"
        assert landed or newer.error == "HistoryExpiredError"
