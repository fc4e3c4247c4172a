"""Clean-ups that are killed at every effect, and writes that were thought dead and wake up after one."""

from __future__ import annotations

import signal

import pytest
from protocol.crash import lance_once, lance_scenarios
from protocol.crash.exactly_once import assert_cleans_up, assert_exactly_once
from protocol.crash.points import Points
from protocol.crash.scenarios import UNPARTITIONED, UPSERT
from protocol.crash.thinned import some
from protocol.crash.worlds import Prepared

pytestmark = pytest.mark.crash

#: How a zombie may end: it finished, was told that its work is not wanted any more, or misses a file, which Lance says so.
HARMLESS = {None, "DiscardedError", "StagedFileMissingError", "FileNotFoundError", "ValueError"}

CASES = {
    "iceberg append": ("runs", UNPARTITIONED, assert_exactly_once),
    "iceberg upsert": ("runs", UPSERT, assert_exactly_once),
    "lance append": ("lance_runs", lance_scenarios.APPEND, lance_once.assert_exactly_once),
    "lance upsert": ("lance_runs", lance_scenarios.UPSERT, lance_once.assert_exactly_once),
}


@pytest.fixture(params=CASES)
def case(request):
    name, scenario, check = CASES[request.param]
    return request.getfixturevalue(name), scenario, check


def littered(runs, scenario, root):
    """A world in which a write was killed twice, and then landed."""
    world = scenario.world(root)
    for at in (12, 18):
        assert runs.run(world, *scenario.writes, fatal=at).signal == signal.SIGKILL
    assert runs.run(world, *scenario.writes).result
    return world


def test_a_clean_up_killed_at_any_effect_is_done_again(case, tmp_path):
    runs, scenario, check = case
    points = Points(runs, littered(runs, scenario, tmp_path / "world"), *scenario.writes, do="clean")
    assert any("remove" in name or "delete" in name for name in points.run.effects)
    for point in points:
        world = points.again(point)
        check(world, scenario.ids)
        assert_cleans_up(runs, world, *scenario.writes)
        check(world, scenario.ids)


def test_a_zombie_that_wakes_up_after_it_was_given_up_and_cleaned_up_does_no_harm(case, tmp_path):
    runs, scenario, check = case
    (write,) = scenario.writes
    stops = runs.run(scenario.world(tmp_path / "whole"), write).stops
    worlds = Prepared(tmp_path / "world", scenario.world)
    for number, name in some(stops, scenario.name):
        world = worlds.again()
        zombie = runs.run(world, write, fatal=number, how=signal.SIGSTOP)
        assert zombie.suspended
        # Before its first put there is nothing to clean up.
        runs.run(world, write | {"discard_unfinished": True}, do="clean")
        runs.resume(zombie)
        assert zombie.error in HARMLESS, (name, zombie.found.get("traceback"))
        last = runs.run(world, write)
        assert last.error is None, (name, last.found.get("traceback"))
        check(world, scenario.ids)
        # If it has bound its generation to a commit, just before it was told, what it has left since stays.
        cleaned = runs.run(world, write, do="clean").result
        assert cleaned[-1]["left"] == "", name
        check(world, scenario.ids)
