"""Staged files that somebody deletes or cuts before the commit: the cleared stage stages again what is missing, and all rows land.

Each file that a write leaves behind is lost in turn: data files, manifests, staged source files, sidecars, deletion files, row ids.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.table.both import UPSERT, Iceberg, Lance, StableLance, marked
from support.columns import columns_request, computed
from support.lance_world import LanceWorld

from airflow_ckpt_provider.exceptions import CheckpointMissingError, StagedFileMissingError
from airflow_ckpt_provider.write import groups

#: Ids of the input: half of them are there before.
INPUT, BEFORE = range(40), range(20, 60)

WRITES = {
    "append": ({}, {**dict.fromkeys(BEFORE, 1), **{n: 1 + (n in BEFORE) for n in INPUT}}),
    "overwrite": ({"mode": "overwrite"}, dict.fromkeys(INPUT, 1)),
    "upsert": (UPSERT | {"transform": marked}, dict.fromkeys(range(60), 1)),
    "inserts only": (
        {"mode": "upsert", "parameters": {"upsert_keys": ["id"], "when_matched": "ignore"}, "transform": marked},
        dict.fromkeys(range(60), 1),
    ),
}

FILTERED = {"mode": "overwrite", "parameters": {"overwrite_filter": "id < 40"}}

KINDS = {"iceberg": Iceberg, "lance": Lance, "lance with stable row ids": StableLance}

CASES = [(kind, write) for kind in KINDS for write in WRITES]


def gone(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def world_of(kind, root):
    world = KINDS[kind](root)
    world.put_files(2, 20)
    world.make(BEFORE)
    return world


def counted(world):
    found = {}
    for row in world.read():
        found[row["id"]] = found.get(row["id"], 0) + 1
    return found


def written(world):
    return sorted(Path(path) for path in world.files_on_disk())


def kinds_of(world, ids):
    return {row["id"] for row in world.read() if row["kind"] == "marked"} == set(ids)


def refused(world, attempt):
    """What a commit says of lost files; nothing if it landed, because it needed none of them."""
    try:
        world.commit(attempt)
    except StagedFileMissingError as error:
        return str(error)
    return ""


def assert_landed(world, write):
    assert counted(world) == WRITES[write][1]
    if write == "upsert":
        assert kinds_of(world, INPUT)
    elif write == "inserts only":
        assert kinds_of(world, set(INPUT) - set(BEFORE))


@pytest.mark.parametrize("damage", [gone, cut])
@pytest.mark.parametrize(("kind", "write"), CASES)
def test_a_file_that_is_lost_before_the_commit_is_staged_anew_by_the_cleared_stage(tmp_path, kind, write, damage):
    facts, _ = WRITES[write]
    stopped = 0
    whole = world_of(kind, tmp_path / "whole")
    whole.stage(whole.request(**facts))
    for number in range(len(written(whole))):
        world = world_of(kind, tmp_path / str(number))
        attempt = world.stage(world.request(**facts))
        before = attempt.checkpoint.staged_ids()
        lost = written(world)[number]
        damage(lost)
        commits = world.commits()
        said = refused(world, attempt)
        if said:
            stopped += 1
            assert world.commits() == commits
            assert lost.name in said
            assert "Clear the stage ('stage'): it stages again what is missing" in said
            again = world.stage(world.request(**facts))
            assert again.lost > 0
            if write in {"append", "overwrite"}:
                assert len(again.checkpoint.staged_ids() - before) == 1
            world.commit(again)
        assert_landed(world, write)
        assert world.commits() == commits + 1
    assert stopped >= 2


@pytest.mark.parametrize(("kind", "write"), CASES)
def test_a_file_that_is_lost_while_a_stage_is_down_is_staged_anew_by_its_retry(tmp_path, kind, write):
    facts, _ = WRITES[write]
    whole = world_of(kind, tmp_path / "whole")
    splits = len(whole.stage(whole.request(**facts)).checkpoint.staged_ids())
    for done in range(1, splits + 1):
        there = world_of(kind, tmp_path / f"{done}")
        there.stage(there.request(**facts), splits=done)
        for number in range(len(written(there))):
            world = world_of(kind, tmp_path / f"{done}-{number}")
            world.stage(world.request(**facts), splits=done)
            files = written(world)
            # Which splits come first follows from the names of the dataset's files, which are others in each world.
            gone(files[number % len(files)])
            world.commit(world.stage(world.request(**facts)))
            assert_landed(world, write)


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_that_cannot_read_what_others_have_staged_says_so_and_the_next_try_goes_on(tmp_path, kind):
    facts, _ = WRITES["upsert"]
    for damage in (gone, cut, lambda path: path.write_bytes(b"?" * path.stat().st_size)):
        world = world_of(kind, tmp_path / str(id(damage)))
        attempt = world.attempt(world.request(**facts))
        problems = []
        while (found := attempt.next_round()) is not None:
            work = attempt.begin("none", 1)
            if found.number > 1:
                lost = written(world)[0]
                damage(lost)
                for split in found.missing:
                    with pytest.raises(StagedFileMissingError, match=r"gone or damaged|cannot be read") as raised:
                        work.run(split, "0")
                    problems.append(raised.value)
                    assert lost.name in str(raised.value)
                break
            for split in found.missing:
                work.run(split, "0")
        assert problems
        lost.unlink(missing_ok=True)
        world.commit(world.stage(world.request(**facts)))
        assert_landed(world, "upsert")


def test_a_file_at_the_boundary_of_a_filter_that_is_lost_is_staged_anew(tmp_path):
    whole = world_of("iceberg", tmp_path / "whole")
    whole.stage(whole.request(**FILTERED))
    for number in range(len(written(whole))):
        world = world_of("iceberg", tmp_path / str(number))
        attempt = world.stage(world.request(**FILTERED))
        gone(written(world)[number])
        with pytest.raises(StagedFileMissingError):
            world.commit(attempt)
        world.commit(world.stage(world.request(**FILTERED)))
        assert counted(world) == dict.fromkeys(range(60), 1)


def test_values_of_new_columns_that_are_lost_are_computed_anew(tmp_path):
    def begun(root):
        world = LanceWorld(root)
        world.create_dataset(0, 25, max_rows_per_file=15)
        return world

    whole = begun(tmp_path / "whole")
    whole.stage(columns_request(whole))
    for number in range(len(written(whole))):
        world = begun(tmp_path / str(number))
        attempt = world.stage(columns_request(world))
        lost = written(world)[number]
        gone(lost)
        try:
            world.commit(attempt)
        except StagedFileMissingError:
            groups.commit([world.stage(columns_request(world)).checkpoint], world.as_table())
        assert computed(world) == list(range(25))


def test_what_is_lost_again_and_again_is_staged_again_and_again(tmp_path):
    world = world_of("iceberg", tmp_path)
    for _ in range(3):
        attempt = world.stage(world.request())
        for path in written(world):
            if path.suffix == ".parquet":
                path.unlink()
        with pytest.raises(StagedFileMissingError):
            world.commit(attempt)
    landed = world.stage(world.request())
    world.commit(landed)
    assert_landed(world, "append")
    assert landed.checkpoint.sealed().round == 4


def test_a_lost_list_of_merged_files_is_made_anew_without_staging_a_split(tmp_path):
    world = world_of("iceberg", tmp_path)
    world.put_files(30, 1)
    attempt = world.stage(world.request())
    listed = {manifest["path"] for manifest in attempt.checkpoint.sealed().manifests}
    own = {record.manifest["path"] for record in attempt.checkpoint.staged(sorted(attempt.checkpoint.staged_ids()))}
    for path in listed - own:
        Path(path.removeprefix("file://")).unlink()
    assert listed - own
    with pytest.raises(StagedFileMissingError):
        world.commit(attempt)
    before = attempt.checkpoint.staged_ids()
    again = world.stage(world.request())
    assert again.checkpoint.staged_ids() == before
    world.commit(again)
    assert counted(world) == {n: 1 + (n in BEFORE and n < 30) for n in range(60)}


def test_a_group_whose_member_lost_a_file_lands_whole_once_that_is_staged_anew(tmp_path):
    world = world_of("iceberg", tmp_path)
    first, second = (world.stage(world.request(key)) for key in ("a", "b"))
    gone(Path(second.checkpoint.staged(["000001"])[0].files[0].path.removeprefix("file://")))
    commits = world.commits()
    with pytest.raises(StagedFileMissingError):
        world.commit(first, second)
    again = world.stage(world.request("b"))
    world.commit(first, again)
    assert world.commits() == commits + 1
    assert {n: count for n, count in counted(world).items() if n in INPUT} == {n: 2 + (n in BEFORE) for n in INPUT}


@pytest.mark.parametrize("kind", ["iceberg", "lance"])
def test_a_plan_that_the_store_has_lost_is_named_and_nothing_is_changed(tmp_path, kind):
    """The plans of an upsert's rounds are read one after the other: without the second, there seems to be one."""
    world = world_of(kind, tmp_path)
    request = world.request(**WRITES["upsert"][0])
    checkpoint = world.stage(request).checkpoint
    before = counted(world)
    (Path(checkpoint.store.location.path) / checkpoint.paths.plan(2)).unlink()
    with pytest.raises(CheckpointMissingError, match="the plan of its round 2 is gone"):
        world.stage(request)
    assert counted(world) == before
