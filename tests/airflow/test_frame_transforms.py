"""Frame transforms in whole DAG runs: connections, templates and outputs of other tasks inside the source that they read."""

from __future__ import annotations

import io
import json
import time
from datetime import timedelta

import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG, task_group
from support.dags import returned, start, task_states
from support.s3 import SECRET
from support.world import rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.transform import CheckpointedTransformOperator
from airflow_ckpt_provider.sources import Files, IcebergTable, SparkDataFrame, Staged

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]

SETTINGS = {"retries": 0, "retry_delay": timedelta(0)}


def named(df, least=0):
    """A join with a small table."""
    names = df.sparkSession.sql(
        "SELECT * FROM VALUES ('kind-0', 'none'), ('kind-1', 'one'), ('kind-2', 'two') AS names(kind, name)"
    )
    return df.where(f"id >= {least}").join(names, "kind").selectExpr("id", "value", "name AS kind", "at")


def test_rows_of_an_earlier_stage_are_joined_and_a_retry_computes_only_the_missing_buckets(dag_world, run_dag, tmp_path):
    dag_world.put_files(files=2)
    broken_once, stored = tmp_path / "broken_once", tmp_path / "store"

    def fails_once(batch):
        if 77 in batch["id"].to_pylist() and not broken_once.exists():
            broken_once.touch()
            while len({*stored.rglob("staged/*")}) < 3:
                time.sleep(0.05)
            raise ValueError("no luck today")
        return batch

    with DAG("joined", schedule=None, start_date=start()) as dag:
        parsed = CheckpointedTransformOperator(
            task_id="parse", source=Files(f"{dag_world.input}/*.parquet", max_split_bytes=1), **SETTINGS
        )
        joined = SparkDataFrame(source=Staged(parsed.output), dataframe=named, id_column="id", buckets=4)
        staged = CheckpointedIcebergWriteOperator(
            task_id="stage", table="shop.orders", source=joined, transform=fails_once, **(SETTINGS | {"retries": 1})
        )
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    assert staged.upstream_task_ids == {"parse"}
    run = run_dag(dag)

    assert task_states(run) == dict.fromkeys(["parse", "stage", "commit"], "success")
    splits = returned(run, "stage")["splits"]
    assert splits["total"] == 4
    assert splits["recovered"] >= 1
    assert dag_world.ids() == list(range(200))
    assert set(dag_world.table().scan().to_arrow()["kind"].to_pylist()) == {"none", "one", "two"}
    assert len(dag_world.table().snapshots()) == 1


def test_each_run_transforms_what_was_added_to_a_table_since_the_last(dag_world, run_dag):
    dag_world.create_table("shop.read")
    arrow = dag_world.table().schema().as_arrow()
    with DAG("increments", schedule=None, start_date=start()) as dag:
        read = IcebergTable("{{ dag_run.conf['table'] }}", since="last_commit")
        source = SparkDataFrame(source=read, dataframe=named, parameters={"least": "{{ dag_run.conf['least'] }}"})
        staged = CheckpointedIcebergWriteOperator(task_id="stage", table="shop.orders", source=source, **SETTINGS)
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    for number in range(2):
        dag_world.table("shop.read").append(rows(number * 10, 10).cast(arrow))
        assert run_dag(dag, table="shop.read", least=number * 15).state == "success"
    assert dag_world.ids() == [*range(10), *range(15, 20)]


def test_files_in_object_storage_are_read_by_their_own_connection_and_no_secret_is_kept(
    dag_world, run_dag, s3_bucket, monkeypatch, capfd
):
    options = s3_bucket.options
    extra = {"endpoint": options["endpoint"], "region": options["region"], "allow_http": True}
    keys = {"login": options["access_key_id"], "password": options["secret_access_key"]}
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "checkpoint", "host": s3_bucket.uri("x"), **keys, "extra": extra})
    )
    for number in range(2):
        buffer = io.BytesIO()
        pq.write_table(rows(number * 100, 100), buffer)
        s3_bucket.put(f"landing/{number}.parquet", buffer.getvalue())

    with DAG("objects", schedule=None, start_date=start()) as dag:
        read = Files(s3_bucket.uri("landing/*.parquet"), max_split_bytes=1, conn_id="lake")
        source = SparkDataFrame(source=read, dataframe=named)
        staged = CheckpointedIcebergWriteOperator(
            task_id="stage", table="shop.orders", source=source, idempotence_key="objects/1", **SETTINGS
        )
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    assert run_dag(dag).state == "success"
    assert dag_world.ids() == list(range(200))
    checkpoint = Checkpoint.latest(dag_world.store, IdempotenceKey("objects/1"))
    assert "landing/0.parquet" in str(checkpoint.plan())
    assert SECRET not in f"{checkpoint.plan()} {checkpoint.header} {checkpoint.sealed()}"
    assert SECRET not in "".join(capfd.readouterr())


def test_instances_of_a_mapped_stage_have_a_source_each(dag_world, run_dag):
    for day in range(2):
        (dag_world.input / f"day={day}").mkdir()
        pq.write_table(rows(day * 100, 100), dag_world.input / f"day={day}" / "0.parquet")

    @task_group
    def each(path):
        files = Files(path)
        source = SparkDataFrame(source=files, dataframe=named, id_column="id", buckets=2)
        return CheckpointedIcebergWriteOperator(task_id="stage", table="shop.orders", source=source, **SETTINGS).output

    with DAG("mapped_frames", schedule=None, start_date=start()) as dag:
        staged = each.expand(path=[f"{dag_world.input}/day={day}/*.parquet" for day in range(2)])
        CheckpointCommitOperator(task_id="commit", checkpoint=staged)
    assert run_dag(dag).state == "success"
    assert dag_world.ids() == list(range(200))
    assert len(dag_world.table().snapshots()) == 1
