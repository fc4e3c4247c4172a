"""Many processes at the same moment: the same key, different keys, the same splits, overlapping groups, foreign writers.

Unlike in ``test_zombies`` nobody decides who is first; several rounds let the operating system try.
"""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from protocol.crash.exactly_once import assert_exactly_once, generations, own_snapshots
from protocol.crash.maintenance import FOREIGN
from protocol.crash.scenarios import PARTITIONED, UNPARTITIONED
from support.world import World, rows

from airflow_ckpt_provider.sources import Files

pytestmark = pytest.mark.crash

RACERS = 8


@pytest.fixture(params=range(3), ids=lambda number: f"round {number + 1}")
def world(request, tmp_path):
    """Eight keys of ten rows each, staged and sealed."""
    world = World(tmp_path)
    world.create_table()
    for number in range(RACERS):
        folder = world.input / str(number)
        folder.mkdir()
        pq.write_table(rows(number * 10, 10), folder / "0.parquet")
        world.stage(world.request(key_of(number), source=Files(f"{folder}/*.parquet")))
    return world


def key_of(number):
    return f"key-{number}"


def landing(*numbers):
    return ("land", [{"key": key_of(number)} for number in numbers])


def test_eight_processes_that_commit_one_key_land_one_snapshot_and_all_report_it(world, runs):
    found = runs.together(*[(world, *landing(0))] * RACERS)
    outcomes = [run.result[0] for run in found]
    assert {one["snapshot_id"] for one in outcomes} == {world.table().current_snapshot().snapshot_id}
    assert [one["landed_now"] for one in outcomes].count(True) == 1
    assert_exactly_once(world, list(range(10)), (key_of(0),))


def test_eight_processes_that_commit_eight_keys_all_land(world, runs):
    found = runs.together(*[(world, *landing(number)) for number in range(RACERS)])
    assert [run.result[0]["landed_now"] for run in found] == [True] * RACERS
    assert_exactly_once(world, list(range(80)), tuple(map(key_of, range(RACERS))), snapshots=RACERS)


def test_processes_that_commit_overlapping_groups_land_each_key_once(world, runs):
    groups = [(0, 1), (1, 2), (0, 1, 2), (2, 3), (3,), (0, 3), (4, 0), (4,)]
    for run in runs.together(*[(world, "insist", landing(*group)[1]) for group in groups]):
        assert run.result, run.found
    keys = tuple(map(key_of, range(5)))
    assert_exactly_once(world, list(range(50)), keys, snapshots=len(own_snapshots(world)))
    assert len(own_snapshots(world)) <= 5


def test_commits_and_foreign_appends_at_the_same_time_lose_nothing(world, runs):
    foreign = [("append", [{"start": FOREIGN + 10 * n, "count": 5}]) for n in range(3)]
    jobs = [landing(number) for number in range(4)] + foreign
    found = runs.together(*[(world, *job) for job in jobs])
    assert [run.result[0]["landed_now"] for run in found[:4]] == [True] * 4
    # pyiceberg gives up after some tries of its own; what it reported as done must be there.
    appended = [FOREIGN + 10 * n + row for n, run in enumerate(found[4:]) if run.error is None for row in range(5)]
    assert_exactly_once(world, list(range(40)) + appended, tuple(map(key_of, range(4))), snapshots=4)


@pytest.mark.parametrize("scenario", [UNPARTITIONED, PARTITIONED], ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("attempt", range(3))
def test_four_attempts_of_one_write_at_the_same_time_are_there_once(runs, tmp_path, scenario, attempt):
    world = scenario.world(tmp_path)
    found = runs.together(*[(world, "write", list(scenario.writes))] * 4)
    assert len({run.result[0]["snapshot_id"] for run in found}) == 1
    assert_exactly_once(world, scenario.ids)
    # Each loser of a split was alive to remove its files, so nothing is left over.
    assert world.files_on_disk() == world.referenced_files()
    assert len(generations(world, "orders")[0].attempts()) <= 4


@pytest.mark.parametrize("attempt", range(6))
def test_a_commit_and_a_restart_at_the_same_time_end_in_one_version(runs, tmp_path, attempt):
    world = UNPARTITIONED.world(tmp_path)
    world.stage()
    older, newer = runs.together((world, "land", [{"key": "orders"}]), (world, "write", [{"marked": True, "on_change": "restart"}]))
    assert {older.error, newer.error} <= {None, "DiscardedError", "RestartRefusedError"}
    assert [older.error, newer.error].count(None) == 1
    assert len(own_snapshots(world)) == 1
    assert world.ids() == UNPARTITIONED.ids
