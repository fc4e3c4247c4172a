"""Commits of a key by several processes while others append, upsert, delete and compact at once: nothing doubled, nothing lost."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.lance_racers import START, SWAP, Racers
from support.lance_world import FOREIGN, LanceWorld, expected
from support.world import rows

from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.sources import Files

pytestmark = pytest.mark.crash

#: Of each load; ``dev.py matrix`` runs many.
ROUNDS = int(os.environ.get("ROUNDS", "1"))

COMMITTERS = 4

#: Rows of others that are there before; the first of them are deleted one by one meanwhile.
BEFORE, DELETED = 40, 15

#: First id of the rows that are upserted by us, of which two are there before.
OURS = FOREIGN + 5000


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
        (carrier,) = [version for version in world.versions() if version.group == bound_group(checkpoint).id]
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


def our_upsert(world, number):
    """An upsert of the first row, of the newest, and of one more."""
    key = f"upsert-{number}"
    folder = world.input / key
    folder.mkdir()
    table = pa.concat_tables([rows(OURS, 1), rows(OURS + 1 + number, 2)])
    table = table.set_column(table.schema.get_field_index("kind"), "kind", pa.array([key] * len(table)))
    pq.write_table(table, folder / "0.parquet")
    return world.request(key, source=Files(f"{folder}/*.parquet"), mode="upsert", parameters={"upsert_keys": ["id"]})


def landed_version(world, request, attempt=None):
    """Commit it, and stage it again as often as others have changed what it was matched with."""
    while True:
        attempt = attempt or world.stage(request)
        try:
            (settled,) = world.commit(attempt)
        except TableMovedError:
            attempt = None
        else:
            return settled.commit.commit_id


@contextlib.contextmanager
def upserting(world, at_most):
    """Meanwhile, land one upsert after the other; the version of each, by its key.

    The first is staged before the others begin, and one more lands after they have ended at the latest.
    """
    ended, landed = threading.Event(), {}
    requests = [our_upsert(world, number) for number in range(at_most)]
    first = world.stage(requests[0])

    def work():
        for number, request in enumerate(requests):
            if number > 1 and ended.is_set():
                return
            landed[request.key.value] = landed_version(world, request, None if number else first)

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            yield landed
        finally:
            ended.set()
        working.result()


@pytest.mark.parametrize(
    ("place", "stable"), [("local", False), ("local", True), ("s3", False)], ids=["local", "local, stable row ids", "s3"]
)
def test_upserts_and_an_append_of_ours_land_once_each_whatever_others_do_at_the_same_time(tmp_path, request, racers, place, stable):
    bucket = request.getfixturevalue("s3_bucket") if place == "s3" else None
    for number in range(ROUNDS):
        root = tmp_path / str(number)
        world = LanceWorld(root) if bucket is None else LanceWorld(root, bucket.uri(f"{number}/orders.lance"), bucket.options)
        there = world.create_dataset(count=BEFORE, max_rows_per_file=4, enable_stable_row_ids=stable)
        world.foreign_append(OURS, 2)
        staged(world, "orders", 0)
        jobs = [{"do": "land", "keys": [["orders", 1]]}] * COMMITTERS + others(20 if bucket is None else 4, FOREIGN)
        with upserting(world, at_most=4) as landed:
            found = racers.race(world, jobs)
        committed, (first, second, upserted, deleted, _) = [one for (one,) in found[:COMMITTERS]], found[COMMITTERS:]
        assert [landed_now for _, landed_now in committed].count(True) == 1
        landed["orders"] = committed[0][0]
        assert {version for version, _ in committed} == {landed["orders"]}
        assert sorted((version.key, version.number) for version in world.own_versions()) == sorted(landed.items())
        *before, last = sorted(landed.keys() - {"orders"})
        ours = {OURS + 1 + n: key for n, key in enumerate([*before, last, last])} | {OURS: last}
        ids = [*range(10), *(set(there) - set(deleted)), *first, *second]
        assert world.table_rows() == all_rows(ids, [*upserted, *ours.items()])
        world.dataset.validate()
