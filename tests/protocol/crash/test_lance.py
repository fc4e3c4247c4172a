"""Writes into Lance datasets, stopped at every single effect they have: killed and run again, or suspended and woken too late.

What ``test_every_effect`` and ``test_zombies`` show of Iceberg tables. Dataset and store are in a folder, and in the fake S3.
"""

from __future__ import annotations

import itertools
import os
import signal
import time

import pytest
from protocol.crash.exactly_once import (
    Midway,
    assert_cleans_up,
    assert_files_are_known,
    assert_only_missing_splits_were_written,
    generations,
    splits_written,
)
from protocol.crash.lance_once import assert_exactly_once, assert_only_own_files_are_left_over
from protocol.crash.lance_scenarios import APPEND, CREATE, EVERY, MAPPED, OVERWRITE, REPLACEMENTS, SUSPENDED, UPSERT
from protocol.crash.points import Points, said
from protocol.crash.thinned import ALL, some
from protocol.crash.worlds import Prepared
from support.lance_world import LanceWorld

pytestmark = pytest.mark.crash

#: How a zombie may end: it finished, or it was told that its work is not wanted any more.
HARMLESS = {None, "DiscardedError", "RestartRefusedError"}

#: How far the newer generation is, in effects from its beginning or its end.
NEWER_AT = {"begun": 3, "half-way": 20, "nearly done": -5}

CHANGED = {"marked": True, "on_change": "restart"}


class Place:
    """Where worlds are: in folders, or with dataset and store in a bucket.

    ``step`` is by how many seconds each try is given more than the one before, where the clock decides.
    """

    def __init__(self, folder, bucket=None):
        self._folder, self._bucket = folder, bucket
        self.is_remote = bucket is not None
        self.step = 0.00006 if bucket is None else 0.0007

    def at(self, *names):
        """Root of a world of its own."""
        root, path = self._folder.joinpath(*names), "/".join(names)
        if self._bucket is not None:
            LanceWorld(root, self._bucket.uri(f"{path}/orders.lance"), self._bucket.options, self._bucket.uri(f"{path}/store"))
        return root

    def worlds(self, name, make):
        """Worlds of this name, each as ``make(root)`` makes it: what is in a folder is made once, and put back."""
        if self._bucket is None:
            return Prepared(self.at(name), make).again
        numbers = itertools.count()
        return lambda: make(self.at(name, str(next(numbers))))


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path):
    return Place(tmp_path, request.getfixturevalue("s3_bucket") if request.param == "s3" else None)


def everywhere(name, values, on_s3):
    """Each of these values in a folder; and on S3 those of ``on_s3``, or all of them as well."""
    cases = [("local", value) for value in values] + [("s3", value) for value in (values if ALL else on_s3)]
    return pytest.mark.parametrize(("place", name), cases, indirect=["place"], ids=lambda value: getattr(value, "name", None))


def stopped(runs, world, scenario, at, how=signal.SIGKILL, writes=()):
    """Run until the effect number ``at``; it may be over, or refused, before it gets that far."""
    run = runs.run(world, *(writes or scenario.writes), fatal=at, how=how)
    if how is signal.SIGSTOP:
        assert run.suspended == (len(run.effects) == at)
    return run


def undisturbed(runs, root, scenario):
    """A run that nothing happens to."""
    world = scenario.world(root)
    clean = runs.run(world, *scenario.writes)
    assert all(one["landed_now"] for one in clean.result)
    assert_exactly_once(world, scenario.ids, scenario.keys)
    return clean


def at_effects(clean, scenario, place, check):
    """Call ``check(world, number)`` for effects, each in a world of its own; report all that failed together."""
    world_again = place.worlds("world", scenario.world)
    problems = []
    stops = list(enumerate(clean.effects, 1)) if place.is_remote else clean.stops
    for number, name in stops if scenario is APPEND and not place.is_remote else some(stops, scenario.name):
        world = world_again()
        try:
            check(world, number)
        except AssertionError as error:
            problems.append(f"{number} {name}: {said(error)}")
    assert not problems, explain(problems, clean)


