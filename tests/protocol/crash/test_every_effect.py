"""A write is killed at every single effect it has, run again, and must then be in the table exactly once.

The splits are staged by what a Spark task runs, one after the other, so that the order of effects is the same in every run
and the number of an effect means something. What a killed run leaves is taken from one that is stopped at each effect: see
``points``. The same with real Spark, and real kills, is in ``test_spark``.
"""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from protocol.crash.exactly_once import (
    Midway,
    assert_cleans_up,
    assert_exactly_once,
    assert_only_missing_splits_were_written,
    generations,
    own_snapshots,
    splits_written,
)
from protocol.crash.points import Points, said
from protocol.crash.scenarios import (
    CREATE,
    ELSEWHERE,
    MAKES,
    MAPPED,
    MODES,
    PARTITIONED,
    PIECES,
    PIECES_PARTITIONED,
    UNPARTITIONED,
    UPSERT_MAKES,
    UPSERT_PIECES,
    WHERE,
)
from protocol.crash.thinned import some
from support.readers import assert_same_in_every_state

pytestmark = pytest.mark.crash


def explain(problems, run):
    return (
        f"{len(problems)} crash points failed:\n" + "\n".join(problems) + "\n\nThe effects of an undisturbed run:\n" + run.listing()
    )


def every_point(runs, tmp_path, scenario, check, taken=list):
    """Call ``check(world, rows)`` for each crash point of ``scenario`` in the world as it is then; report all that failed together.

    The rows are those of an undisturbed run. ``taken`` of the points are the ones that count.
    """
    whole = scenario.world(tmp_path / "world")
    points = Points(runs, whole, *scenario.writes)
    assert all(one["landed_now"] for one in points.run.result)
    assert_exactly_once(whole, scenario.ids, scenario.keys)
    rows = whole.table().scan().to_arrow().to_pylist()
    assert_same_in_every_state(whole.table(), rows)
    problems = []
    for point in taken(points):
        world = points.again(point)
        try:
            check(world, rows)
        except AssertionError as error:
            problems.append(f"{point}: {said(error)}")
    assert not problems, explain(problems, points.run)
    return points.run


#: Those that are killed at every effect in every run of the tests.
WHOLE = (UNPARTITIONED, MAPPED, PIECES, UPSERT_PIECES)

SCENARIOS = [UNPARTITIONED, PARTITIONED, MAPPED, PIECES, PIECES_PARTITIONED, UPSERT_PIECES, MAKES, UPSERT_MAKES, *MODES, *ELSEWHERE]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_write_killed_at_any_effect_and_run_again_is_exactly_once(runs, tmp_path, scenario):
    def check(world, rows):
        midway = {key: Midway.of(world, key) for key in scenario.keys}
        landed = bool(own_snapshots(world))
        again = runs.run(world, *scenario.writes)
        assert [one["landed_now"] for one in again.result] == [not landed] * len(scenario.writes)
        assert_exactly_once(world, scenario.ids, scenario.keys)
        assert_same_in_every_state(world.table(), rows)
        for key, before in midway.items():
            if len(scenario.keys) == 1:
                assert not splits_written(again.effects) & before.published.keys()
            others = {path for path in world.files_on_disk() if generations(world, key)[0].key.hash not in path}
            assert_only_missing_splits_were_written(world, before._replace(files=before.files | others), key)
        assert_cleans_up(runs, world, *scenario.writes)
        assert_same_in_every_state(world.table(), rows)

    taken = list if scenario in WHOLE else partial(some, name=scenario.name)
    clean = every_point(runs, tmp_path, scenario, check, taken)
    assert {"commit of the table", "close metadata", "close manifest list", "put g1/commit.json"} <= {
        name.removeprefix("before ") for name in clean.effects
    }


def test_the_effects_of_an_undisturbed_write_are_the_same_every_time(runs, tmp_path):
    lists = [runs.run(UNPARTITIONED.world(tmp_path / str(n)), *UNPARTITIONED.writes).effects for n in range(2)]
    assert lists[0] == lists[1]


