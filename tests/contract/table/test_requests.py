"""What a write asks of its checkpoint store: as many requests and bytes as it has members and splits, and no more.

Local stores and S3 take the same requests, but for looks into folders, which a local store has even if they are empty.
"""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest
from support.request_counts import counted
from support.world import World, rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import InputChangedError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.sources.files import listing
from airflow_ckpt_provider.write import commits, groups
from airflow_ckpt_provider.write.cleanup import clean


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
    with counted() as requests:
        groups.commit(checkpoints, world.as_table())
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
    assert requests["put"] == 0
    # Its generations: does a later one undo it? A local store looks into the folder of each.
    assert requests["list_with_delimiter"] == 5
    assert requests["list"] == (5 if world.store.location.is_local else 0)
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
        assert state_of(latest) is State.SEALED
    assert requests.total() == 3


@pytest.mark.parametrize("splits", [2, 7])
def test_each_operation_asks_for_each_split_once_and_for_the_rest_as_often_however_many_there_are(world, splits):
    world.put_files(splits, 2)
    # A local store lists a folder of a generation to see that it is not empty.
    look = 1 if world.store.location.is_local else 0
    with counted() as requests:
        world.stage(splits=splits - 1)
    # Header, plan and attempt, and the splits that were staged; of each, is it staged by now, and is its file as it was? There
    # is no plan: was there one, whose records are cleaned up?
    assert requests == {"put": 3 + splits - 1, "head": 1 + 2 * (splits - 1), "get": 6, "list": 3, "list_with_delimiter": 1}
    with counted() as requests:
        attempt = world.stage()
    # Attempt, the last split, and the seal; the record of each split. What pieces there are, and whose files those of the seal are.
    assert requests == {"put": 3, "head": 3, "get": 14 + splits, "list": 7 + look, "list_with_delimiter": 1}
    with counted() as requests:
        world.stage()
    # It is sealed: what its records name is looked at, and nothing is put.
    assert requests == {"get": 14 + splits, "list": 2 + look, "list_with_delimiter": 1}
    world.commit(attempt)
    with counted() as requests:
        latest = Checkpoint.latest(world.store, attempt.checkpoint.key)
        commits.verify(latest, latest.committed(), world.as_table())
    # What a sensor asks: the header, the record and the group of the commit.
    assert requests == {"get": 3, "list_with_delimiter": 1} | ({"list": look} if look else {})
    with counted() as requests:
        list(clean(latest, lambda _: world.as_table()))
    assert requests == {"get": 6 + splits, "list": 2 + look, "list_with_delimiter": 1}


def a_source(bucket, files=40):
    """So many small input files in object storage."""
    import io

    import pyarrow.parquet as pq

    for number in range(files):
        sink = io.BytesIO()
        pq.write_table(rows(number * 2, 2), sink)
        bucket.put(f"in/{number:03d}.parquet", sink.getvalue())
    return {"source": Files(bucket.uri("in/*.parquet"), max_split_bytes=1), "options": bucket.options}


@pytest.fixture
def reading(tmp_path, s3_bucket):
    world = World(tmp_path)
    world.create_table()
    return world


def test_a_stage_looks_at_no_input_file_that_it_has_just_listed(reading, s3_bucket):
    attempt = reading.attempt(reading.request(**a_source(s3_bucket)))
    with counted() as requests:
        found = attempt.next_round()
    assert len(found.missing) == 40
    # Is what the source names one file? And the table's store: is the key there?
    assert requests["head"] <= 2


def test_a_retry_lists_its_input_files_and_looks_at_none_of_them(reading, s3_bucket):
    request = reading.request(**a_source(s3_bucket))
    reading.stage(request, splits=5)
    attempt = reading.attempt(request)
    with counted() as requests:
        found = attempt.next_round()
    assert len(found.missing) == 35
    assert requests["head"] <= 2
    assert requests["list"] <= 3


@pytest.mark.parametrize("change", ["written again", "removed"])
def test_a_retry_that_lists_its_input_files_names_those_that_changed(reading, s3_bucket, change):
    request = reading.request(**a_source(s3_bucket))
    reading.stage(request, splits=5)
    if change == "removed":
        s3_bucket.delete("in/007.parquet")
    else:
        s3_bucket.put("in/007.parquet", b"x")
    with pytest.raises(InputChangedError, match=r"1 input file\(s\) changed(?s:.*)in/007\.parquet"):
        reading.attempt(request).next_round()


def test_very_many_other_files_do_not_keep_a_retry_from_looking_at_its_own(reading, s3_bucket, monkeypatch):
    """Those of its files that the first replies to a list do not show are looked at one by one."""
    monkeypatch.setattr(listing, "_REPLY", 20)
    request = reading.request(**a_source(s3_bucket))
    reading.stage(request, splits=5)
    for number in range(60):
        s3_bucket.put(f"in/000-{number:02d}.other", b"")
    s3_bucket.delete("in/039.parquet")
    with counted() as requests, pytest.raises(InputChangedError, match=r"1 input file\(s\) changed(?s:.*)in/039\.parquet"):
        reading.attempt(request).next_round()
    assert requests["head"] <= 45


@contextlib.contextmanager
def loads_of_the_table():
    from pyiceberg.catalog.sql import SqlCatalog

    found, load = [], SqlCatalog.load_table
    with mock.patch.object(SqlCatalog, "load_table", lambda *args: found.append(args[1]) or load(*args)):
        yield found


@pytest.mark.parametrize("splits", [2, 10])
def test_a_stage_loads_its_table_for_what_may_have_changed_and_not_for_each_question(tmp_path, splits):
    world = World(tmp_path)
    world.create_table()
    world.put_files(splits, 2)
    with loads_of_the_table() as loads:
        world.stage(splits=1)
    # Can the mode work on it, what is it, does its history know the key; and what the tasks are to write.
    assert len(loads) == 4
    with loads_of_the_table() as loads:
        world.stage()
    # The same without its history, and with a look at the files that were staged before.
    assert len(loads) == 4
