"""The modes and sources as an engineer uses them: whole DAG runs, with real Airflow, Spark and Iceberg."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG, task
from support.dags import returned, start, task_states
from support.world import rows

from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.sources import Files, IcebergTable, SparkDataFrame

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]


def write(name, commits=True, **facts):
    """A stage and its commit."""
    staged = CheckpointedIcebergWriteOperator(task_id=f"stage_{name}", retry_delay=timedelta(0), **facts)
    return [staged, CheckpointCommitOperator(task_id=f"commit_{name}", checkpoint=staged.output)] if commits else [staged]


def chain(*tasks):
    for before, after in itertools.pairwise(tasks):
        before >> after


def put(world, name, table):
    (world.input / name).mkdir()
    pq.write_table(table, world.input / name / "0.parquet")
    return Files(f"{world.input}/{name}/*.parquet", max_split_bytes=1)


def test_a_table_is_created_filled_upserted_and_overwritten_each_in_one_snapshot(dag_world, run_dag):
    changed = rows(5, 10).set_column(1, "value", pa.array([0.5] * 10))
    first, later, day = put(dag_world, "first", rows(0, 10)), put(dag_world, "later", changed), put(dag_world, "day", rows(0, 2))
    with DAG("modes", schedule=None, start_date=start()) as dag:
        chain(
            *write("create", table="shop.made", source=first, mode="create", partition_by=["day(at)", "bucket(4, id)"]),
            *write("upsert", table="shop.made", source=later, mode="upsert", upsert_keys=["id"]),
            *write("day", table="shop.made", source=day, mode="overwrite", overwrite_filter="at < '1970-01-01T03:00:00'"),
        )
    run = run_dag(dag)

    assert set(task_states(run).values()) == {"success"}
    assert returned(run, "stage_upsert")["counts"] == {"inserted": 5, "unchanged": 0, "updated": 5}
    table = dag_world.table("shop.made")
    assert [snapshot.summary.operation.value for snapshot in table.snapshots()] == ["append", "overwrite", "overwrite"]
    found = {row["id"]: row["value"] for row in table.scan().to_arrow().to_pylist()}
    # Row 2 has the time of 02:00, so it is overwritten and not among the new ones.
    assert found == {n: 0.5 if n >= 5 else n / 4 for n in [0, 1, *range(3, 15)]}
    assert [str(field.transform) for field in table.spec().fields] == ["day", "bucket[4]"]


def test_the_first_run_makes_the_table_and_the_next_one_appends_to_it(dag_world, run_dag):
    put(dag_world, "0", rows(0, 10)), put(dag_world, "1", rows(10, 10))

    with DAG("made_once", schedule=None, start_date=start()) as dag:

        @task.checkpointed_iceberg(
            table="shop.made",
            source=Files(f"{dag_world.input}/{{{{ dag_run.conf['n'] }}}}/*.parquet"),
            create_if_missing=True,
            partition_by=["kind"],
        )
        def clean(batch):
            return batch.drop_columns(["at"])

        CheckpointCommitOperator(task_id="commit", checkpoint=clean())
    first, second = run_dag(dag, n=0), run_dag(dag, n=1)

    assert [returned(run, "commit")["commit"]["landed_now"] for run in (first, second)] == [True, True]
    table = dag_world.table("shop.made")
    assert [field.name for field in table.spec().fields] == ["kind"]
    assert dag_world.ids("shop.made") == list(range(20))
    assert len(table.snapshots()) == 2


def test_a_scheduled_dag_over_a_growing_table_processes_each_row_once(dag_world, run_dag):
    dag_world.create_table("shop.copy")
    arrow = dag_world.table().schema().as_arrow()
    with DAG("growing", schedule=None, start_date=start()) as dag:
        source = IcebergTable("shop.orders", since="last_commit")
        chain(*write("copy", table="shop.copy", source=source, idempotence_key="growing/{{ dag_run.conf['n'] }}"))
    for number in range(3):
        dag_world.table().append(rows(number * 10, 10).cast(arrow))
        assert run_dag(dag, n=number).state == "success"
    assert run_dag(dag, n="nothing new").state == "success"

    assert dag_world.ids("shop.copy") == list(range(30))
    assert len(dag_world.table("shop.copy").snapshots()) == 3


def test_a_dataframe_is_written_in_buckets_and_a_retry_computes_only_those_that_are_missing(dag_world, run_dag, tmp_path):
    broken_once, stored = tmp_path / "broken_once", tmp_path / "store"

    def joined(spark, count):
        return (
            spark.range(count)
            .selectExpr("id", "id / 4 AS value", "'a' AS kind", "timestamp_seconds(id) AS at")
            .selectExpr("id", "CAST(value AS double) AS value", "kind", "CAST(at AS timestamp_ntz) AS at")
        )

    def fails_once(batch):
        if 77 in batch["id"].to_pylist() and not broken_once.exists():
            broken_once.touch()
            while not any(stored.rglob("staged/*")):
                time.sleep(0.05)
            raise ValueError("no luck today")
        return batch

    with DAG("frame", schedule=None, start_date=start()) as dag:
        source = SparkDataFrame(joined, id_column="id", buckets=4, parameters={"count": 200})
        chain(*write("frame", table="shop.orders", source=source, transform=fails_once, retries=1))
    run = run_dag(dag)

    assert task_states(run) == {"stage_frame": "success", "commit_frame": "success"}
    splits = returned(run, "stage_frame")["splits"]
    assert splits["total"] == 4
    assert splits["recovered"] >= 1
    assert dag_world.ids() == list(range(200))
    assert len(dag_world.table().snapshots()) == 1


def test_a_table_is_created_from_a_dataframe(dag_world, run_dag):
    def numbers(spark):
        return spark.range(50).selectExpr("id", "CAST(id % 3 AS int) AS kind", "array(id) AS ids")

    with DAG("frame_create", schedule=None, start_date=start()) as dag:
        source = SparkDataFrame(numbers, id_column="id", buckets=2)
        chain(*write("made", table="shop.frames", source=source, mode="create", partition_by="kind"))
    run = run_dag(dag)

    assert run.state == "success"
    table = dag_world.table("shop.frames")
    assert sorted(row["ids"][0] for row in table.scan().to_arrow().to_pylist()) == list(range(50))
    assert [str(field.field_type) for field in table.schema().fields] == ["long", "int", "list<long>"]
    assert len(table.snapshots()) == 1


def test_a_committed_write_that_is_cleared_replaces_its_own_rows_and_no_others(dag_world, run_dag):
    dag_world.table().append(rows(1000, 5).cast(dag_world.table().schema().as_arrow()))
    source = put(dag_world, "day", rows(0, 10))
    with DAG("again", schedule=None, start_date=start()) as dag:
        chain(*write("day", table="shop.orders", source=source, idempotence_key="again/1", on_rerun="replace", on_change="restart"))
    assert run_dag(dag).state == "success"
    pq.write_table(rows(0, 3), dag_world.input / "day" / "0.parquet")
    run = run_dag(dag)

    assert run.state == "success"
    assert returned(run, "commit_day")["generation"] == 2
    assert dag_world.ids() == [0, 1, 2, *range(1000, 1005)]
    assert len(dag_world.table().snapshots()) == 3
