"""One generation of one key: opened, planned, staged, sealed, committed, discarded. Each act is safe to repeat and to race."""

from __future__ import annotations

from datetime import timedelta

import obstore
import pytest
from msgspec.structs import replace
from support.samples import AT, HEADER, KEY, MANIFEST_JSON, SAMPLES

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Plan, Split, Staged, StagedFile
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    CheckpointMissingError,
    CorruptObjectError,
    DiscardedError,
)

COMMIT = SAMPLES["commit.json"]
ATTEMPT = SAMPLES["attempt.json"]


def plan_of(*ids, created_at=AT):
    return Plan(created_at=created_at, source={}, splits=tuple(Split(id=i, bytes=1, read={}) for i in ids))


def staged(split, rows=10, writer="a.0"):
    files = (StagedFile(f"/data/{split}.parquet", 100),) if rows else ()
    manifest = MANIFEST_JSON if rows else None
    return Staged(split=split, writer=writer, published_at=AT, rows=rows, bytes=100 * len(files), files=files, manifest=manifest)


# -- generations and binding ----------------------------------------------------------------------------------------------


def test_a_key_that_was_never_used_has_no_generation(store):
    assert Checkpoint.latest(store, KEY) is None
    with pytest.raises(CheckpointMissingError, match=r"generation 1.*same checkpoint connection"):
        Checkpoint.at(store, KEY, 1)


def test_the_latest_generation_is_the_highest_number_and_not_the_last_name(store):
    for generation in (1, 2, 9, 10):
        Checkpoint.create(store, replace(HEADER, generation=generation))
    assert Checkpoint.latest(store, KEY).header.generation == 10
    assert Checkpoint.at(store, KEY, 2).header.generation == 2


@pytest.mark.usefixtures("checkpoint")
def test_keys_do_not_see_each_other(store):
    assert Checkpoint.latest(store, IdempotenceKey("another")) is None


@pytest.mark.usefixtures("checkpoint")
def test_opening_the_same_write_again_opens_what_is_there(store):
    later = replace(HEADER, created_at=AT + timedelta(days=1), origin=replace(HEADER.origin, run_id="other"))
    assert Checkpoint.create(store, later).header == HEADER


DIFFERENCES = {
    "table:": {"table": replace(HEADER.table, identifier="shop.other")},
    "table format:": {"table": replace(HEADER.table, format="lance")},
    "table uuid:": {"table": replace(HEADER.table, uuid="00000000-0000-0000-0000-000000000000")},
    "branch:": {"table": replace(HEADER.table, branch="audit")},
    "mode:": {"mode": "overwrite"},
    "source:": {"source": {"files": "s3://landing/other"}, "source_fingerprint": "c3" * 32},
    "transform:": {"transform": "shop.transforms:other", "transform_fingerprint": "d4" * 32},
    "with other code": {"transform_fingerprint": "d4" * 32},
    "transform_version: was '3', is now '4'": {"transform_version": "4", "transform_fingerprint": "d4" * 32},
    "transform_version: was '3', is now None": {"transform_version": None},
    "is now none": {"transform": "", "transform_fingerprint": ""},
}


@pytest.mark.usefixtures("checkpoint")
@pytest.mark.parametrize("named", DIFFERENCES)
def test_another_write_under_the_same_key_is_refused_and_the_difference_is_named(store, named):
    with pytest.raises(BindingMismatchError, match=named) as refused:
        Checkpoint.create(store, replace(HEADER, **DIFFERENCES[named]))
    assert len(str(refused.value).splitlines()) == 3
    assert KEY.value in str(refused.value)
    assert "idempotence_key" in str(refused.value)


def test_all_differences_are_named_at_once():
    other = replace(HEADER, mode="overwrite", transform="", transform_fingerprint="", table=replace(HEADER.table, branch="audit"))
    assert HEADER.differences(other) == [
        "branch: was 'main', is now 'audit'",
        "mode: was 'append', is now 'overwrite'",
        "transform: was shop.transforms:clean, is now none",
    ]


def test_an_evolved_schema_or_another_connection_id_is_not_another_write():
    evolved = replace(HEADER.table, schema_id=5, spec_id=2, schema_fingerprint="e5" * 32)
    assert not HEADER.differences(replace(HEADER, table=evolved, connections=replace(HEADER.connections, spark="other")))


def test_a_header_of_another_key_in_the_folder_is_noticed(store):
    store.create(f"{KEY.hash}/g1/header.json", replace(HEADER, key="another"))
    with pytest.raises(CorruptObjectError, match="belongs to the key 'another'"):
        Checkpoint.latest(store, KEY)


