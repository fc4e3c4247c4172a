"""Commits of a key by several processes while others append, upsert, delete and compact at once: nothing doubled, nothing lost."""

from __future__ import annotations

import os

import pyarrow.parquet as pq
import pytest
from support.lance_racers import START, SWAP, Racers
from support.lance_world import FOREIGN, LanceWorld, expected
from support.world import rows

from airflow_ckpt_provider.sources import Files

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("ROUNDS", "4"))

COMMITTERS = 4

#: Rows of others that are there before; the first of them are deleted one by one meanwhile.
BEFORE, DELETED = 40, 15


@pytest.fixture(scope="module")
def racers():
    started = Racers(COMMITTERS + 5)
    yield started
    started.close()


def staged(world, key, start):
    folder = world.input / key
    folder.mkdir()
    for n in range(2):
        pq.write_table(rows(start + n * 5, 5), folder / f"{n}.parquet")
    return world.stage(world.request(key, source=Files(f"{folder}/*.parquet"))).checkpoint


def others(work, round_ids):
    return [
        {"do": "append", "start": round_ids + 1000, "times": work},
        {"do": "append", "start": round_ids + 2000, "times": work},
        {"do": "upsert", "start": round_ids + 3000, "times": work},
        {"do": "delete", "ids": list(range(FOREIGN, FOREIGN + DELETED))},
        {"do": "compact", "times": work},
    ]


def all_rows(ids, upserted):
    """What has to be in the dataset: rows with these ids, and those that Lance said were upserted, each as it was last."""
    kinds = dict(upserted)
    assert len(kinds) == len(upserted)
    return [row | {"kind": kinds.get(row["id"], row["kind"])} for row in expected(*ids, *kinds)]


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable row ids"])
@pytest.mark.parametrize("gate", [START, SWAP])
def test_one_key_lands_once_whatever_others_do_at_the_same_time(tmp_path, racers, gate, stable):
    for number in range(ROUNDS):
        world = LanceWorld(tmp_path / str(number))
        there = world.create_dataset(count=BEFORE, max_rows_per_file=4, enable_stable_row_ids=stable)
        checkpoint = staged(world, "orders", 0)
        jobs = [{"do": "land", "keys": [["orders", 1]]}] * COMMITTERS + others(20, FOREIGN)
        found = racers.race(world, jobs, gate)
        landed, (first, second, upserted, deleted, compactions) = [one for (one,) in found[:COMMITTERS]], found[COMMITTERS:]
        (carrier,) = [version for version in world.versions() if version.group == checkpoint.group().id]
        assert {version for version, _ in landed} == {carrier.number}
        assert [landed_now for _, landed_now in landed].count(True) == 1
        assert compactions
        assert first
        assert second
        assert upserted
        assert world.table_rows() == all_rows([*range(10), *(set(there) - set(deleted)), *first, *second], upserted)
        world.dataset.validate()


def test_several_keys_each_committed_twice_land_once_each_whatever_others_do(tmp_path, racers):
    for number in range(ROUNDS):
        world = LanceWorld(tmp_path / str(number))
        there = world.create_dataset(count=BEFORE, max_rows_per_file=4)
        for n in range(2):
            staged(world, f"key-{n}", n * 10)
        jobs = [{"do": "land", "keys": [[f"key-{n % 2}", 1]]} for n in range(COMMITTERS)] + others(20, FOREIGN)
        found = racers.race(world, jobs)
        first, second, upserted, deleted, _ = found[COMMITTERS:]
        own = world.own_versions()
        assert sorted(version.key for version in own) == ["key-0", "key-1"]
        assert {version.key: version.number for version in own} == {f"key-{n % 2}": found[n][0][0] for n in range(COMMITTERS)}
        assert [one[0][1] for one in found[:COMMITTERS]].count(True) == 2
        assert world.table_rows() == all_rows([*range(20), *(set(there) - set(deleted)), *first, *second], upserted)
        world.dataset.validate()
