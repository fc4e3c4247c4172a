"""The checkpoint reference in XCom: other people's DAGs read it, so its members are a contract."""

from __future__ import annotations

import json

import msgspec
import pytest
from support.samples import HEADER, SAMPLES

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import MAX_KEY_LENGTH
from airflow_ckpt_provider.checkpoint.reference import (
    CommitFacts,
    Instances,
    Reference,
    pointers,
    reference,
    require_whole,
    resolve,
)
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import CheckpointMissingError, InvalidInputError

SEAL = SAMPLES["seal.json"]


@pytest.fixture
def store(tmp_path):
    return CheckpointStore.at(str(tmp_path))


def test_a_reference_holds_these_members_and_no_others(store):
    pointer = reference(Checkpoint.create(store, HEADER), SEAL, State.SEALED, recovered=3, written=1)
    assert pointer == {
        "idempotence_key": HEADER.key,
        "generation": 1,
        "store": store.uri,
        "checkpoint_conn_id": "checkpoint_default",
        "table_conn_id": "iceberg_default",
        "spark_conn_id": "spark_default",
        "table": "shop.orders",
        "table_uuid": HEADER.table.uuid,
        "branch": "main",
        "format": "iceberg",
        "mode": "append",
        "header": HEADER.digest,
        "sealed": SEAL.digest,
        "state": "sealed",
        "map_index": -1,
        "splits": {"total": 1, "recovered": 3, "written": 1},
        "rows": 250,
        "bytes": 2048,
        "files": 1,
        "counts": {"inserted": 50, "updated": 200},
        "computed_by": {"0123456789abcdef": 1, "fedcba9876543210": 1},
        "rejected": 3,
    }
    assert set(Reference.__annotations__) == {*pointer, "application", "commit", "instances", "reuse"}
    assert set(Instances.__annotations__) == {"dag_id", "task_id", "run_id", "total"}
    assert set(CommitFacts.__annotations__) == {"snapshot_id", "version", "committed_at", "landed_now"}


@pytest.mark.parametrize("letter", ["k", "ü", "鍵", "🔑"])
def test_a_reference_with_the_longest_key_is_plain_json_below_4_kib(store, letter):
    header = msgspec.structs.replace(HEADER, key=letter * MAX_KEY_LENGTH)
    # As long as Airflow allows.
    instances = Instances(dag_id="d" * 250, task_id="t" * 250, run_id="r" * 250, total=10**6)
    pointer = reference(
        Checkpoint.create(store, header), SEAL, State.COMMITTED, recovered=10**6, written=10**6, instances=instances
    )
    pointer["commit"] = CommitFacts(snapshot_id=2**63 - 1, committed_at="2026-01-01T12:30:15.250000+00:00", landed_now=False)
    text = json.dumps(pointer, ensure_ascii=False)
    assert json.loads(text) == pointer
    assert len(text.encode()) < 4096


def test_a_reference_leads_back_to_its_own_generation(store):
    first = Checkpoint.create(store, HEADER)
    Checkpoint.create(store, msgspec.structs.replace(HEADER, generation=2))
    pointer = reference(first, SEAL, State.SEALED, recovered=0, written=1)
    assert resolve(store, pointer).header == first.header
    assert resolve(store, HEADER.key).header.generation == 2


def test_a_key_that_nobody_used_leads_nowhere_yet(store):
    assert resolve(store, "unknown") is None


def test_a_reference_to_what_is_not_there_is_an_error_that_names_the_key(store):
    pointer = reference(Checkpoint.create(store, HEADER), SEAL, State.SEALED, recovered=0, written=1)
    with pytest.raises(CheckpointMissingError, match="generation 9"):
        resolve(store, pointer | {"generation": 9})


def test_a_reference_into_another_store_is_refused(store, tmp_path):
    pointer = reference(Checkpoint.create(store, HEADER), SEAL, State.SEALED, recovered=0, written=1)
    with pytest.raises(InvalidInputError, match=r"points to the store .*opens .*other"):
        resolve(CheckpointStore.at(str(tmp_path / "other")), pointer)


def test_one_reference_a_list_of_them_and_bare_keys_are_told_apart(store):
    pointer = reference(Checkpoint.create(store, HEADER), SEAL, State.SEALED, recovered=0, written=1)
    assert pointers(pointer) == ([pointer], False)
    assert pointers("key") == (["key"], False)
    assert pointers([pointer, "key"]) == ([pointer, "key"], True)
    assert pointers(item for item in (pointer,)) == ([pointer], True)


@pytest.mark.parametrize("value", [None, 7, [], [None], {}, {"idempotence_key": "k"}, [["nested"]], "", " padded "])
def test_what_is_neither_a_reference_nor_a_key_is_refused(value):
    with pytest.raises(InvalidInputError):
        pointers(value)


def instance(store, map_index, total=3, task="stage"):
    instances = Instances(dag_id="d", task_id=task, run_id="r", total=total)
    return reference(
        Checkpoint.create(store, HEADER), SEAL, State.SEALED, recovered=0, written=1, map_index=map_index, instances=instances
    )


@pytest.mark.parametrize(("there", "missing"), [([0, 1], "index 2"), ([2, 0], "index 1"), ([1], "index 0, 2")])
def test_a_list_that_lacks_an_instance_of_a_mapped_task_is_refused(store, there, missing):
    with pytest.raises(InvalidInputError, match=f"'stage' .* {missing}:"):
        require_whole([instance(store, index) for index in there])


def test_two_mapped_tasks_do_not_fill_each_others_gaps(store):
    whole = [instance(store, index) for index in range(3)]
    require_whole(whole + [instance(store, index, task="other") for index in range(3)])
    with pytest.raises(InvalidInputError, match=r"'other' .* index 2:"):
        require_whole(whole + [instance(store, index, task="other") for index in range(2)])