@pytest.mark.parametrize("scenario", [UNPARTITIONED, MAPPED, PIECES, CREATE, WHERE], ids=lambda scenario: scenario.name)
def test_a_write_killed_twice_at_different_effects_is_exactly_once(runs, tmp_path, scenario):
    points = Points(runs, scenario.world(tmp_path / "world"), *scenario.writes)
    total = len(points.run.effects)
    problems = []
    for first, second in itertools.product(range(3, total, total // 5), range(1, total, total // 5)):
        world = points.at(first)
        midway = {key: Midway.of(world, key) for key in scenario.keys}
        # The second run may be over before it gets that far.
        retry = runs.run(world, *scenario.writes, fatal=second)
        last = runs.run(world, *scenario.writes)
        try:
            assert last.result
            assert_exactly_once(world, scenario.ids, scenario.keys)
            for key, before in midway.items():
                assert before.published.items() <= Midway.of(world, key).published.items()
        except AssertionError as error:
            problems.append(f"{first}, then {second} ({retry.effects[-1:]}): {said(error)}")
    assert not problems, "\n".join(problems)


def test_a_write_that_makes_its_table_and_is_killed_at_any_effect_adds_its_rows_to_the_one_that_another_has_made(runs, tmp_path):
    other = dict(MAKES.writes[0]) | {"key": "another"}

    def check(world, rows):
        landed = bool(own_snapshots(world))
        assert runs.run(world, other).result[0]["landed_now"]
        # A commit that was begun meets the other table; the stage, run again, begins anew on it.
        again = runs.run(world, *MAKES.writes)
        assert again.result[0]["landed_now"] is not landed
        assert world.ids() == sorted(MAKES.ids * 2)
        assert len(own_snapshots(world)) == 2
        assert_same_in_every_state(world.table(), rows * 2)

    every_point(runs, tmp_path, MAKES, check)


def test_a_write_killed_at_any_effect_and_restarted_with_other_code_is_there_once_in_one_version(runs, tmp_path):
    changed = {"marked": True, "on_change": "restart"}

    def check(world, rows):
        del rows  # Those of the changed code are others.
        landed = bool(own_snapshots(world))
        again = runs.run(world, changed)
        kinds = set(world.table().scan().to_arrow()["kind"].to_pylist())
        if landed:
            assert again.error == "RestartRefusedError"
            assert "marked" not in kinds
            assert runs.run(world).result
        else:
            assert again.result
            assert kinds == {"marked"}
            first = generations(world, "orders")[0]
            assert len(generations(world, "orders")) == 1 or first.discarded() is not None
        assert_exactly_once(world, UNPARTITIONED.ids)

    every_point(runs, tmp_path, UNPARTITIONED, check)


def test_a_write_killed_at_any_effect_and_gone_on_with_other_code_is_there_once_and_keeps_what_was_staged(runs, tmp_path):
    corrected = {**PIECES.writes[0], "marked": True, "on_change": "continue"}

    def check(world, rows):
        del rows  # Those of the new code are others.
        landed = bool(own_snapshots(world))
        before = Midway.of(world)
        # The one that goes on is killed too, before and after it says so, and while it stages.
        for fatal in (12, 14, 20):
            runs.run(world, corrected, fatal=fatal)
        again = runs.run(world, corrected)
        assert again.result, again.error
        assert len(generations(world, "orders")) == 1
        assert before.published.items() <= Midway.of(world).published.items()
        assert_exactly_once(world, PIECES.ids)
        if landed:
            assert "marked" not in set(world.table().scan().to_arrow()["kind"].to_pylist())

    every_point(runs, tmp_path, PIECES, check, partial(some, name="gone on with"))


def test_a_restart_that_is_itself_killed_at_any_effect_is_there_once(runs, tmp_path):
    changed = {"marked": True, "on_change": "restart"}
    points = Points(runs, UNPARTITIONED.world(tmp_path / "world"))
    problems = []
    # Killed before anything was written, between splits, when sealed, when bound, and in the catalog before the swap.
    for first in (2, 16, 38, 40, 45):
        for second in range(1, 60, 7):
            world = points.at(first)
            runs.run(world, changed, fatal=second)
            last = runs.run(world, changed)
            try:
                assert last.result
                assert_exactly_once(world, UNPARTITIONED.ids)
                assert set(world.table().scan().to_arrow()["kind"].to_pylist()) == {"marked"}
            except AssertionError as error:
                problems.append(f"{first}, then {second}: {said(error)}")
    assert not problems, "\n".join(problems)
