"""New columns of a Lance dataset, stopped at every effect of stage and commit: each row its own values, in one version."""

from __future__ import annotations

import os
import signal
import time

import pytest
from protocol.crash.exactly_once import generations, owner_of
from protocol.crash.points import Points
from support.columns import computed
from support.lance_world import LanceWorld

pytestmark = pytest.mark.crash

#: Rows 4 to 7 are staged as the file that lands; those before, one of which is deleted, are joined.
ROWS, DELETED = 8, 1


def world_at(root):
    root.mkdir()
    world = LanceWorld(root)
    world.create_dataset(0, ROWS, max_rows_per_file=4)
    world.dataset.delete(f"id = {DELETED}")
    return world


def assert_added_once(world):
    assert computed(world) == world.ids() == [number for number in range(ROWS) if number != DELETED]
    assert len(world.own_versions()) == 1
    (checkpoint,) = generations(world, "columns")
    assert checkpoint.committed().commit_id == world.own_versions()[0].number
    for path in world.files_on_disk():
        owner_of(path)


def staged(world):
    found = generations(world, "columns")
    return found[0].staged_ids() if found else set()


@pytest.fixture(scope="module")
def points(lance_runs, tmp_path_factory):
    world = world_at(tmp_path_factory.mktemp("columns") / "world")
    found = Points(lance_runs, world, do="columns")
    assert [one["landed_now"] for one in found.run.result] == [True]
    assert_added_once(world)
    assert found.run.effects.count("before commit of the table") == 1
    assert sum(name.startswith("before put g1/staged") or "staged/" in name for name in found.run.effects) >= 3
    return found


@pytest.fixture
def effects(points):
    return points.run.effects


def test_killed_at_any_effect_and_run_again(lance_runs, points):
    for point in points:
        world = points.again(point)
        before, landed = staged(world), bool(world.own_versions())
        again = lance_runs.run(world, do="columns")
        assert [one["landed_now"] for one in again.result] == [not landed], point
        assert_added_once(world)
        written = {split for split in before for effect in again.effects if f"staged/{split}" in effect}
        assert not written, point


def test_killed_at_any_moment_in_lances_own_commit_and_run_again(lance_runs, tmp_path, effects):
    """What Lance does in there is not counted; the clock decides how far it gets."""
    for number in range(8):
        world = world_at(tmp_path / str(number))
        run = lance_runs.run(world, do="columns", fatal=effects.index("before commit of the table") + 1, how=signal.SIGSTOP)
        os.kill(run.pid, signal.SIGCONT)
        time.sleep(number * 0.00015)
        os.kill(run.pid, signal.SIGKILL)
        lance_runs.resume(run)
        assert run.signal == signal.SIGKILL or not run.error
        landed = bool(world.own_versions())
        (again,) = lance_runs.run(world, do="columns").result
        assert again["landed_now"] is not landed
        assert_added_once(world)


def test_suspended_at_any_effect_while_another_attempt_does_it_all(lance_runs, tmp_path, points):
    for number, name in points.run.stops:
        world = world_at(tmp_path / str(number))
        run = lance_runs.run(world, do="columns", fatal=number, how=signal.SIGSTOP)
        assert run.suspended, name
        assert lance_runs.run(world, do="columns").result, name
        lance_runs.resume(run)
        assert_added_once(world)
