"""Whole DAG runs through ``dag.test()``: retries, XComs, mapped stages, sensors, overrides. Real Airflow, Spark and Iceberg."""

from __future__ import annotations

import io
import json
import re
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform
from structlog.testing import capture_logs
from support.dags import returned, start, task_states
from support.forging import forge_plan
from support.s3 import SECRET
from support.world import SCHEMA, rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.operators.cleanup import CheckpointCleanupOperator
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.links import SparkUiLink
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.sources import Files

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]


def stage(world, task_id="stage", **changes):
    facts = {
        "task_id": task_id,
        "table": "shop.orders",
        "source": Files(f"{world.input}/*.parquet", max_split_bytes=1),
        "retries": 0,
        "retry_delay": timedelta(0),
    }
    return CheckpointedIcebergWriteOperator(**(facts | changes))


def test_a_retry_recovers_what_the_first_try_staged_and_one_snapshot_lands(own_sessions, dag_world, run_dag, tmp_path):
    dag_world.put_files(files=4)
    broken_once, stored = tmp_path / "broken_once", tmp_path / "store"

    def fails_once_on_the_last_file(batch):
        if batch["id"][0].as_py() == 300 and not broken_once.exists():
            broken_once.touch()
            while not any(stored.rglob("staged/*")):
                time.sleep(0.05)
            raise ValueError("no luck today")
        return batch

    with DAG("retry", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, transform=fails_once_on_the_last_file, retries=1)
        commit = CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
        arrived = CheckpointSensor(task_id="arrived", checkpoint=staged.output, poke_interval=1, timeout=30)
        staged >> commit >> arrived
    run = run_dag(dag)

    assert task_states(run) == {"stage": "success", "commit": "success", "arrived": "success"}
    reference = returned(run, "stage")
    assert reference["splits"]["total"] == 4
    assert reference["splits"]["recovered"] >= 1
    assert reference["splits"]["recovered"] + reference["splits"]["written"] == 4
    assert reference["idempotence_key"] == returned(run, "stage", key="idempotence_key") == f"retry/stage/{run.run_id}/-1"
    assert {k: reference[k] for k in ("table", "format", "mode", "state", "map_index", "rows", "generation")} == {
        "table": "shop.orders", "format": "iceberg", "mode": "append", "state": "sealed", "map_index": -1, "rows": 400,
        "generation": 1,
    }  # fmt: skip
    committed = returned(run, "commit")
    assert committed["state"] == "committed"
    assert committed["commit"]["landed_now"] is True
    assert dag_world.ids() == list(range(400))
    assert [snapshot.snapshot_id for snapshot in dag_world.table().snapshots()] == [committed["commit"]["snapshot_id"]]
    assert len(json.dumps(committed)) < 4096


def test_mapped_stages_land_in_one_snapshot(dag_world, run_dag):
    for day in range(3):
        (dag_world.input / f"day={day}").mkdir()
        pq.write_table(rows(day * 100, 100), dag_world.input / f"day={day}" / "0.parquet")
    with DAG("mapped", schedule=None, start_date=start()) as dag:
        staged = CheckpointedIcebergWriteOperator.partial(task_id="stage", table="shop.orders").expand(
            source=[f"{dag_world.input}/day={day}/*.parquet" for day in range(3)]
        )
        commit = CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
        arrived = CheckpointSensor(task_id="arrived", checkpoint=staged.output, poke_interval=1, timeout=30)
        staged >> commit >> arrived
    run = run_dag(dag)

    assert run.state == "success"
    committed = returned(run, "commit")
    assert [one["map_index"] for one in committed] == [0, 1, 2]
    assert len({one["commit"]["snapshot_id"] for one in committed}) == 1
    assert len(dag_world.table().snapshots()) == 1
    assert dag_world.ids() == list(range(300))


def test_templates_in_the_source_are_rendered_for_each_run_anew(dag_world, run_dag):
    dag_world.put_files(files=2)
    with DAG("templated", schedule=None, start_date=start()) as dag:
        source = Files(f"{dag_world.input}/{{{{ dag_run.conf['file'] }}}}.parquet")
        staged = stage(dag_world, source=source, idempotence_key="templated/{{ dag_run.conf['file'] }}")
        staged >> CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    first, second = run_dag(dag, file="0"), run_dag(dag, file="1")

    assert returned(first, "stage")["idempotence_key"] == "templated/0"
    assert returned(second, "stage")["idempotence_key"] == "templated/1"
    assert dag_world.ids() == list(range(200))
    assert len(dag_world.table().snapshots()) == 2


