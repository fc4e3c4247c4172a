"""Sweeps that are killed at every effect, that wake up late, and that run beside a replacement: whoever asks finds the commit."""

from __future__ import annotations

import signal

import pytest
from protocol.crash import lance_scenarios
from protocol.crash.exactly_once import generations
from protocol.crash.points import Points
from protocol.crash.scenarios import MAPPED, UNPARTITIONED, UPSERT
from protocol.crash.thinned import some
from protocol.crash.worlds import Prepared
from support.aging import grow_old
from support.lance_world import LanceWorld

from airflow_ckpt_provider.checkpoint.state import State, state_of

pytestmark = pytest.mark.crash

CASES = {
    "iceberg append": ("runs", UNPARTITIONED),
    "iceberg upsert": ("runs", UPSERT),
    "iceberg, mapped": ("runs", MAPPED),
    "lance append": ("lance_runs", lance_scenarios.APPEND),
    "lance upsert": ("lance_runs", lance_scenarios.UPSERT),
}

SWEEP = {"abandoned": "discard"}

#: What stays of a committed generation; ``groups`` in that of the first member of a group.
BARE = {"commit.json", "compact.json", "group.json", "header.json", "groups"}

#: The write that nobody has finished.
GIVEN_UP = {"key": "given up"}


@pytest.fixture(params=CASES)
def case(request):
    name, scenario = CASES[request.param]
    return request.getfixturevalue(name), scenario


@pytest.fixture(params=["iceberg append", "lance upsert"])
def two_cases(request):
    name, scenario = CASES[request.param]
    return request.getfixturevalue(name), scenario


def stops(effects):
    """The effects to stop at: after one of them is before the next, as far as others can see."""
    return [(number, name) for number, name in enumerate(effects, 1) if name.startswith("before") or number == len(effects)]


def old(runs, scenario, root):
    """A world in which a write was killed twice and then landed, and another one was never finished, weeks ago."""
    world = scenario.world(root)
    for at in (12, 18):
        assert runs.run(world, *scenario.writes, fatal=at).signal == signal.SIGKILL
    assert runs.run(world, *scenario.writes).result
    killed = runs.run(world, scenario.writes[0] | GIVEN_UP, do="stage", fatal=14)
    assert killed.signal == signal.SIGKILL
    grow_old(world)
    return world


def ids(world):
    return sorted(row["id"] for row in world.table_rows()) if isinstance(world, LanceWorld) else world.ids()


def assert_found(runs, world, scenario):
    """To clear the run of the write finds its commit, and repeats nothing."""
    cleared = runs.run(world, *scenario.writes)
    assert [one["landed_now"] for one in cleared.result] == [False] * len(scenario.writes)
    assert cleared.effects == []
    assert ids(world) == sorted(scenario.ids)


def assert_swept(runs, world, scenario):
    """Nothing is left of what is done but what has to be, in the store and beside the table."""
    swept = runs.run(world, SWEEP, do="sweep")
    assert swept.error is None, swept.found.get("traceback")
    assert not [one for one in swept.result if one["kept"]]
    for key in scenario.keys:
        (checkpoint,) = generations(world, key)
        assert state_of(checkpoint) is State.COMMITTED
        folders = {name.removeprefix(checkpoint.paths.root).partition("/")[0] for name in world.store.names(checkpoint.paths.root)}
        assert BARE - {"groups"} <= folders <= BARE
    (given_up,) = generations(world, "given up")
    assert given_up.discarded() is not None
    assert not [name for name in world.store.names("") if name.startswith("clock")]
    if isinstance(world, LanceWorld):
        assert not world.data_and_sidecars() - world.ever_referenced_files()
    else:
        referenced = {path for path in world.referenced_files() if "/ckpt-" in path}
        assert world.files_on_disk() == referenced


def test_a_sweep_killed_at_any_effect_is_done_again_and_the_commit_is_found_in_between(case, tmp_path):
    runs, scenario = case
    points = Points(runs, old(runs, scenario, tmp_path / "world"), SWEEP, do="sweep")
    assert [one["kept"] for one in points.run.result] == [""] * (len(scenario.writes) + 1)
    kinds = {name.split(" ")[1] for name in points.run.effects}
    assert {"put", "delete"} <= kinds
    for point in points if scenario is UNPARTITIONED else some(points, scenario.name):
        world = points.again(point)
        assert_found(runs, world, scenario)
        grow_old(world)
        assert_swept(runs, world, scenario)
        assert_found(runs, world, scenario)


