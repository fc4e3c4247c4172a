"""A clean-up of a whole store as an engineer runs it, by the operator. From the command line: ``test_commands``."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException
from support.aging import grow_old, landed
from support.dags import returned, start, task_states

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Connections
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.operators.cleanup import CheckpointCleanupOperator
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.sources import Files

pytestmark = [
    pytest.mark.airflow,
    # Airflow's in-process API server, and what it is built on, warn about each other while connections are read.
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture
def world(dag_world):
    dag_world.put_files(2, 10)
    return dag_world


class Xcoms(SimpleNamespace):
    """What a task pushes."""

    def xcom_push(self, key, value):
        setattr(self, key, json.loads(json.dumps(value)))


def sweep(xcoms=None, **more):
    operator = CheckpointCleanupOperator(task_id="sweep", **{"older_than": "14d"} | more)
    return operator.execute({"ti": xcoms or Xcoms()})


def test_what_was_removed_and_what_was_kept_is_returned(world):
    landed(world)
    world.stage(world.request("orders/2"), splits=1)
    (world.root / "store" / "notes.txt").write_text("mine")
    grow_old(world)
    dry = sweep(dry_run=True)
    result = sweep()
    assert dry == result | {"dry_run": True}
    assert json.loads(json.dumps(result)) == result
    first, second = result["generations"]
    assert (first["idempotence_key"], first["state"], first["kept"], first["files"]) == ("orders/1", "committed", "", 0)
    # Seal, plan, two staged records and an attempt.
    assert first["objects"] == 5
    assert (second["idempotence_key"], second["state"], second["objects"]) == ("orders/2", "staging", 0)
    assert "abandoned='discard'" in second["kept"]
    totals = {name: count for name, count in result["totals"].items() if count}
    assert totals == {"cleaned": 1, "objects": 5, "object_bytes": first["object_bytes"], "kept": 1, "foreign": 1}
    again = sweep(abandoned="discard")
    assert [one["state"] for one in again["generations"]] == ["discarded"]
    assert again["totals"]["without_records"] == 1


def test_a_run_that_is_cleared_after_a_sweep_reports_what_it_had_committed_and_starts_no_spark(world, run_dag):
    checkpoint = landed(world)
    before = reference(checkpoint, checkpoint.sealed(), State.COMMITTED, recovered=2, written=0)
    committed = checkpoint.committed()
    grow_old(world)
    assert sweep()["totals"]["cleaned"] == 1
    with DAG("cleared", schedule=None, start_date=start()) as dag:
        stage = CheckpointedIcebergWriteOperator(
            task_id="stage",
            table="shop.orders",
            idempotence_key="orders/1",
            source=Files(f"{world.input}/*.parquet", max_split_bytes=1),
        )
        commit = CheckpointCommitOperator(task_id="commit", checkpoint=stage.output)
        stage >> commit >> CheckpointSensor(task_id="arrived", checkpoint=stage.output)
        CheckpointSensor(task_id="by_key", checkpoint="orders/1", until="committed")
    run = run_dag(dag)
    assert task_states(run) == dict.fromkeys(["stage", "commit", "arrived", "by_key"], "success")
    for task, landed_now in (("stage", False), ("commit", False)):
        found = returned(run, task)
        facts = found.pop("commit")
        assert (facts["snapshot_id"], facts["landed_now"]) == (committed.commit_id, landed_now)
        assert {name: found[name] for name in before} == before
    assert world.ids() == list(range(20))
    # An attempt is recorded once a session runs.
    assert world.store.names(checkpoint.paths.attempts) == []


def test_what_is_damaged_fails_the_task_at_its_end_with_the_result_in_xcom(world):
    damaged = landed(world)
    landed(world, "orders/2")
    path = world.root / "store" / damaged.paths.group
    path.write_bytes(path.read_bytes()[:-1])
    grow_old(world)
    xcoms = Xcoms()
    with pytest.raises(AirflowException, match=r"CleanupIncompleteError.*\n  orders/1: CorruptObjectError: .*group\.json"):
        sweep(xcoms)
    assert [(one["idempotence_key"], bool(one["kept"])) for one in xcoms.return_value["generations"]] == [
        ("orders/1", True),
        ("orders/2", False),
    ]
    assert (xcoms.return_value["totals"]["failed"], xcoms.return_value["totals"]["cleaned"]) == (1, 1)


def test_writes_of_other_connections_or_tables_are_kept_and_named(world):
    landed(world)
    landed(world, "orders/2", connections=Connections(table="another", spark="s", checkpoint="checkpoint_default"))
    grow_old(world)
    for more in ({"table": "shop.salaries"}, {"branch": "audit"}):
        assert all(one["kept"] for one in sweep(**more)["generations"])
    first, second = sorted(sweep()["generations"], key=lambda one: one["idempotence_key"])
    assert first["kept"] == ""
    assert "connection 'another', and this task was given iceberg_conn_id='iceberg_default'" in second["kept"]
    assert Checkpoint.latest(world.store, IdempotenceKey("orders/2")).newest_seal() is not None


def test_the_keys_may_be_templated(world):
    assert "keys" in CheckpointCleanupOperator.template_fields
    landed(world)
    landed(world, "refunds/1")
    grow_old(world)
    assert [one["idempotence_key"] for one in sweep(keys="orders/*")["generations"]] == ["orders/1"]


def test_what_does_not_fit_is_refused_when_the_dag_is_parsed():
    for wrong, said in (
        ({}, "either checkpoint"),
        ({"older_than": "14d", "checkpoint": "orders"}, "either checkpoint"),
        ({"checkpoint": "orders", "keys": "orders/*"}, "belong to a sweep"),
        ({"checkpoint": "orders", "dry_run": True}, "belong to a sweep"),
        ({"checkpoint": "orders", "abandoned": "discard"}, "belong to a sweep"),
        ({"older_than": "14d", "discard_unfinished": True}, "abandoned='discard'"),
        ({"older_than": "14d", "abandoned": "remove"}, "'keep' and 'discard'"),
        ({"older_than": "59m"}, "'14d', '12h' or '2w'"),
        ({"older_than": "0d"}, "'14d', '12h' or '2w'"),
        ({"older_than": 14}, "timedelta"),
        ({"older_than": timedelta(minutes=59)}, "less than an hour"),
        ({"older_than": timedelta(days=-1)}, "less than an hour"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            CheckpointCleanupOperator(task_id="sweep", **wrong)
    for age, hours in (("1h", 1), ("14d", 336), ("2w", 336), (timedelta(hours=5), 5)):
        assert CheckpointCleanupOperator(task_id="sweep", older_than=age).older_than == timedelta(hours=hours)


def test_how_old_may_stand_in_the_configuration(monkeypatch):
    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__OLDER_THAN", "3d")
    assert CheckpointCleanupOperator(task_id="sweep").older_than == timedelta(days=3)
    assert CheckpointCleanupOperator(task_id="sweep", older_than="14d").older_than == timedelta(days=14)
    assert CheckpointCleanupOperator(task_id="clean", checkpoint="orders").older_than is None
    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__OLDER_THAN", "soon")
    with pytest.raises(InvalidInputError, match="older_than='soon' is no time"):
        CheckpointCleanupOperator(task_id="sweep")
