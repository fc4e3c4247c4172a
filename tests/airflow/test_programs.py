"""What a program of the user's own has staged is committed by a DAG, which says through which connections."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException
from pyiceberg.catalog import load_catalog
from support.dags import returned, start, task_states
from support.kills import kill
from support.standalone import wait_until
from support.world import SCHEMA

from airflow_ckpt_provider.operators.cleanup import CheckpointCleanupOperator
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.spark import checkpointed_write
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]

PROGRAM = Path(__file__).parents[2] / "example_dags" / "delays_program.py"


@pytest.fixture
def staged(dag_world):
    """The reference to what a program has staged."""
    dag_world.put_files()
    catalog = dag_world.catalog_properties
    with spark_session(SparkTarget("local[2]"), "a program") as spark:
        frame = spark.read.parquet(str(dag_world.input))
        return checkpointed_write(frame, table="shop.orders", catalog=catalog, key="orders/1", store=dag_world.store.uri)


def test_a_dag_waits_for_a_key_commits_and_cleans_it_up(dag_world, run_dag, staged):
    assert staged["rows"] == 400
    with DAG("by_key", schedule=None, start_date=start()) as dag:
        sealed = CheckpointSensor(task_id="sealed", checkpoint="orders/1", until="sealed", poke_interval=1, timeout=30)
        commit = CheckpointCommitOperator(task_id="commit", checkpoint="orders/1", table="shop.orders")
        sealed >> commit >> CheckpointCleanupOperator(task_id="clean", checkpoint="orders/1")
    run = run_dag(dag)
    assert task_states(run) == {"sealed": "success", "commit": "success", "clean": "success"}
    assert dag_world.ids() == list(range(400))
    reference = returned(run, "commit")
    # From now on the connections are those of the DAG.
    assert [reference[f"{kind}_conn_id"] for kind in ("table", "checkpoint")] == ["iceberg_default", "checkpoint_default"]


def test_a_dag_commits_what_a_task_has_returned(dag_world, run_dag, staged):
    with DAG("by_reference", schedule=None, start_date=start()) as dag:
        commit = CheckpointCommitOperator(task_id="commit", checkpoint=staged)
        CheckpointSensor(task_id="landed", checkpoint=commit.output, poke_interval=1, timeout=30)
    run = run_dag(dag)
    assert task_states(run) == {"commit": "success", "landed": "success"}
    assert dag_world.ids() == list(range(400))


def test_a_dag_commits_what_a_save_has_staged(dag_world, run_dag):
    dag_world.put_files()
    catalog = {f"catalog.{name}": value for name, value in dag_world.catalog_properties.items()}
    told = catalog | {"table": "shop.orders", "key": "orders/1", "store": dag_world.store.uri}
    with spark_session(SparkTarget("local[2]"), "a program") as spark:
        spark.read.parquet(str(dag_world.input)).write.format("checkpointed").mode("append").options(**told).save()
    assert dag_world.ids() == []
    with DAG("by_key_of_a_save", schedule=None, start_date=start()) as dag:
        commit = CheckpointCommitOperator(task_id="commit", checkpoint="orders/1", table="shop.orders")
        commit >> CheckpointCleanupOperator(task_id="clean", checkpoint="orders/1")
    assert task_states(run_dag(dag)) == {"commit": "success", "clean": "success"}
    assert dag_world.ids() == list(range(400))


def test_a_table_of_the_same_name_in_another_catalog_is_refused(dag_world, run_dag, staged, monkeypatch, tmp_path):
    facts = {"type": "sql", "uri": f"sqlite:///{tmp_path}/other.db", "warehouse": f"file://{tmp_path}/other"}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_OTHER", json.dumps({"conn_type": "iceberg", "extra": facts}))
    (tmp_path / "other").mkdir()
    other = load_catalog("iceberg_other", **facts)
    other.create_namespace("shop")
    table = other.create_table("shop.orders", SCHEMA)
    context = {"ti": type("TI", (), {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1})()}
    for checkpoint in ("orders/1", staged):
        operator = CheckpointCommitOperator(task_id="commit", checkpoint=checkpoint, iceberg_conn_id="iceberg_other")
        with pytest.raises(AirflowException, match="was dropped and created anew since this checkpoint was begun"):
            operator.execute(context)
    assert table.refresh().current_snapshot() is None
    assert dag_world.ids() == []


def test_the_example_program_is_killed_and_run_again(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(PROGRAM.parents[1])}
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    staged = tmp_path / "checkpoints"
    with (tmp_path / "said").open("wb") as said, subprocess.Popen(command, env=environment, stdout=said, stderr=said) as first:
        try:
            wait_until(lambda: list(staged.rglob("staged/*")) or first.poll() is not None, "a partition that is staged", 120)
        finally:
            kill(first.pid)
    assert first.returncode == -signal.SIGKILL, (tmp_path / "said").read_text()[-2000:]
    before = len(list(staged.rglob("staged/*")))
    time.sleep(0.5)
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert again.returncode == 0, again.stderr[-2000:]
    assert f"{before} of 8 partitions from before" in again.stdout
    facts = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    table = load_catalog("lake", **facts).load_table("flights.delays")
    assert sum(table.scan().to_arrow()["flights"].to_pylist()) == 336_776
    assert len(table.snapshots()) == 1