def at_points(points, check, name=""):
    """Call ``check(world, point)`` for each crash point in the world as it is then; report all that failed together.

    :param name: of one of several tests that differ in little; empty for one that takes every point.
    """
    problems = []
    for point in some(points, name) if name else points:
        world = points.again(point)
        try:
            check(world, point)
        except AssertionError as error:
            problems.append(f"{point}: {said(error)}")
    assert not problems, explain(problems, points.run)


def explain(problems, run):
    return f"{len(problems)} points failed:\n" + "\n".join(problems) + f"\n\nAll effects:\n{run.listing()}"


@everywhere("scenario", EVERY, on_s3=[APPEND, UPSERT])
def test_a_write_killed_at_any_effect_and_run_again_is_exactly_once(lance_runs, place, scenario):
    def check(world, point):
        assert_only_own_files_are_left_over(world)
        midway = {key: Midway.of(world, key) for key in scenario.keys}
        landed = bool(world.own_versions())
        again = lance_runs.run(world, *scenario.writes)
        assert [one["landed_now"] for one in again.result] == [not landed] * len(scenario.writes)
        assert_exactly_once(world, scenario.ids, scenario.keys)
        for key, before in midway.items():
            if len(scenario.keys) == 1:
                assert not splits_written(again.effects) & before.published.keys()
            others = {path for path in world.files_on_disk() if generations(world, key)[0].key.hash not in path}
            assert_only_missing_splits_were_written(world, before._replace(files=before.files | others), key)
        if not place.is_remote:
            assert_cleans_up(lance_runs, world, *scenario.writes)
            assert_exactly_once(world, scenario.ids, scenario.keys)
        assert identities is None or identities.items() <= world.identities().items()

    whole = scenario.world(place.at("world"))
    identities = whole.identities() if scenario.stable else None
    points = Points(lance_runs, whole, *scenario.writes)
    assert all(one["landed_now"] for one in points.run.result)
    assert_exactly_once(whole, scenario.ids, scenario.keys)
    at_points(points, check, "" if scenario in (APPEND, UPSERT) and not place.is_remote else scenario.name)
    names = [name.removeprefix("before ") for name in points.run.effects]
    files = (scenario.files if scenario.rows_each else 0) + scenario.written_again
    for effect in ("create data file of g1/", "close data file of g1/"):
        assert sum(name.startswith(effect) for name in names) == files
    # What is written anew from several files is written in several steps.
    assert sum(name.startswith("write data file of g1/") for name in names) >= files
    assert names.count("commit of the table") == 1
    assert "put g1/commit.json" in names


@everywhere("scenario", [CREATE, APPEND, OVERWRITE, UPSERT], on_s3=[APPEND])
def test_a_write_killed_at_any_moment_in_lances_own_commit_and_run_again_is_exactly_once(lance_runs, place, scenario):
    """What Lance does in there is not counted; the clock decides how far it gets."""
    at = undisturbed(lance_runs, place.at("whole"), scenario).effects.index("before commit of the table") + 1
    tries = 8 if scenario is UPSERT else 20
    for number in range(tries):
        world = scenario.world(place.at(str(number)))
        run = stopped(lance_runs, world, scenario, at, signal.SIGSTOP)
        os.kill(run.pid, signal.SIGCONT)
        time.sleep(number * place.step * 20 / tries)
        os.kill(run.pid, signal.SIGKILL)
        lance_runs.resume(run)
        assert run.signal == signal.SIGKILL or not run.error
        landed = bool(world.own_versions())
        (again,) = lance_runs.run(world, *scenario.writes).result
        # What a killed process has sent may still arrive.
        assert again["landed_now"] is not landed or (place.is_remote and not landed)
        assert_exactly_once(world, scenario.ids)


def test_the_effects_of_an_undisturbed_write_are_the_same_every_time(lance_runs, place):
    lists = [undisturbed(lance_runs, place.at(str(n)), APPEND).effects for n in range(2)]
    assert lists[0] == lists[1]