def test_a_sweep_that_goes_on_after_another_one_has_done_its_work_does_no_harm(two_cases, tmp_path):
    runs, scenario = two_cases
    worlds = Prepared(tmp_path / "world", lambda root: old(runs, scenario, root))
    world = worlds.again()
    grow_old(world)
    effects = runs.run(world, SWEEP, do="sweep").effects
    for number, name in stops(effects):
        world = worlds.again()
        grow_old(world)
        late = runs.run(world, SWEEP, do="sweep", fatal=number, how=signal.SIGSTOP)
        assert late.suspended
        assert runs.run(world, SWEEP, do="sweep").error is None
        runs.resume(late)
        assert late.error is None, (name, late.found.get("traceback"))
        assert not [one for one in late.result if one["is_error"]], (name, late.result)
        grow_old(world)
        runs.run(world, SWEEP, do="sweep")
        assert_found(runs, world, scenario)
        # What was given up is written anew.
        assert runs.run(world, scenario.writes[0] | GIVEN_UP).error is None


def test_a_replacement_beside_a_sweep_that_is_suspended_at_any_effect_lands_as_a_whole_or_says_why_not(two_cases, tmp_path):
    runs, scenario = two_cases
    (write,) = scenario.writes
    again = write | {"on_rerun": "replace"}
    worlds = Prepared(tmp_path / "world", lambda root: old(runs, scenario, root))
    world = worlds.again()
    grow_old(world)
    effects = runs.run(world, SWEEP, do="sweep").effects
    outcomes = set()
    for number, name in stops(effects):
        world = worlds.again()
        grow_old(world)
        late = runs.run(world, SWEEP, do="sweep", fatal=number, how=signal.SIGSTOP)
        assert late.suspended
        replaced = runs.run(world, again)
        assert replaced.error in {None, "RecordsRemovedError"}, (name, replaced.found.get("traceback"))
        outcomes.add(replaced.error)
        runs.resume(late)
        assert not [one for one in late.result if one["is_error"]], (name, late.result)
        assert ids(world) == sorted(scenario.ids), name
        assert runs.run(world, write).error is None, name
        assert ids(world) == sorted(scenario.ids), name
    assert outcomes == {None, "RecordsRemovedError"}


def test_a_sweep_beside_a_replacement_that_is_suspended_at_any_effect_takes_nothing_that_it_needs(two_cases, tmp_path):
    runs, scenario = two_cases
    (write,) = scenario.writes
    again = write | {"on_rerun": "replace"}
    worlds = Prepared(tmp_path / "world", lambda root: old(runs, scenario, root))
    effects = runs.run(worlds.again(), again).effects
    for number, name in stops(effects):
        world = worlds.again()
        grow_old(world)
        late = runs.run(world, again, fatal=number, how=signal.SIGSTOP)
        assert late.suspended
        assert runs.run(world, SWEEP, do="sweep").error is None
        runs.resume(late)
        if "header.json" in name and name.startswith("before"):
            assert late.error == "RecordsRemovedError", name
            # It was opened and can never land; the rows that are there stay.
            assert ids(world) == sorted(scenario.ids), name
            assert runs.run(world, again).error == "RecordsRemovedError"
            continue
        assert late.error is None, (name, late.found.get("traceback"))
        assert ids(world) == sorted(scenario.ids), name


#: How a zombie may end: it finished, was told that its work is not wanted any more, or misses a file or an object that was its own.
HARMLESS = {
    None,
    "DiscardedError",
    "RecordsRemovedError",
    "StagedFileMissingError",
    "CheckpointMissingError",
    "ObjectGoneError",
    "NotSealedError",
    "FileNotFoundError",
    "ValueError",
}