def test_a_committed_key_is_reused_and_starts_no_spark(dag_world, run_dag):
    dag_world.put_files(files=2)
    with DAG("reuse", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, idempotence_key="reuse/1")
        staged >> CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    first, second = run_dag(dag), run_dag(dag)

    reused = returned(second, "stage")
    assert reused["state"] == "committed"
    assert reused["commit"]["snapshot_id"] == returned(first, "commit")["commit"]["snapshot_id"]
    assert returned(second, "commit")["commit"]["landed_now"] is False
    checkpoint = Checkpoint.latest(dag_world.store, IdempotenceKey("reuse/1"))
    # An attempt is recorded once a session runs: the second run recorded none.
    assert len(checkpoint.attempts()) == 1
    assert dag_world.ids() == list(range(200))


def test_log_and_link_say_where_spark_shows_what_it_does(own_sessions, dag_world, run_dag, capsys):
    dag_world.put_files(files=1)
    linked = []

    def look(context, result):
        del result
        linked.append(context["ti"].xcom_pull(task_ids="stage", key=SparkUiLink().xcom_key))

    with DAG("shown", schedule=None, start_date=start()) as dag:
        CheckpointedIcebergWriteOperator(
            task_id="stage", table="shop.orders", source=f"{dag_world.input}/*.parquet", post_execute=look,
            spark_conf={"spark.ui.enabled": "true", "spark.ui.port": "0"},
        )  # fmt: skip
    run = run_dag(dag)
    assert task_states(run) == {"stage": "success"}
    said = capsys.readouterr()
    shown = re.search(r"Spark 4\.\d+\.\d+ is ready after \d+\.\d s: application (local-\d+), (http://\S+)\.", said.out + said.err)
    assert shown is not None
    assert returned(run, "stage")["application"] == shown[1]
    # The page is there while the driver runs.
    assert linked == [shown[2]]
    assert not returned(run, "stage", key=SparkUiLink().xcom_key)


def test_a_sealed_key_is_handed_on_without_spark(dag_world, run_dag):
    dag_world.put_files(files=2)
    with DAG("sealed", schedule=None, start_date=start()) as dag:
        stage(dag_world, idempotence_key="sealed/1")
    run_dag(dag)
    run = run_dag(dag)

    assert returned(run, "stage")["splits"] == {"total": 2, "recovered": 2, "written": 0}
    assert len(Checkpoint.latest(dag_world.store, IdempotenceKey("sealed/1")).attempts()) == 1


def test_nothing_to_write_is_committed_without_a_snapshot_and_the_sensor_passes(dag_world, run_dag):
    with DAG("nothing", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world)
        commit = CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
        staged >> commit >> CheckpointSensor(task_id="arrived", checkpoint=staged.output, poke_interval=1, timeout=30)
    run = run_dag(dag)

    assert run.state == "success"
    assert returned(run, "commit")["commit"]["snapshot_id"] is None
    assert returned(run, "stage")["rows"] == 0
    assert dag_world.table().snapshots() == []


def test_late_data_of_an_empty_day_lands_when_its_run_is_cleared(dag_world, run_dag, capsys):
    with DAG("late", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world)
        staged >> CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    assert run_dag(dag, when=start()).state == "success"
    assert dag_world.table().snapshots() == []
    dag_world.put_files(files=1)
    assert run_dag(dag, when=start()).state == "success"
    assert dag_world.ids() == list(range(100))
    pq.write_table(rows(100, 100), dag_world.input / "1.parquet")
    # It has landed: what came since is named, and nothing is written.
    run = run_dag(dag, when=start())
    assert run.state == "success"
    assert returned(run, "commit")["commit"]["landed_now"] is False
    assert "does not have all that there is to read now: 1 file matches now that was not read: 1.parquet" in capsys.readouterr().out
    assert dag_world.ids() == list(range(100))


def test_a_retry_names_the_files_that_the_plan_of_an_earlier_try_does_not_read(dag_world, run_dag, capsys):
    """They came later, or somebody has left them out of the plan in the store: the files alone do not say which."""
    dag_world.put_files(files=2)
    with DAG("planned", schedule=None, start_date=start()) as dag:
        stage(dag_world)
    assert run_dag(dag, when=start()).state == "success"
    assert "keeps the plan" not in capsys.readouterr().out
    checkpoint = Checkpoint.latest(dag_world.store, IdempotenceKey(f"planned/stage/{run_dag(dag, when=start()).run_id}/-1"))
    assert "keeps the plan" not in capsys.readouterr().out
    forge_plan(checkpoint, splits=checkpoint.plan().splits[:1])
    # What is sealed already does not agree with it.
    assert run_dag(dag, when=start()).state == "failed"
    assert "The store was altered; nothing was changed" in capsys.readouterr().out
    Path(checkpoint.store.location.path, checkpoint.paths.seal()).unlink()
    assert run_dag(dag, when=start()).state == "success"
    said = capsys.readouterr().out
    assert "does not read all that there is to read now: 1 file matches now that was not read: 1.parquet" in said


