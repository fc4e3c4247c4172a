"""An undo as a task, and what the commit, the sensor and the stage of the key make of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException
from support.aging import landed
from support.dags import returned, start, task_states

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.undo import CheckpointUndoOperator
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


def undo(**arguments):
    operator = CheckpointUndoOperator(task_id="undo", **arguments)
    return operator.execute({"ti": SimpleNamespace(dag_id="night", task_id="undo")})


@pytest.mark.spark
def test_a_run_is_taken_out_by_a_task_of_another_dag(world, run_dag):
    with DAG("shop", schedule=None, start_date=start()) as dag:
        stage = CheckpointedIcebergWriteOperator(
            task_id="stage", table="shop.orders", source=Files(f"{world.input}/*.parquet"), idempotence_key="orders"
        )
        CheckpointCommitOperator(task_id="commit", checkpoint=stage.output)
    committed = returned(run_dag(dag), "commit")
    assert world.ids() == [*range(20)]
    with DAG("night", schedule=None, start_date=start()) as undoing:
        CheckpointUndoOperator(task_id="undo", checkpoint=committed)
    run = run_dag(undoing)
    assert task_states(run) == {"undo": "success"}
    undone = returned(run, "undo")
    assert (undone["idempotence_key"], undone["generation"], undone["table"]) == ("orders", 1, "shop.orders")
    assert undone["commit"]["landed_now"]
    assert undone["commit"]["snapshot_id"] == world.table().current_snapshot().snapshot_id
    assert world.ids() == []


def test_several_are_undone_the_last_first(world):
    landed(world, "first", mode="overwrite")
    landed(world, "second", mode="overwrite")
    with pytest.raises(AirflowException, match="Undo those first"):
        undo(checkpoint="first")
    undone = undo(checkpoint=["first", "second"])
    assert [one["idempotence_key"] for one in undone] == ["first", "second"]
    assert world.ids() == []


def test_what_was_undone_is_neither_committed_nor_waited_for(world):
    checkpoint = landed(world, "orders")
    undo(checkpoint="orders", table="shop.orders")
    commit = CheckpointCommitOperator(task_id="commit", checkpoint="orders", table="shop.orders")
    with pytest.raises(AirflowException, match="was undone, or is about to be") as refused:
        commit.execute({"ti": SimpleNamespace(dag_id="shop", task_id="commit", run_id="manual", map_index=-1)})
    assert str(refused.value).startswith("UndoneError: ")
    sensor = CheckpointSensor(task_id="landed", checkpoint="orders", until="committed")
    context = {"ti": SimpleNamespace(map_index=-1)}
    assert not sensor.poke(context)
    landed(world, "orders")
    assert Checkpoint.latest(world.store, checkpoint.key).header.generation == 3
    assert sensor.poke(context)
    assert world.ids() == [*range(20)]


def test_a_key_that_is_not_there_or_of_another_table_is_refused(world):
    with pytest.raises(AirflowException, match="no checkpoint under the key 'typo'"):
        undo(checkpoint="typo")
    landed(world, "orders")
    with pytest.raises(AirflowException, match=r"bound to the table shop.orders, and this task was given table='shop.returns'"):
        undo(checkpoint="orders", table="shop.returns")
    world.stage(world.request("staged"))
    with pytest.raises(AirflowException, match="nothing of it has landed") as refused:
        undo(checkpoint="staged")
    assert str(refused.value).startswith("UndoRefusedError: ")
    assert world.ids() == [*range(20)]
    assert Checkpoint.latest(world.store, IdempotenceKey("staged")).header.generation == 1
