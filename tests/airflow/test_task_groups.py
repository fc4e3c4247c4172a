"""The task group of a whole write: what it is made of, and what it lands."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, task
from jinja2 import Environment
from support.dags import returned, start, task_states

from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.task_groups import checkpointed_write_group

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]


def test_a_group_stages_checks_commits_and_cleans_up(dag_world, run_dag):
    dag_world.put_files(files=2)

    @task.checkpointed_iceberg(table="shop.orders", source=Files(f"{dag_world.input}/*.parquet"))
    def clean(batch):
        return batch

    with DAG("group", schedule=None, start_date=start()) as dag:
        checkpointed_write_group("orders", clean, checks=["SELECT count(*) = 200 FROM staged"], cleanup=True)
    run = run_dag(dag)

    assert task_states(run) == {"orders.clean": "success", "orders.commit": "success", "orders.clean_up": "success"}
    assert returned(run, "orders.clean_up")["files"] == 0
    assert dag_world.ids() == list(range(200))


def test_a_check_that_fails_keeps_a_group_from_committing(dag_world, run_dag):
    dag_world.put_files(files=1)
    with DAG("group_checked", schedule=None, start_date=start()) as dag:
        checkpointed_write_group(
            "orders",
            lambda: CheckpointedIcebergWriteOperator(task_id="stage", table="shop.orders", source=f"{dag_world.input}/*.parquet"),
            checks=["SELECT count(*) = 1 FROM staged"],
            cleanup=True,
        )
    states = task_states(run_dag(dag))

    assert states == {"orders.stage": "success", "orders.commit": "failed", "orders.clean_up": "upstream_failed"}
    assert dag_world.table().snapshots() == []


def test_a_mapped_stage_lands_in_one_commit_of_its_group(dag_world, run_dag):
    dag_world.put_files(files=2)
    sources = [f"{dag_world.input}/{number}.parquet" for number in range(2)]
    with DAG("group_mapped", schedule=None, start_date=start()) as dag:
        checkpointed_write_group(
            "orders", lambda: CheckpointedIcebergWriteOperator.partial(task_id="stage", table="shop.orders").expand(source=sources)
        )
    run = run_dag(dag)

    assert len(returned(run, "orders.commit")) == 2
    assert dag_world.ids() == list(range(200))
    assert len(dag_world.table().snapshots()) == 1


def approved(asked):
    with DAG("group_approved", schedule=None, start_date=start()) as dag:

        @task.checkpointed_iceberg(table="shop.orders", source="/landing/*.parquet")
        def clean(batch):
            return batch

        checkpointed_write_group("orders", clean, approval=asked, outlets=[])
    return dag


def test_whoever_approves_is_asked_between_stage_and_commit_and_told_what_is_staged():
    dag = approved("Publish?")
    assert dag.get_task("orders.approval").upstream_task_ids == {"orders.clean"}
    assert dag.get_task("orders.commit").upstream_task_ids == {"orders.clean", "orders.approval"}

    staged = {"table": "shop.orders", "rows": 7, "files": 2, "mode": "append", "idempotence_key": "k/1"}

    class Instance:
        def __init__(self, value):
            self.value = value

        def xcom_pull(self, task_ids):
            assert task_ids == "orders.clean"
            return self.value

    body = Environment(autoescape=False).from_string(dag.get_task("orders.approval").body)  # a text, no page
    line = "- **shop.orders**: 7 rows in 2 files, mode `append`, key `k/1`\n"
    assert body.render(task_instance=Instance(staged)) == line
    assert body.render(task_instance=Instance([staged, staged])) == line * 2


def test_the_question_takes_what_airflows_operator_takes():
    asked = approved({"subject": "Publish?", "body": "Look first.", "fail_on_reject": True}).get_task("orders.approval")
    assert (asked.subject, asked.body, asked.fail_on_reject) == ("Publish?", "Look first.", True)