@pytest.mark.parametrize(
    ("if_empty", "states"),
    [
        ("succeed", {"stage": "success", "commit": "success"}),
        ("skip", {"stage": "skipped", "commit": "skipped"}),
        ("fail", {"stage": "failed", "commit": "upstream_failed"}),
    ],
)
def test_a_stage_without_input_does_what_it_is_told_to(dag_world, run_dag, if_empty, states):
    with DAG("no_input", schedule=None, start_date=start()) as dag:
        # Another try would find no more: it fails at once.
        staged = stage(dag_world, if_empty=if_empty, retries=2)
        staged >> CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    run = run_dag(dag)

    assert task_states(run) == states
    assert all(ti.try_number <= 1 for ti in run.get_task_instances())
    reference = returned(run, "stage")
    assert (reference["rows"] if reference else None) == (None if if_empty == "fail" else 0)


def test_columns_that_the_rows_lack_are_named_in_the_log_once(dag_world, run_dag, capsys):
    for number in range(3):
        pq.write_table(rows(number * 10, 10).drop_columns(["value"]), dag_world.input / f"{number}.parquet")
    with DAG("lacking", schedule=None, start_date=start()) as dag:
        # The columns are known in the tasks only.
        staged = stage(dag_world, transform=lambda batch: batch.drop_columns(["at"]))
        staged >> CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    assert run_dag(dag).state == "success"

    assert capsys.readouterr().out.count("do not have these columns of shop.orders, which are null in them: at, value.") == 1
    found = dag_world.table().scan().to_arrow()
    assert (found.num_rows, found["at"].null_count, found["value"].null_count) == (30, 30, 30)


def test_columns_that_have_to_be_there_are_missed_before_spark(dag_world, run_dag):
    pq.write_table(rows(0, 10).drop_columns(["value"]), dag_world.input / "0.parquet")
    with DAG("missed", schedule=None, start_date=start()) as dag:
        stage(dag_world, missing_columns="fail", retries=1, idempotence_key="missed")
    run = run_dag(dag)

    assert task_states(run) == {"stage": "failed"}
    assert Checkpoint.latest(dag_world.store, IdempotenceKey("missed")).attempts() == []


def test_commit_and_sensor_take_a_bare_key(dag_world, run_dag):
    dag_world.put_files(files=1)
    with DAG("bare", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, idempotence_key="bare/{{ run_id }}")
        commit = CheckpointCommitOperator(task_id="commit", checkpoint="bare/{{ run_id }}")
        arrived = CheckpointSensor(task_id="arrived", checkpoint="bare/{{ run_id }}", poke_interval=1, timeout=30)
        staged >> commit >> arrived
    run = run_dag(dag)

    assert run.state == "success"
    assert dag_world.ids() == list(range(100))


def test_a_sensor_says_that_nobody_has_staged_the_key_that_it_waits_for(dag_world):
    sensor = CheckpointSensor(task_id="wait", checkpoint="oders/1")
    said = "Nothing was staged under the key 'oders/1' yet in the store of the connection 'checkpoint_default'."

    def told():
        with capture_logs() as lines:
            assert not sensor.poke({"ti": SimpleNamespace(map_index=-1)})
        return any(said in str(line) for line in lines)

    assert told()
    dag_world.stage(dag_world.request("oders/1"))
    assert not told()


def test_a_run_may_ask_for_a_restart_and_the_rows_are_there_once(dag_world, run_dag):
    dag_world.put_files(files=2)
    with DAG("restart", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, idempotence_key="restart/1")
    run_dag(dag)
    dag_world.put_files(files=3)
    with DAG("restart", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, idempotence_key="restart/1")
        commit = CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
        staged >> commit >> CheckpointCleanupOperator(task_id="cleanup", checkpoint="restart/1")
    run = run_dag(dag, checkpoint="restart")

    assert returned(run, "stage")["generation"] == 2
    assert dag_world.ids() == list(range(300))
    assert len(dag_world.table().snapshots()) == 1
    cleaned = returned(run, "cleanup")
    assert [one["state"] for one in cleaned["generations"]] == ["discarded", "committed"]
    # Two data files and two manifests of the first generation.
    assert (cleaned["idempotence_key"], cleaned["files"]) == ("restart/1", 4)
    assert dag_world.files_on_disk() == dag_world.referenced_files()