def test_a_run_that_wakes_up_weeks_later_after_a_sweep_does_no_harm(two_cases, tmp_path):
    """Stage and commit are suspended at each of their effects; the sweep gives the write up, or removes its records."""
    runs, scenario = two_cases
    (write,) = scenario.writes
    effects = runs.run(scenario.world(tmp_path / "whole"), write).effects
    worlds = Prepared(tmp_path / "world", scenario.world)
    for number, name in stops(effects):
        world = worlds.again()
        zombie = runs.run(world, write, fatal=number, how=signal.SIGSTOP)
        assert zombie.suspended
        grow_old(world)
        swept = runs.run(world, SWEEP, do="sweep")
        assert not [one for one in swept.result if one["is_error"]], (name, swept.result)
        runs.resume(zombie)
        assert zombie.error in HARMLESS, (name, zombie.found.get("traceback"))
        last = runs.run(world, write)
        assert last.error is None, (name, last.found.get("traceback"))
        assert ids(world) == sorted(scenario.ids), name
        grow_old(world)
        assert not [one for one in runs.run(world, SWEEP, do="sweep").result if one["is_error"]], name
        assert ids(world) == sorted(scenario.ids), name
        assert runs.run(world, write).error is None, name


@pytest.fixture(params=["iceberg append", "lance upsert"])
def sealed(request, tmp_path):
    """Worlds in which a write was sealed weeks ago, and not committed."""
    name, scenario = CASES[request.param]
    runs = request.getfixturevalue(name)

    def make(root):
        world = scenario.world(root)
        assert runs.run(world, *scenario.writes, do="stage").error is None
        return world

    return runs, scenario, Prepared(tmp_path / "world", make)


def assert_landed_or_given_up(runs, world, scenario, landed, name):
    """The rows are there once, with all their files, or not at all, and then the write can be made anew."""
    others = sorted(set(scenario.ids) - set(range(scenario.files * scenario.rows_each)))
    if landed.error is None:
        assert ids(world) == sorted(scenario.ids), name
        (checkpoint,) = generations(world, "orders")
        assert state_of(checkpoint) is State.COMMITTED, name
    else:
        assert landed.error == "DiscardedError", (name, landed.found.get("traceback"))
        assert set(others) <= set(ids(world)), name
    assert runs.run(world, *scenario.writes).error is None, name
    assert ids(world) == sorted(scenario.ids), name


def test_a_commit_beside_a_sweep_that_gives_it_up_lands_or_is_told_so(sealed):
    """The sweep is suspended at each of its effects, and the commit runs to its end."""
    runs, scenario, worlds = sealed
    land = {"key": "orders"}
    world = worlds.again()
    grow_old(world)
    effects = runs.run(world, SWEEP, do="sweep").effects
    assert any("discard.json" in name for name in effects)
    outcomes = set()
    for number, name in stops(effects):
        world = worlds.again()
        grow_old(world)
        late = runs.run(world, SWEEP, do="sweep", fatal=number, how=signal.SIGSTOP)
        assert late.suspended
        landed = runs.run(world, land, do="land")
        runs.resume(late)
        assert late.error is None, (name, late.found.get("traceback"))
        assert not [one for one in late.result if one["is_error"]], (name, late.result)
        outcomes.add(landed.error)
        assert_landed_or_given_up(runs, world, scenario, landed, name)
    assert outcomes == {None, "DiscardedError"}


def test_a_sweep_that_gives_up_a_write_beside_its_commit_takes_nothing_that_lands(sealed):
    """The commit is suspended at each of its effects, for weeks, and the sweep runs to its end."""
    runs, scenario, worlds = sealed
    land = {"key": "orders"}
    effects = runs.run(worlds.again(), land, do="land").effects
    outcomes = set()
    for number, name in stops(effects):
        world = worlds.again()
        late = runs.run(world, land, do="land", fatal=number, how=signal.SIGSTOP)
        assert late.suspended
        grow_old(world)
        swept = runs.run(world, SWEEP, do="sweep")
        assert not [one for one in swept.result if one["is_error"]], (name, swept.result)
        runs.resume(late)
        outcomes.add(late.error)
        assert_landed_or_given_up(runs, world, scenario, late, name)
    assert outcomes == {None, "DiscardedError"}
