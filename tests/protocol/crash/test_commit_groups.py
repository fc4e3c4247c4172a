"""Several checkpoints in one commit, begun, broken off and repeated with other members: each row once, in few snapshots."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from protocol.crash.exactly_once import assert_exactly_once, own_snapshots
from protocol.crash.maintenance import expire_all_but_the_head, foreign_append, forget_the_record
from protocol.crash.points import Points
from support.world import World

from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import CommitUnderWayError, DiscardedError, NotSealedError, StagedFileMissingError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.write import groups

pytestmark = pytest.mark.crash

KEYS = ("a", "b", "c")
IDS = list(range(60))


@pytest.fixture
def world(tmp_path):
    """Three keys of two files each, staged and sealed."""
    world = World(tmp_path)
    world.create_table()
    world.put_files(6, 10)
    for key in KEYS:
        world.stage(request_of(world, key))
    return world


def request_of(world, key, **changes):
    first = 2 * KEYS.index(key)
    return world.request(key, source=Files(f"{world.input}/[{first}{first + 1}].parquet", max_split_bytes=1), **changes)


def commit(world, *keys):
    return groups.commit([world.attempt(request_of(world, key)).checkpoint for key in keys], world.as_table())


def land(*keys):
    return [{"key": key} for key in keys]


def point(runs, world, *keys, after):
    """Commit in a process that is killed at the first effect of this name."""
    probe = World(world.root / "probe")
    probe.create_table()
    probe.put_files(6, 10)
    for key in KEYS:
        probe.stage(request_of(probe, key))
    number = runs.run(probe, *land(*keys), do="land").effects.index(after) + 1
    run = runs.run(world, *land(*keys), do="land", fatal=number)
    assert run.effects[-1] == after
    return run


def test_all_members_of_a_group_land_in_one_snapshot_whatever_their_order(world):
    settled = commit(world, "c", "a", "b")
    assert [one.checkpoint.key.value for one in settled] == ["c", "a", "b"]
    assert len({one.commit.commit_id for one in settled}) == 1
    again = commit(world, "b", "c", "a")
    assert not any(one.landed_now for one in again)
    assert_exactly_once(world, IDS, KEYS)


def test_a_group_killed_after_its_first_member_was_bound_is_settled_by_what_comes_later(world, runs):
    point(runs, world, "a", "b", after="after put g1/group.json")
    commit(world, "b")
    assert world.ids() == list(range(20, 40))
    commit(world, "a", "b", "c")
    # B alone, then A as what is left of the first group, then C.
    assert_exactly_once(world, IDS, KEYS, snapshots=3)


def test_a_larger_group_settles_the_earlier_one_first(world, runs):
    point(runs, world, "a", "b", after="before commit of the table")
    settled = commit(world, "a", "b", "c")
    ids = [one.commit.commit_id for one in settled]
    assert ids[0] == ids[1] != ids[2]
    assert_exactly_once(world, IDS, KEYS, snapshots=2)


def test_a_larger_group_finds_that_the_earlier_one_has_landed(world, runs):
    point(runs, world, "a", "b", after="after commit of the table")
    settled = commit(world, "a", "b", "c")
    assert [one.landed_now for one in settled] == [False, False, True]
    assert_exactly_once(world, IDS, KEYS, snapshots=2)


@pytest.mark.parametrize("after", ["after put g1/group.json", "before commit of the table"])
def test_a_smaller_commit_lands_nothing_that_it_was_not_told_to_and_names_the_other(world, runs, after):
    point(runs, world, "a", "b", after=after)
    with pytest.raises(CommitUnderWayError, match=r"'a' to shop\.orders was begun together with 'b', and this task was not"):
        commit(world, "a")
    assert world.ids() == []
    commit(world, "b", "a")
    assert_exactly_once(world, list(range(40)), ("a", "b"))
    assert world.attempt(request_of(world, "a")).state is State.COMMITTED


@pytest.mark.parametrize("order", list(itertools.permutations(["ab", "bc", "abc"])), ids="-".join)
def test_overlapping_groups_killed_at_every_effect_land_each_row_once(world, runs, order, tmp_path):
    """Three commits of overlapping members; the first is killed at each effect, the second a few effects in."""
    points = Points(runs, _copy(world, tmp_path / "copy"), *land(*order[0]), do="land")
    for number in range(1, len(points.run.effects) + 1, 3):
        one = points.at(number)
        runs.run(one, *land(*order[1]), do="land", fatal=1 + number % 5)
        third = runs.run(one, *land(*order[2]), do="land")
        # What the first has begun with others is not committed without them.
        assert third.error == "CommitUnderWayError" or third.result
        assert runs.run(one, *land(*KEYS), do="land").result
        assert_exactly_once(one, IDS, KEYS, snapshots=len(own_snapshots(one)))
        assert len(own_snapshots(one)) <= 3


def _copy(world, root):
    """Another world of the same content: tables know their place, so that a copy of the folder will not do."""
    other = World(root)
    other.create_table()
    other.put_files(6, 10)
    for key in KEYS:
        other.stage(request_of(other, key))
    return other


def test_a_group_that_landed_and_expired_is_found_by_each_member_alone(world):
    commit(world, "a", "b")
    for key in ("a", "b"):
        forget_the_record(world, world.attempt(request_of(world, key)).checkpoint)
    foreign = foreign_append(world)
    expire_all_but_the_head(world)
    for key in ("b", "a"):
        (again,) = commit(world, key)
        assert again.landed_now is False
    assert world.ids() == [*range(40), *foreign]


def test_a_group_whose_staged_file_is_gone_changes_nothing_and_names_the_file(world):
    checkpoint = world.attempt(request_of(world, "b")).checkpoint
    lost = Path(checkpoint.staged(["000001"])[0].files[0].path.removeprefix("file://"))
    lost.rename(world.root / "elsewhere")
    with pytest.raises(StagedFileMissingError, match=r"1 of 8 staged files of shop\.orders are gone or damaged.*000001"):
        commit(world, "a", "b")
    assert own_snapshots(world) == []
    (world.root / "elsewhere").rename(lost)
    commit(world, "a", "b")
    assert_exactly_once(world, list(range(40)), ("a", "b"))


def test_a_group_with_an_unsealed_member_commits_nothing_and_binds_nobody(world):
    world.put_files(8, 10)
    source = Files(f"{world.input}/[67].parquet", max_split_bytes=1)
    half = world.stage(world.request("d", source=source), splits=1)
    sealed = world.attempt(request_of(world, "a")).checkpoint
    with pytest.raises(NotSealedError, match="'d' is not sealed"):
        groups.commit([sealed, half.checkpoint], world.as_table())
    assert bound_group(sealed) is None
    assert own_snapshots(world) == []


def test_members_without_rows_are_committed_with_the_others_and_alone_without_a_snapshot(world):
    empty = world.stage(world.request("empty", source=Files(f"{world.input}/none-*.parquet")))
    (alone,) = world.commit(empty)
    assert (alone.commit.commit_id, alone.commit.rows, alone.landed_now) == (None, 0, False)
    assert world.table().snapshots() == []
    second = world.stage(world.request("also empty", source=Files(f"{world.input}/none-*.parquet")))
    settled = groups.commit([second.checkpoint, world.attempt(request_of(world, "a")).checkpoint], world.as_table())
    assert len({one.commit.commit_id for one in settled}) == 1
    assert world.ids() == list(range(20))


def test_a_member_restarted_after_a_group_was_begun_stops_the_group_and_says_so(world, runs):
    point(runs, world, "a", "b", after="before commit of the table")
    restarted = world.stage(request_of(world, "b", restart_token="again"))
    sealed = world.attempt(request_of(world, "a")).checkpoint
    with pytest.raises(DiscardedError, match=r"'b' was discarded.*together with 'a' was begun.*restart"):
        groups.commit([sealed, restarted.checkpoint], world.as_table())
    assert own_snapshots(world) == []
    again = world.stage(request_of(world, "a", restart_token="again"))
    groups.commit([again.checkpoint, restarted.checkpoint], world.as_table())
    assert_exactly_once(world, list(range(40)), ("a", "b"))