def test_a_damaged_header_hides_nothing(store, checkpoint):
    obstore.put(store.location.open(), checkpoint.paths.header, b"{")
    with pytest.raises(CorruptObjectError, match=r"g1/header\.json"):
        Checkpoint.latest(store, KEY)
    with pytest.raises(CorruptObjectError, match=r"g1/header\.json"):
        Checkpoint.create(store, HEADER)


# -- planning and staging -------------------------------------------------------------------------------------------------


def test_a_plan_is_pinned_once_and_everybody_gets_the_pinned_one(store, checkpoint):
    first = plan_of("000000", "000001")
    assert checkpoint.pin(first) == first
    assert checkpoint.pin(plan_of("000000")) == first
    assert Checkpoint.latest(store, KEY).plan() == first


def test_attempts_are_remembered_from_the_first_to_the_last(checkpoint):
    attempts = [replace(ATTEMPT, id=name, started_at=AT + timedelta(minutes=n)) for n, name in enumerate(["c", "a", "b"])]
    for attempt in reversed(attempts):
        checkpoint.begin(attempt)
    assert checkpoint.attempts() == attempts


def test_a_split_is_published_once_and_the_loser_is_told(checkpoint):
    assert checkpoint.publish(staged("000000", writer="first.0"))
    assert not checkpoint.publish(staged("000000", writer="zombie.0"))
    assert checkpoint.staged(["000000"])[0].writer == "first.0"
    assert checkpoint.staged_ids() == {"000000"}


# -- committing and discarding --------------------------------------------------------------------------------------------


def test_the_first_record_of_a_commit_stays(checkpoint):
    assert checkpoint.record(COMMIT) == COMMIT
    assert checkpoint.record(replace(COMMIT, committed_at=AT + timedelta(hours=1))) == COMMIT
    assert checkpoint.committed() == COMMIT


@pytest.mark.parametrize("other", [{"commit_id": 1}, {"commit_id": None}, {"group": "ff" * 16}])
def test_a_record_that_contradicts_the_first_is_an_error(checkpoint, other):
    checkpoint.record(COMMIT)
    with pytest.raises(CorruptObjectError, match=str(COMMIT.commit_id)):
        checkpoint.record(replace(COMMIT, **other))


def test_a_discarded_generation_says_when_and_why(checkpoint):
    checkpoint.require_live()
    checkpoint.discard("the source changed")
    checkpoint.discard("said twice")
    assert checkpoint.discarded().reason == "the source changed"
    with pytest.raises(DiscardedError, match=r"Generation 1 .* UTC \(the source changed\)"):
        checkpoint.require_live()


def test_an_object_that_vanishes_between_put_and_read_is_an_error(checkpoint, monkeypatch):
    checkpoint.pin(plan_of("000000"))
    put = obstore.put

    def put_then_delete(objects, name, *args, **kwargs):
        try:
            put(objects, name, *args, **kwargs)
        finally:
            obstore.delete(objects, name)

    monkeypatch.setattr(obstore, "put", put_then_delete)
    with pytest.raises(CheckpointMissingError, match=r"plan\.json\.zst .*is gone"):
        checkpoint.pin(plan_of("000001", created_at=AT + timedelta(hours=1)))


# -- generations that were planted ----------------------------------------------------------------------------------------


def test_the_earlier_generations_are_those_that_exist_and_none_may_be_missing(store):
    for generation in (1, 2, 4):
        newest = Checkpoint.create(store, replace(HEADER, generation=generation))
    assert Checkpoint.generations(store, KEY) == [1, 2, 4]
    assert [one.header.generation for one in Checkpoint.at(store, KEY, 2).earlier_generations()] == [1]
    with pytest.raises(CheckpointMissingError, match="generation 3"):
        newest.earlier_generations()


@pytest.mark.timeout(20)
def test_a_planted_generation_with_a_huge_number_is_an_error_at_once(store, checkpoint):
    Checkpoint.create(store, replace(HEADER, generation=1_000_000))
    with pytest.raises(CheckpointMissingError, match="generation 2"):
        Checkpoint.latest(store, KEY).earlier_generations()
    obstore.put(store.location.open(), f"{KEY.hash}/g1000000000/header.json", b"{}")
    with pytest.raises(CorruptObjectError, match=r"g1000000000/header\.json"):
        Checkpoint.latest(store, KEY)
