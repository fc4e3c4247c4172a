"""Crashes and zombies of writes that remove rows: a replacement killed at every effect, and commits that were thought dead."""

from __future__ import annotations

import signal

import pytest
from protocol.crash.exactly_once import assert_exactly_once, assert_files_are_known, generations, own_snapshots
from protocol.crash.maintenance import FOREIGN, foreign_append
from protocol.crash.points import Points, said
from protocol.crash.scenarios import CREATE, MAKES, OVERWRITE, PARTITIONS, UNPARTITIONED, UPSERT, WHERE
from pyiceberg.table.snapshots import Operation

pytestmark = pytest.mark.crash

#: Other code, so that it shows whose rows are there.
REPLACE = {"marked": True, "on_change": "restart", "on_rerun": "replace"}
LAND = {"key": "orders", "generation": 2}


def kinds(world, ids):
    return set(world.table().scan(f"id < {len(ids)}").to_arrow()["kind"].to_pylist())


def committed(scenario, root):
    """A world in which generation 1 is committed and others have appended since."""
    world = scenario.world(root)
    world.commit(world.stage(world.request(**scenario.writes[0])))
    foreign_append(world)
    return world


@pytest.mark.parametrize("scenario", [UNPARTITIONED, PARTITIONS], ids=lambda scenario: scenario.name)
def test_a_replacement_killed_at_any_effect_of_stage_or_commit_replaces_once(runs, tmp_path, scenario):
    again = scenario.writes[0] | REPLACE
    ids = scenario.ids + list(range(FOREIGN, FOREIGN + 5))
    world = committed(scenario, tmp_path / "world")
    stage = Points(runs, world, again, do="stage")
    land = Points(runs, world, LAND, do="land")
    assert land.run.result[0]["landed_now"]
    problems = []
    for points, point in [(stage, point) for point in stage] + [(land, point) for point in land]:
        world = points.again(point)
        try:
            landed = len(own_snapshots(world)) == 2
            if points is stage:
                assert runs.run(world, again, do="stage").result
            assert runs.run(world, LAND, do="land").result[0]["landed_now"] is not landed
            assert kinds(world, scenario.ids) == {"marked"}
            assert world.table().current_snapshot().summary.operation == Operation.OVERWRITE
            assert len(generations(world, "orders")) == 2
            assert_exactly_once(world, ids, snapshots=2)
        except AssertionError as error:
            problems.append(f"{point}: {said(error)}")
    assert not problems, "\n".join(problems)


def suspended(runs, world, scenario, effect):
    """A run that hangs before an effect of this name, as on a machine that nobody hears from."""
    names = runs.run(scenario.world(world.root.parent / "names"), *scenario.writes).effects
    run = runs.run(world, *scenario.writes, fatal=names.index(effect) + 1, how=signal.SIGSTOP)
    assert run.suspended
    return run


@pytest.mark.parametrize("effect", ["before commit of the table", "before close manifest list", "before put g1/group.json"])
@pytest.mark.parametrize("scenario", [CREATE, MAKES, OVERWRITE, WHERE, PARTITIONS, UPSERT], ids=lambda scenario: scenario.name)
def test_a_commit_that_was_thought_dead_finds_that_another_has_landed(runs, tmp_path, scenario, effect):
    world = scenario.world(tmp_path / "world")
    zombie = suspended(runs, world, scenario, effect)
    assert runs.run(world, *scenario.writes).result[0]["landed_now"]
    runs.resume(zombie)
    assert not zombie.result[0]["landed_now"]
    assert_exactly_once(world, scenario.ids)


def test_a_commit_with_an_older_seal_that_was_thought_dead_does_not_land_after_the_newer(runs, tmp_path):
    world = WHERE.world(tmp_path / "world")
    zombie = suspended(runs, world, WHERE, "before commit of the table")
    # A second file at the filter's boundary: the retry seals anew.
    foreign_append(world, 1001, 4)
    assert runs.run(world, *WHERE.writes).result[0]["landed_now"]
    assert generations(world, "orders")[0].sealed().round == 3
    runs.resume(zombie)
    assert not zombie.result[0]["landed_now"]
    assert_exactly_once(world, sorted([*WHERE.ids, 1003, 1004]))


def test_a_table_dropped_after_it_was_created_is_not_reported_as_there(runs, tmp_path):
    world = CREATE.world(tmp_path / "world")
    assert runs.run(world, *CREATE.writes).result
    world.catalog.drop_table("shop.orders")
    assert runs.run(world, *CREATE.writes).error == "RolledBackError"
    assert not world.catalog.table_exists("shop.orders")


def test_of_two_writes_that_create_one_table_the_second_is_told(runs, tmp_path):
    world = CREATE.world(tmp_path / "world")
    zombie = suspended(runs, world, CREATE, "before commit of the table")
    other = dict(CREATE.writes[0]) | {"key": "another"}
    assert runs.run(world, other).result[0]["landed_now"]
    runs.resume(zombie)
    assert zombie.error == "TableExistsError"
    assert world.ids() == CREATE.ids
    assert len(own_snapshots(world)) == 1
    assert_files_are_known(world)


def test_of_two_writes_that_make_one_table_the_second_adds_its_rows_when_it_is_run_again(runs, tmp_path):
    world = MAKES.world(tmp_path / "world")
    zombie = suspended(runs, world, MAKES, "before commit of the table")
    other = dict(MAKES.writes[0]) | {"key": "another"}
    assert runs.run(world, other).result[0]["landed_now"]
    assert runs.run(world, *MAKES.writes).result[0]["landed_now"]
    runs.resume(zombie)
    assert zombie.error in {"DiscardedError", "TableExistsError"}
    assert world.ids() == sorted(MAKES.ids * 2)
    assert len(own_snapshots(world)) == 2
    assert_files_are_known(world)
