"""Two stages in a row that are killed at every effect, and the freeing of what the first has staged."""

from __future__ import annotations

import pytest
from protocol.crash import lance_once, lance_scenarios
from protocol.crash.exactly_once import assert_exactly_once
from protocol.crash.points import Points, said
from protocol.crash.scenarios import PIECES
from protocol.crash.test_sweep import ids
from support.aging import grow_old

pytestmark = pytest.mark.crash

CASES = {
    "iceberg": ("runs", PIECES, assert_exactly_once),
    "lance": ("lance_runs", lance_scenarios.APPEND, lance_once.assert_exactly_once),
}

#: Each split of the first stage is saved in pieces.
CHAIN = {"save_every": 3}


@pytest.fixture(params=CASES)
def case(request):
    name, scenario, check = CASES[request.param]
    return request.getfixturevalue(name), scenario, check


def rows_files(world):
    """Files of rows for the next task."""
    return sorted(path.name for path in (world.root / "store").rglob("rows/data/*"))


def test_a_chain_killed_at_any_effect_is_gone_on_with_and_lands_once(case, tmp_path):
    runs, scenario, check = case
    points = Points(runs, scenario.world(tmp_path / "world"), CHAIN, do="chain")
    assert points.run.result[0]["landed_now"]
    names = points.run.effects
    assert any("readers/" in name for name in names)
    assert any("create data file" in name and "000000" in name for name in names)
    problems = []
    for point in points:
        world = points.again(point)
        try:
            assert runs.run(world, CHAIN, do="chain").result
            check(world, scenario.ids)
        except AssertionError as error:
            problems.append(f"{point}: {said(error)}")
    assert not problems, "\n".join(problems)


def test_freeing_that_is_killed_at_any_effect_is_done_again(case, tmp_path):
    runs, scenario, check = case
    world = scenario.world(tmp_path / "world")
    assert runs.run(world, CHAIN, do="chain").result
    points = Points(runs, world, do="free")
    assert [entry["left"] for entry in points.run.result] == [""]
    for point in points:
        world = points.again(point)
        assert [entry["left"] for entry in runs.run(world, do="free").result] == [""]
        assert rows_files(world) == []
        # A run that is cleared after that finds all that it needs to know.
        assert not runs.run(world, CHAIN, do="chain").result[0]["landed_now"]
        assert rows_files(world) == []
        check(world, scenario.ids)


def test_a_sweep_of_a_chain_killed_at_any_effect_is_done_again(case, tmp_path):
    runs, scenario, _ = case
    world = scenario.world(tmp_path / "world")
    assert runs.run(world, CHAIN, do="chain").result
    grow_old(world)
    points = Points(runs, world, do="sweep")
    assert {(entry["key"], entry["kept"]) for entry in points.run.result} == {("parse", ""), ("orders", "")}
    for point in points:
        world = points.again(point)
        # At any moment, a run that is cleared finds all that it needs to know.
        assert not runs.run(world, CHAIN, do="chain").result[0]["landed_now"], point
        world = points.again(point)
        grow_old(world)
        assert not any(entry["is_error"] for entry in runs.run(world, do="sweep").result), point
        assert rows_files(world) == [], point
        assert not runs.run(world, CHAIN, do="chain").result[0]["landed_now"], point
        assert ids(world) == sorted(scenario.ids), point
