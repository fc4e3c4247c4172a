"""Undos that are killed at every effect, and undos that were thought dead and wake up after the rows were written anew."""

from __future__ import annotations

import os
import signal

import pytest
from protocol.crash import lance_scenarios
from protocol.crash.points import Points
from protocol.crash.scenarios import OVERWRITE, PARTITIONED, UPSERT
from protocol.crash.worlds import Prepared

pytestmark = pytest.mark.crash

CASES = {
    "iceberg append": ("runs", PARTITIONED),
    "iceberg overwrite": ("runs", OVERWRITE),
    "iceberg upsert": ("runs", UPSERT),
    "lance append": ("lance_runs", lance_scenarios.APPEND),
    "lance overwrite": ("lance_runs", lance_scenarios.OVERWRITE),
}

#: How an undo that wakes up may end: it finds that it is done, or that the key has landed anew since.
HARMLESS = {None, "UndoneError", "UndoRefusedError", "DiscardedError", "RestartRefusedError"}


#: Every case is killed and woken up at every effect with ``UNDO_ALL=1``; else each kind of undo once in each way.
ALL = bool(os.environ.get("UNDO_ALL"))
KILLED = list(CASES) if ALL else ["iceberg overwrite", "lance append"]
SUSPENDED = list(CASES) if ALL else ["iceberg append", "lance overwrite"]


@pytest.fixture
def case(request):
    name, scenario = CASES[request.param]
    return request.getfixturevalue(name), scenario


def landed(runs, scenario, root):
    """A world in which the write has landed, and the rows that were there before."""
    world = scenario.world(root)
    before = rows(world)
    done = runs.run(world, *scenario.writes)
    assert done.error is None, done.found
    return world, before


def rows(world):
    """All rows, as the format's own library reads them."""
    found = world.table_rows() if hasattr(world, "table_rows") else world.table().scan().to_arrow().to_pylist()
    return sorted((row["id"], row["kind"]) for row in found)


@pytest.mark.parametrize("case", KILLED, indirect=True)
def test_an_undo_that_is_killed_at_any_effect_is_done_again_and_lands_once(case, tmp_path):
    runs, scenario = case
    world, before = landed(runs, scenario, tmp_path / "world")
    written = rows(world)
    points = Points(runs, world, *scenario.writes, do="undo")
    assert points.run.error is None, points.run.found
    assert rows(world) == before
    halves = set()
    for point in points:
        world = points.again(point)
        halves.add(tuple(rows(world)))
        again = runs.run(world, *scenario.writes, do="undo")
        assert again.error is None, (str(point), again.found)
        assert rows(world) == before, str(point)
        # The key is free to be written anew.
        anew = runs.run(world, *scenario.writes)
        assert anew.error is None, (str(point), anew.found)
        assert rows(world) == written, str(point)
    assert halves == {tuple(before), tuple(written)}


@pytest.mark.parametrize("case", SUSPENDED, indirect=True)
def test_an_undo_that_wakes_up_after_the_rows_were_written_anew_does_not_take_those_out(case, tmp_path):
    runs, scenario = case
    worlds = Prepared(tmp_path / "world", lambda root: landed(runs, scenario, root)[0])
    world = worlds.again()
    written = rows(world)
    stops = runs.run(world, *scenario.writes, do="undo").stops
    for number, name in stops:
        world = worlds.again()
        zombie = runs.run(world, *scenario.writes, do="undo", fatal=number, how=signal.SIGSTOP)
        assert zombie.suspended
        assert runs.run(world, *scenario.writes, do="undo").error is None, name
        assert runs.run(world, *scenario.writes).error is None, name
        runs.resume(zombie)
        assert zombie.error in HARMLESS, (name, zombie.found.get("traceback"))
        assert rows(world) == written, name
