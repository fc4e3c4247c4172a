"""What a write asks of its checkpoint store: as many requests and bytes as it has members and splits, and no more.

Local stores and S3 take the same requests, but for looks into folders, which a local store has even if they are empty.
"""

from __future__ import annotations

import pytest
from support.request_counts import counted
from support.world import World, rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, State
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.sources import Files


@pytest.fixture(params=["local", "s3"])
def world(request, tmp_path):
    world = World(tmp_path)
    if request.param == "s3":
        bucket = request.getfixturevalue("s3_bucket")
        world.store = CheckpointStore.at(bucket.uri("checkpoints"), **bucket.options)
    world.create_table()
    return world


def staged(world, members):
    """So many writes of one file each."""
    import pyarrow.parquet as pq

    attempts = []
    for number in range(members):
        pq.write_table(rows(number * 10, 10), world.input / f"{number}.parquet")
        source = Files(f"{world.input}/{number}.parquet", max_split_bytes=1)
        attempts.append(world.stage(world.request(key=f"orders/{number}", source=source)))
    return [Checkpoint.at(world.store, attempt.checkpoint.key, 1) for attempt in attempts]


def committed(world, checkpoints):
    from airflow_ckpt_provider.write import groups

    with counted() as requests:
        groups.commit(checkpoints, world.target())
    return requests


@pytest.mark.parametrize("members", [1, 5, 20])
def test_a_commit_asks_of_each_member_the_same_however_many_there_are(world, members):
    requests = committed(world, staged(world, members))
    assert world.ids() == list(range(10 * members))
    # The seal and the one after it, which is not there; is it recorded, discarded; its plan, its split; discarded, once more.
    assert requests["get"] == 7 * members
    # Is it bound?
    assert requests["head"] == members
    # It is bound and recorded; and the list of all, of several.
    assert requests["put"] == 2 * members + (members > 1)
    # Its attempts, whose names its files bear.
    assert requests["list"] == members
    assert set(requests) == {"get", "head", "put", "list"}


def test_the_bytes_of_a_commit_grow_with_its_members_and_not_with_their_square(world):
    few, many = (committed(world, staged(world, members)).bytes_put / members for members in (4, 20))
    assert many < 1.1 * few


def test_a_commit_that_has_landed_is_settled_without_a_look_at_what_was_staged(world):
    checkpoints = staged(world, 5)
    committed(world, checkpoints)
    requests = committed(world, checkpoints)
    assert requests["put"] == requests["list"] == 0
    # The seal and the one after it, and the record; what it was bound to, of the first, and of that the list of all.
    assert requests["get"] == 3 * 5 + 2


@pytest.mark.parametrize("splits", [1, 30])
def test_opening_a_key_lists_its_generations_and_not_what_they_hold(world, splits):
    world.put_files(files=splits, rows_each=2)
    attempt = world.stage()
    with counted() as requests:
        latest = Checkpoint.latest(world.store, attempt.checkpoint.key)
    assert latest.header == attempt.checkpoint.header
    assert requests["list_with_delimiter"] == 1
    assert requests["list"] == (1 if world.store.location.is_local else 0)
    assert requests["get"] == 1
    with counted() as requests:
        assert latest.state() is State.SEALED
    assert requests.total() == 3