def test_with_the_default_key_params_of_the_stage_restart_it_in_its_own_run(dag_world, run_dag):
    def dag(**changes):
        with DAG("restart_default", schedule=None, start_date=start()) as dag:
            stage(dag_world, **changes)
        return dag

    def reference(run):
        # At once: the same run is made anew under its id.
        return run.run_id, returned(run, "stage")

    restart = {"checkpoint": "restart"}
    first_run, first = reference(run_dag(dag(), when=start()))
    again_run, again = reference(run_dag(dag(params=restart), when=start()))
    cleared_run, cleared = reference(run_dag(dag(params=restart), when=start()))
    _, other = reference(run_dag(dag(), when=start() + timedelta(days=1), **restart))

    assert first_run == again_run == cleared_run
    assert first["idempotence_key"] == again["idempotence_key"] == cleared["idempotence_key"]
    assert [one["generation"] for one in (first, again, cleared)] == [1, 2, 2]
    # What every such message advised before: another run is another write.
    assert other["idempotence_key"] != first["idempotence_key"]
    assert other["generation"] == 1


def test_a_deferrable_sensor_does_not_defer_for_what_is_there_already(dag_world, run_dag):
    dag_world.put_files(files=1)
    with DAG("defer", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, idempotence_key="defer/{{ run_id }}")
        sealed = CheckpointSensor(
            task_id="sealed", checkpoint="defer/{{ run_id }}", until="sealed", deferrable=True, poke_interval=0.5, timeout=60
        )
        staged >> sealed
    run = run_dag(dag)
    assert run.state == "success"


@pytest.mark.parametrize("what", ["table", "source", "transform"])
def test_the_same_key_for_another_write_fails_before_spark_and_loses_nothing(dag_world, run_dag, what):
    dag_world.put_files(files=2)
    other = {
        "table": {"table": "shop.others"},
        "source": {"source": f"{dag_world.input}/0.parquet"},
        "transform": {"transform": lambda batch: batch.slice(0, 1)},
    }[what]
    dag_world.create_table("shop.others")
    with DAG("bound", schedule=None, start_date=start()) as dag:
        stage(dag_world, idempotence_key="bound/1")
    run_dag(dag)
    with DAG("bound", schedule=None, start_date=start()) as dag:
        stage(dag_world, idempotence_key="bound/1", **other)
    run = run_dag(dag)

    assert task_states(run) == {"stage": "failed"}
    checkpoint = Checkpoint.latest(dag_world.store, IdempotenceKey("bound/1"))
    assert checkpoint.header.generation == 1
    assert checkpoint.sealed().rows == 200
    assert len(checkpoint.attempts()) == 1


def test_source_store_and_warehouse_in_object_storage(dag_world, run_dag, s3_bucket, monkeypatch):
    options = s3_bucket.options
    keys = {"login": options["access_key_id"], "password": options["secret_access_key"]}
    extra = {"endpoint": options["endpoint"], "region": options["region"], "allow_http": True}
    store = {"conn_type": "checkpoint", "host": s3_bucket.uri("checkpoints"), **keys, "extra": extra}
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{dag_world.root}/s3-catalog.db",
        "warehouse": s3_bucket.uri("warehouse"),
        "s3.endpoint": options["endpoint"],
        "s3.region": options["region"],
        "s3.access-key-id": options["access_key_id"],
        "s3.secret-access-key": options["secret_access_key"],
    }
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(store))
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_LAKE", json.dumps({"conn_type": "iceberg", "extra": catalog}))
    opened = load_catalog("iceberg_lake", **catalog)
    opened.create_namespace("shop")
    opened.create_table(
        "shop.orders", SCHEMA, partition_spec=PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "id_bucket"))
    )
    for number in range(3):
        buffer = io.BytesIO()
        pq.write_table(rows(number * 100, 100), buffer)
        s3_bucket.put(f"landing/{number}.parquet", buffer.getvalue())

    with DAG("objects", schedule=None, start_date=start()) as dag:
        source = Files(s3_bucket.uri("landing/*.parquet"), max_split_bytes=1, conn_id="lake")
        staged = stage(dag_world, source=source, iceberg_conn_id="iceberg_lake", checkpoint_conn_id="lake")
        commit = CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
        staged >> commit >> CheckpointSensor(task_id="arrived", checkpoint=staged.output, poke_interval=1, timeout=30)
    run = run_dag(dag)

    assert run.state == "success"
    table = opened.load_table("shop.orders")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(300))
    assert len(table.snapshots()) == 1
    stored = s3_bucket.contents("checkpoints/")
    assert len([name for name in stored if "/staged/" in name]) == 3
    assert all(SECRET.encode() not in data for data in stored.values())
    assert SECRET not in json.dumps(returned(run, "commit"))


def test_a_stage_that_is_stopped_while_its_session_starts_stages_nothing(dag_world, run_dag):
    dag_world.put_files(files=2)
    with DAG("stopped", schedule=None, start_date=start()) as dag:
        stopped = stage(dag_world, idempotence_key="stopped/1", on_execute_callback=lambda context: context["task"].on_kill())
    run = run_dag(dag)

    assert task_states(run) == {stopped.task_id: "failed"}
    assert Checkpoint.latest(dag_world.store, IdempotenceKey("stopped/1")).staged_ids() == set()
