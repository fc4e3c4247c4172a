"""Mapped stages in whole DAG runs: what their commit does when instances of them are missing, or skipped."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, task_group
from support.dags import returned, start, task_states

from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]


def expanded(sources):
    return CheckpointedIcebergWriteOperator.partial(task_id="stage", table="shop.orders").expand(source=sources).output


def expanded_by_kwargs(sources):
    kwargs = [{"source": source} for source in sources]
    return CheckpointedIcebergWriteOperator.partial(task_id="stage", table="shop.orders").expand_kwargs(kwargs).output


def in_a_mapped_group(sources):
    @task_group
    def each(source):
        return CheckpointedIcebergWriteOperator(task_id="stage", table="shop.orders", source=source).output

    return each.expand(source=sources)


def test_mapped_instances_that_would_each_make_the_one_table_are_refused_before_anything_is_stored(dag_world, run_dag):
    dag_world.put_files(files=2)
    sources = [f"{dag_world.input}/{number}.parquet" for number in range(2)]
    asked = {"table": "shop.fresh", "create_if_missing": True}
    with DAG("all_make_it", schedule=None, start_date=start()) as dag:
        staged = CheckpointedIcebergWriteOperator.partial(task_id="stage", **asked).expand(source=sources)
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    assert task_states(run_dag(dag)) == {"stage[0]": "failed", "stage[1]": "failed", "commit": "upstream_failed"}
    assert list((dag_world.root / "store").rglob("*.json")) == []
    assert not dag_world.catalog.table_exists("shop.fresh")
    # Made beforehand, it takes them in one commit.
    dag_world.create_table("shop.fresh")
    assert set(task_states(run_dag(dag)).values()) == {"success"}
    assert len(dag_world.table("shop.fresh").snapshots()) == 1


def test_one_mapped_instance_makes_the_table(dag_world, run_dag):
    dag_world.put_files(files=1)
    with DAG("alone", schedule=None, start_date=start()) as dag:
        staged = CheckpointedIcebergWriteOperator.partial(task_id="stage", table="shop.fresh", create_if_missing=True).expand(
            source=[f"{dag_world.input}/0.parquet"]
        )
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    assert set(task_states(run_dag(dag)).values()) == {"success"}
    assert dag_world.table("shop.fresh").scan().to_arrow().num_rows == 100


@pytest.mark.parametrize("mapped", [expanded, expanded_by_kwargs, in_a_mapped_group])
def test_a_commit_that_runs_though_the_last_instance_failed_refuses_to_leave_it_out(dag_world, run_dag, mapped):
    dag_world.put_files(files=1)
    with DAG("last_fails", schedule=None, start_date=start()) as dag:
        staged = mapped([f"{dag_world.input}/0.parquet", f"{dag_world.input}/not_there.parquet"])
        CheckpointCommitOperator(task_id="commit", checkpoint=staged, trigger_rule="all_done")
        CheckpointSensor(
            task_id="arrived", checkpoint=staged, until="sealed", poke_interval=0.1, timeout=1, trigger_rule="all_done"
        )
    run = run_dag(dag)

    states = task_states(run)
    name = "each.stage" if mapped is in_a_mapped_group else "stage"
    assert states == {f"{name}[0]": "success", f"{name}[1]": "failed", "commit": "failed", "arrived": "failed"}
    assert returned(run, name, map_index=0)["instances"] == {
        "dag_id": "last_fails", "task_id": name, "run_id": run.run_id, "total": 2,
    }  # fmt: skip
    assert dag_world.table().snapshots() == []


def test_a_commit_in_a_mapped_group_lands_the_reference_of_its_own_instance(dag_world, run_dag):
    dag_world.put_files(files=2)

    @task_group
    def each(source):
        staged = CheckpointedIcebergWriteOperator(task_id="stage", table="shop.orders", source=source)
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)

    with DAG("own", schedule=None, start_date=start()) as dag:
        each.expand(source=[f"{dag_world.input}/{number}.parquet" for number in range(2)])
    run = run_dag(dag)

    assert set(task_states(run).values()) == {"success"}
    assert dag_world.ids() == list(range(200))
    assert len(dag_world.table().snapshots()) == 2


def test_an_instance_that_skips_without_input_leaves_a_commit_of_all_whole(dag_world, run_dag):
    dag_world.put_files(files=1)
    with DAG("one_skips", schedule=None, start_date=start()) as dag:
        staged = CheckpointedIcebergWriteOperator.partial(task_id="stage", table="shop.orders", if_empty="skip").expand(
            source=[f"{dag_world.input}/0.parquet", f"{dag_world.input}/late/*.parquet"]
        )
        CheckpointCommitOperator(task_id="commit", checkpoint=staged.output, trigger_rule="none_failed")
    run = run_dag(dag)

    assert task_states(run) == {"stage[0]": "success", "stage[1]": "skipped", "commit": "success"}
    assert [(one["map_index"], one["rows"]) for one in returned(run, "commit")] == [(0, 100), (1, 0)]
    assert dag_world.ids() == list(range(100))
