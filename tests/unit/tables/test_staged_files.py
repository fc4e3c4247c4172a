"""Before every commit each staged file is looked at: one that is gone or cut stops it, however lately it was written (I5)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from support.lance_world import LanceWorld
from support.world import World

from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.exceptions import StagedFileMissingError
from airflow_ckpt_provider.write import groups, staged_files


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files(4, 10)
    return world


@pytest.fixture
def dataset(tmp_path):
    world = LanceWorld(tmp_path)
    world.create_dataset()
    world.put_files(4, 10)
    return world


def gone(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def a_data_file(attempt, split="000001"):
    return attempt.checkpoint.staged([split])[0].files[0].path


@pytest.mark.parametrize("damage", [gone, cut])
def test_a_commit_right_after_its_stage_misses_a_data_file(world, damage):
    attempt = world.stage()
    lost = a_data_file(attempt)
    damage(Path(lost.removeprefix("file://")))
    with pytest.raises(
        StagedFileMissingError, match=f"1 of 8 staged files of shop.orders are gone or damaged, for instance {lost}"
    ):
        world.commit(attempt)
    assert world.table().snapshots() == []


@pytest.mark.parametrize("damage", [gone, cut])
def test_a_commit_right_after_its_stage_misses_a_manifest(world, damage):
    attempt = world.stage()
    manifest = attempt.checkpoint.sealed().manifests[2]["path"]
    damage(Path(manifest.removeprefix("file://")))
    with pytest.raises(StagedFileMissingError, match=f"1 of 8 staged files .* for instance {manifest}"):
        world.commit(attempt)
    assert world.table().snapshots() == []


@pytest.mark.parametrize("damage", [gone, cut])
def test_a_commit_right_after_its_stage_misses_a_file_of_a_dataset(dataset, damage):
    attempt = dataset.stage()
    lost = a_data_file(attempt)
    damage(Path(lost.removeprefix("file://")))
    before = dataset.versions()
    with pytest.raises(StagedFileMissingError, match=f"1 of 4 staged files .* for instance {lost}"):
        dataset.commit(attempt)
    assert dataset.versions() == before


def test_a_commit_that_was_begun_and_killed_looks_again(world):
    attempt = world.stage()
    lost = Path(a_data_file(attempt).removeprefix("file://"))
    kept = lost.read_bytes()
    lost.unlink()
    for _ in range(2):
        with pytest.raises(StagedFileMissingError):
            world.commit(attempt)
    assert bound_group(attempt.checkpoint) is not None
    lost.write_bytes(kept)
    world.commit(attempt)
    assert world.ids() == list(range(40))


def test_a_file_that_is_lost_while_a_commit_waits_for_its_catalog_is_missed_by_the_next_swap(world, monkeypatch):
    attempt = world.stage()
    lost = Path(a_data_file(attempt).removeprefix("file://"))
    swaps = []

    def unreachable(*_):
        swaps.append(time.monotonic())
        lost.unlink(missing_ok=True)
        raise ConnectionError("no answer")

    monkeypatch.setattr(SqlCatalog, "commit_table", unreachable)
    monkeypatch.setattr(staged_files, "_AGAIN_S", 0.0)
    monkeypatch.setattr(staged_files, "_AGAIN_TIMES", 0.0)
    with pytest.raises(StagedFileMissingError):
        world.commit(attempt)
    assert len(swaps) == 1
    assert world.table().snapshots() == []


def test_who_commits_is_told_how_many_files_were_looked_at_and_how_long_that_took(world):
    attempt = world.stage()
    costs = []
    groups.commit([attempt.checkpoint], world.as_table(), tell_cost=costs.append)
    (cost,) = costs
    assert cost.files == 8
    assert 0 < cost.seconds < 60
    groups.commit([attempt.checkpoint], world.as_table(), tell_cost=costs.append)
    assert len(costs) == 1


def test_the_files_of_a_table_in_s3_are_missed_where_lists_show_the_others(tmp_path, s3_bucket):
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": s3_bucket.uri("warehouse"),
        "s3.endpoint": s3_bucket.options["endpoint"],
        "s3.access-key-id": s3_bucket.options["access_key_id"],
        "s3.secret-access-key": s3_bucket.options["secret_access_key"],
        "s3.region": "us-east-1",
    }
    world = World(tmp_path / "world", properties)
    world.create_table()
    world.put_files(110, 1)
    attempt = world.stage()
    lost, damaged = (a_data_file(attempt, split).removeprefix(s3_bucket.uri()) for split in ("000007", "000100"))
    kept = {path: s3_bucket.contents(path)[path] for path in (lost, damaged)}
    s3_bucket.delete(lost)
    s3_bucket.put(damaged, b"half")
    with pytest.raises(StagedFileMissingError, match="2 of 111 staged files"):
        world.commit(attempt)
    for path, data in kept.items():
        s3_bucket.put(path, data)
    world.commit(attempt)
    assert world.ids() == list(range(110))


def test_the_files_of_a_dataset_in_s3_are_missed_where_a_list_shows_the_others(tmp_path, s3_bucket):
    world = LanceWorld(tmp_path, s3_bucket.uri("orders.lance"), s3_bucket.options, s3_bucket.uri("store"))
    world.create_dataset()
    world.put_files(25, 1)
    attempt = world.stage()
    lost = a_data_file(attempt, "000007").removeprefix(s3_bucket.uri())
    kept = s3_bucket.contents(lost)[lost]
    s3_bucket.delete(lost)
    with pytest.raises(StagedFileMissingError, match="1 of 25 staged files"):
        world.commit(attempt)
    s3_bucket.put(lost, kept)
    world.commit(attempt)
    assert len(world.own_versions()) == 1
