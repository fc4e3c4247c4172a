"""A stage that stages lost files anew, killed at every effect; and commits of the earlier seal that were thought dead."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from protocol.crash.exactly_once import assert_cleans_up, assert_exactly_once
from protocol.crash.points import Points, said
from protocol.crash.scenarios import UNPARTITIONED, UPSERT

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite

pytestmark = pytest.mark.crash

LAND = {"key": "orders", "generation": 1}


def latest(world):
    return Checkpoint.latest(world.store, IdempotenceKey("orders"))


def lose(world, name):
    """Delete a data file that a commit of the newest seal needs, in whose name this is."""
    needed = world.as_table().state().storage.needed_to_commit(SealedWrite(latest(world)))
    paths = [Path(file.path.removeprefix("file://")) for file in needed]
    next(path for path in paths if name in path.name and path.suffix == ".parquet").unlink()


def staged_and_lost(runs, scenario, name, root):
    world = scenario.world(root)
    assert runs.run(world, *scenario.writes, do="stage").result
    lose(world, name)
    assert runs.run(world, LAND, do="land").error == "StagedFileMissingError"
    return world


@pytest.mark.parametrize(("scenario", "name"), [(UNPARTITIONED, "-s000001-"), (UPSERT, "-smatch")], ids=["append", "upsert"])
def test_a_stage_that_stages_lost_files_anew_and_is_killed_at_any_effect_goes_on(runs, tmp_path, scenario, name):
    whole = staged_and_lost(runs, scenario, name, tmp_path / "world")
    points = Points(runs, whole, *scenario.writes, do="stage")
    assert points.run.result
    assert any("plan-" in effect for effect in points.run.effects)
    assert any("seal-2" in effect or "seal-3" in effect for effect in points.run.effects)
    problems = []
    for point in points:
        world = points.again(point)
        try:
            assert runs.run(world, *scenario.writes, do="stage").result
            assert runs.run(world, LAND, do="land").result[0]["landed_now"]
            assert_exactly_once(world, scenario.ids)
            assert_cleans_up(runs, world, *scenario.writes)
        except AssertionError as error:
            problems.append(f"{point}: {said(error)}")
    assert not problems, "\n".join(problems)


def test_a_commit_of_an_earlier_seal_that_was_thought_dead_lands_nothing_beside_the_later(runs, tmp_path):
    names = runs.run(UNPARTITIONED.world(tmp_path / "names"), *UNPARTITIONED.writes).effects
    world = UNPARTITIONED.world(tmp_path / "world")
    fatal = names.index("before commit of the table") + 1
    zombie = runs.run(world, *UNPARTITIONED.writes, fatal=fatal, how=signal.SIGSTOP)
    assert zombie.suspended
    lose(world, "-s000001-")
    assert runs.run(world, *UNPARTITIONED.writes, do="stage").result
    assert latest(world).sealed().round == 2
    assert runs.run(world, LAND, do="land").result[0]["landed_now"]
    runs.resume(zombie)
    assert not zombie.result[0]["landed_now"]
    assert_exactly_once(world, UNPARTITIONED.ids)