@everywhere("scenario", [APPEND, MAPPED], on_s3=[])
def test_a_write_killed_twice_at_different_effects_is_exactly_once(lance_runs, place, scenario):
    total = len(undisturbed(lance_runs, place.at("whole"), scenario).effects)
    problems = []
    for first, second in itertools.product(range(3, total, total // 5), range(1, total, total // 4)):
        world = scenario.world(place.at(f"{first}-{second}"))
        stopped(lance_runs, world, scenario, first)
        midway = {key: Midway.of(world, key) for key in scenario.keys}
        retry = stopped(lance_runs, world, scenario, second)
        last = lance_runs.run(world, *scenario.writes)
        try:
            assert last.result
            assert_exactly_once(world, scenario.ids, scenario.keys)
            for key, before in midway.items():
                assert before.published.items() <= Midway.of(world, key).published.items()
        except AssertionError as error:
            problems.append(f"{first}, then {second} ({retry.effects[-1:]}): {said(error)}")
    assert not problems, "\n".join(problems)


@everywhere("scenario", EVERY if ALL else SUSPENDED, on_s3=[APPEND])
def test_a_zombie_that_wakes_up_after_its_retry_has_committed_changes_nothing(lance_runs, place, scenario):
    def check(world, number):
        zombie = stopped(lance_runs, world, scenario, number, signal.SIGSTOP)
        assert lance_runs.run(world, *scenario.writes).result
        version = world.dataset.version
        lance_runs.resume(zombie)
        assert (zombie.signal, zombie.error) == (0, None), zombie.found
        assert world.dataset.version == version
        assert_exactly_once(world, scenario.ids, scenario.keys)

    at_effects(undisturbed(lance_runs, place.at("whole"), scenario), scenario, place, check)


def test_a_zombie_that_is_about_to_commit_meets_its_retry_and_foreign_versions(lance_runs, place):
    """What others wrote meanwhile makes Lance rebase the zombie's commit, and must not make it land beside that of the retry."""
    for scenario in EVERY if ALL or not place.is_remote else (APPEND, UPSERT):
        effects = undisturbed(lance_runs, place.at(scenario.name, "whole"), scenario).effects
        world = scenario.world(place.at(scenario.name, "world"))
        zombie = stopped(lance_runs, world, scenario, effects.index("before commit of the table") + 1, signal.SIGSTOP)
        assert zombie.suspended
        assert lance_runs.run(world, *scenario.writes).result
        foreign = world.foreign_append()
        world.dataset.optimize.compact_files()
        more = world.foreign_append(foreign[-1] + 1)
        version = world.dataset.version
        lance_runs.resume(zombie)
        assert zombie.error is None
        assert world.dataset.version == version
        assert [one.group is not None for one in world.versions()].count(True) == 1
        assert world.ids() == sorted([*scenario.ids, *foreign, *more])


def test_a_commit_that_looked_before_another_began_it_on_a_later_version_lands(lance_runs, place):
    """The one that is first to bind the group fixes from which version on it is searched; the other saw an earlier one."""
    for scenario in (APPEND, OVERWRITE, MAPPED):
        effects = undisturbed(lance_runs, place.at(scenario.name, "whole"), scenario).effects
        binds = [number for number, name in enumerate(effects, 1) if name.endswith("put g1/group.json")]
        world = scenario.world(place.at(scenario.name, "world"))
        early = stopped(lance_runs, world, scenario, binds[0], signal.SIGSTOP)
        foreign = world.foreign_append()
        # The list of several members is there already, so that it is not put once more.
        lists = sum(name.startswith("before put g1/groups/") for name in effects)
        late = stopped(lance_runs, world, scenario, len(binds) + lists, signal.SIGSTOP)
        # Two members are bound by two threads: what the early one's other thread had sent may have arrived.
        assert late.effects[-1] in {"after put g1/group.json", "before commit of the table"}
        for run in (early, late):
            lance_runs.resume(run)
            assert run.error is None, run.found["message"]
        assert early.result[0]["landed_now"]
        assert not late.result[0]["landed_now"]
        kept = foreign if scenario.kept else []
        assert world.ids() == sorted([*scenario.ids, *kept])
        assert len(world.own_versions()) == 1


@everywhere("newer_at", NEWER_AT, on_s3=[])
def test_a_zombie_of_a_discarded_generation_never_lands_beside_the_newer_one(lance_runs, place, newer_at):
    """The commit of generation 1, at every effect of it, against a restart with other code."""
    effects = undisturbed(lance_runs, place.at("whole"), APPEND).effects
    second = NEWER_AT[newer_at] % len(effects)
    problems = []
    for first in range(effects.index("before put g1/group.json"), len(effects) + 1):
        world = APPEND.world(place.at(f"{first}-{second}"))
        zombie = stopped(lance_runs, world, APPEND, first, signal.SIGSTOP)
        newer = stopped(lance_runs, world, APPEND, second, signal.SIGSTOP, (CHANGED,))
        try:
            for run in (zombie, newer):
                if run.suspended:
                    lance_runs.resume(run)
                assert run.signal == 0
                assert run.error in HARMLESS, run.found["traceback"]
            assert [zombie.error, newer.error].count(None) >= 1
            assert len(world.own_versions()) == 1
            assert world.ids() == APPEND.ids
            own = {row["kind"] for row in world.table_rows() if row["id"] < 100}
            assert own == {"marked"} or "marked" not in own
            assert_only_own_files_are_left_over(world)
            assert_files_are_known(world)
        except AssertionError as error:
            problems.append(f"generation 1 at {first} {effects[first - 1]}: {said(error)}")
    assert not problems, "\n".join(problems)


@everywhere("replacement", REPLACEMENTS, on_s3=[one for one in REPLACEMENTS if one.do == "land"])
def test_a_replacement_killed_at_any_effect_replaces_once(lance_runs, place, replacement):
    scenario, do = replacement.scenario, replacement.do
    again = {"marked": True, "on_change": "restart", "on_rerun": "replace", **scenario.writes[0]}
    land = {"key": "orders", "generation": 2}

    def committed(root):
        """Generation 1 is committed and others have appended since."""
        world = scenario.world(root)
        world.commit(world.stage(world.request(**scenario.writes[0])))
        (world.input / "0.parquet").unlink()
        foreign.append(world.foreign_append())
        return world

    def staged(root):
        world = committed(root)
        assert lance_runs.run(world, again, do="stage").result
        return world

    def check(world, point):
        assert_only_own_files_are_left_over(world)
        landed = len(world.own_versions()) == 2
        if do == "stage":
            assert lance_runs.run(world, again, do="stage").result
        assert lance_runs.run(world, land, do="land").result[0]["landed_now"] is not landed
        assert {row["id"] for row in world.table_rows() if row["kind"] == "marked"} == replacement.own
        assert len(generations(world, "orders")) == 2
        assert world.ids() == sorted([*replacement.own, *replacement.others, *foreign[0]])
        assert len(world.own_versions()) == 2
        world.dataset.validate()
        assert_only_own_files_are_left_over(world)
        assert_files_are_known(world)

    foreign = []
    whole = (staged if do == "land" else committed)(place.at("world"))
    points = Points(lance_runs, whole, again if do == "stage" else land, do=do)
    assert points.run.result
    at_points(points, check, scenario.name)


def test_two_attempts_to_create_one_dataset_that_take_turns_make_one(lance_runs, place):
    total = len(undisturbed(lance_runs, place.at("whole"), CREATE).effects)
    for first, second in itertools.product(range(5, total, 8), range(2, total, 11)):
        world = CREATE.world(place.at(f"{first}-{second}"))
        zombie = stopped(lance_runs, world, CREATE, first, signal.SIGSTOP)
        retry = stopped(lance_runs, world, CREATE, second, signal.SIGSTOP)
        for run in (zombie, retry):
            if run.suspended:
                lance_runs.resume(run)
        assert (zombie.error, retry.error) == (None, None), f"{first}, {second}: {zombie.found} {retry.found}"
        assert_exactly_once(world, CREATE.ids)
