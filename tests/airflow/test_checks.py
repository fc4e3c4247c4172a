"""Write, audit, publish in real DAG runs: a failed check commits nothing, its correction commits without writing anything."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta

import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from support.dags import returned, start, task_states
from support.world import rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.sources import Files

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]


def write(dag_id, world, checks, **commit):
    """A DAG that stages all input files under one key and commits them after ``checks``."""
    with DAG(dag_id, schedule=None, start_date=start(), params={"most": 99.75}) as dag:
        source = Files(f"{world.input}/*.parquet", max_split_bytes=1)
        staged = CheckpointedIcebergWriteOperator(task_id="stage", table="shop.orders", source=source, idempotence_key=dag_id)
        staged >> CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, checks=checks, **commit)
    return dag


def data_files(world):
    return {str(path): path.stat().st_mtime_ns for path in (world.root / "warehouse").rglob("*.parquet")}


def staged_of(world, key):
    """What the store holds of the rows of a key."""
    checkpoint = Checkpoint.latest(world.store, IdempotenceKey(key))
    return len(checkpoint.attempts()), checkpoint.header.generation, checkpoint.sealed()


def test_a_failed_check_commits_nothing_and_its_correction_commits_without_writing(dag_world, run_dag):
    dag_world.put_files(files=4)
    failed = run_dag(write("fixed", dag_world, [{"small": "SELECT max(value) < 10, max(value) FROM staged"}], retries=3))
    assert task_states(failed) == {"stage": "success", "commit": "failed"}
    assert dag_world.table().snapshots() == []
    before, staged = data_files(dag_world), staged_of(dag_world, "fixed")
    assert len(before) == 4

    fixed = run_dag(write("fixed", dag_world, [{"small": "SELECT max(value) < 100, max(value) FROM staged"}]))
    assert task_states(fixed) == {"stage": "success", "commit": "success"}
    assert returned(fixed, "stage")["splits"] == {"total": 4, "recovered": 4, "written": 0}
    assert data_files(dag_world) == before
    assert staged_of(dag_world, "fixed") == staged
    assert len(dag_world.table().snapshots()) == 1
    assert dag_world.ids() == list(range(400))
    assert "small" not in json.dumps(returned(fixed, "commit"))


def test_a_check_that_breaks_once_is_retried_and_then_commits(dag_world, run_dag, tmp_path):
    dag_world.put_files(files=2)
    calls = []

    def flaky(staged):
        calls.append(sum(batch.num_rows for batch in staged.batches()))
        if len(calls) == 1:
            raise ConnectionError("no luck today")

    run = run_dag(write("flaky", dag_world, [flaky], retries=1, retry_delay=timedelta(0)))
    assert run.state == "success"
    assert calls == [200, 200]
    assert dag_world.ids() == list(range(200))


def test_all_checks_of_a_failed_try_are_run_and_no_retry_is_spent_on_it(dag_world, run_dag):
    dag_world.put_files(files=1)
    calls = []

    def first(staged):
        calls.append("first")
        assert staged.dataframe.count() == 0, "there are rows"

    def second(staged):
        calls.append("second")
        return staged.rows == 100

    run = run_dag(write("all", dag_world, [first, "SELECT count(*) = 0 FROM staged", second], retries=3, retry_delay=timedelta(0)))
    assert task_states(run)["commit"] == "failed"
    assert calls == ["first", "second"]
    assert dag_world.table().snapshots() == []


def test_what_landed_already_is_not_checked_and_starts_no_spark(dag_world, run_dag, monkeypatch):
    dag_world.put_files(files=2)
    run_dag(write("landed", dag_world, ["SELECT count(*) = 200 FROM staged"]))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "http", "host": "no.spark.here"}))
    with DAG("landed_again", schedule=None, start_date=start()) as dag:
        CheckpointCommitOperator(task_id="commit", checkpoint="landed", checks=["SELECT false", lambda _: False])
    run = run_dag(dag)
    assert run.state == "success"
    assert returned(run, "commit")["commit"]["landed_now"] is False
    assert len(dag_world.table().snapshots()) == 1


def test_arrow_checks_need_no_spark(dag_world, run_dag, monkeypatch):
    dag_world.put_files(files=2)
    dag_world.stage(dag_world.request("arrow"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "http", "host": "no.spark.here"}))
    seen = []

    def reads(staged):
        seen.extend(n for batch in staged.batches(["id"]) for n in batch["id"].to_pylist())

    with DAG("arrow", schedule=None, start_date=start()) as dag:
        CheckpointCommitOperator(task_id="commit", checkpoint="arrow", checks=[reads])
    run = run_dag(dag)
    assert run.state == "success"
    assert sorted(seen) == dag_world.ids() == list(range(200))

    dag_world.put_files(files=1)
    dag_world.stage(dag_world.request("sql"))
    with DAG("sql", schedule=None, start_date=start()) as dag:
        CheckpointCommitOperator(task_id="commit", checkpoint="sql", checks=["SELECT true"])
    assert task_states(run_dag(dag)) == {"commit": "failed"}
    assert len(dag_world.table().snapshots()) == 1


def test_all_members_of_a_mapped_stage_are_checked_together(dag_world, run_dag):
    for day in range(3):
        (dag_world.input / f"day={day}").mkdir()
        pq.write_table(rows(day * 100, 100), dag_world.input / f"day={day}" / "0.parquet")
    seen = []

    def keys(staged):
        seen.append(staged.keys)

    with DAG("mapped", schedule=None, start_date=start()) as dag:
        staged = CheckpointedIcebergWriteOperator.partial(
            task_id="stage", table="shop.orders", idempotence_key="day-{{ ti.map_index }}"
        ).expand(source=[f"{dag_world.input}/day={day}/*.parquet" for day in range(3)])
        sql = "SELECT count(*) = 300 AND count(DISTINCT id) = 300 AND max(id) = 299, count(*) FROM staged"
        staged >> CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, checks=[sql, keys])
    run = run_dag(dag)
    assert run.state == "success"
    assert seen == [("day-0", "day-1", "day-2")]
    assert len(dag_world.table().snapshots()) == 1
    assert dag_world.ids() == list(range(300))


def test_checks_and_spark_settings_are_templates(own_sessions, dag_world, run_dag, tmp_path, monkeypatch):
    dag_world.put_files(files=4)
    (tmp_path / "templated_checks.py").write_text("def exact(staged):\n    return staged.rows == 400\n")
    monkeypatch.syspath_prepend(tmp_path)
    checks = [
        "SELECT max(value) <= {{ params.most }} FROM staged",
        {"run": "SELECT '{{ dag_run.conf['table'] }}' = 'shop.orders'"},
        "templated_checks:{{ 'exact' }}",
        "SELECT current_timezone() = 'Asia/{{ dag_run.conf['city'] }}'",
    ]
    zone = {"spark.sql.session.timeZone": "Asia/{{ dag_run.conf['city'] }}"}
    dag = write("templated", dag_world, checks, spark_conf=zone)
    assert run_dag(dag, table="shop.orders", city="Tokyo").state == "success"
    assert dag_world.ids() == list(range(400))


def test_a_template_that_renders_to_nothing_is_no_check_and_commits_nothing(dag_world, run_dag):
    dag_world.put_files(files=1)
    dag_world.stage(dag_world.request("hollow"))
    with DAG("hollow", schedule=None, start_date=start()) as dag:
        CheckpointCommitOperator(task_id="commit", checkpoint="hollow", checks=["{{ dag_run.conf.get('nothing', '') }}"])
    assert task_states(run_dag(dag)) == {"commit": "failed"}
    assert dag_world.table().snapshots() == []


def test_a_commit_that_is_stopped_before_its_checks_commits_nothing(dag_world, run_dag):
    dag_world.put_files(files=1)
    dag_world.stage(dag_world.request("stopped"))
    seen = []
    with DAG("stopped", schedule=None, start_date=start()) as dag:
        CheckpointCommitOperator(
            task_id="commit", checkpoint="stopped", checks=["SELECT true", lambda staged: seen.append(staged.rows)],
            on_execute_callback=lambda context: context["task"].on_kill(),
        )  # fmt: skip
    assert task_states(run_dag(dag)) == {"commit": "failed"}
    assert seen == []
    assert dag_world.table().snapshots() == []


@pytest.mark.parametrize("wrong", ["SELECT true", [""], [7], [{}], ["shop.checks.few"], [lambda: True]])
def test_what_is_no_list_of_checks_is_refused_when_the_dag_is_parsed(wrong):
    with pytest.raises(InvalidInputError):
        CheckpointCommitOperator(task_id="commit", checkpoint="key", checks=wrong)


def test_parsing_checks_imports_neither_spark_nor_a_table_format():
    code = (
        "import sys\n"
        "from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator\n"
        "CheckpointCommitOperator(task_id='commit', checkpoint='key', checks=['SELECT true', len, 'shop.checks:few'])\n"
        "print([m for m in ('pyspark', 'pyiceberg', 'pyarrow', 'lance', 'obstore') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stdout
