"""A stage whose commit was forgotten says so when its DAG is parsed; one that may be committed says nothing."""

from __future__ import annotations

import warnings

import pytest
from airflow.sdk import DAG, task
from support.dags import start

from airflow_ckpt_provider.operators.cleanup import CheckpointCleanupOperator
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.transform import CheckpointedTransformOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.task_groups import checkpointed_write_group

pytestmark = pytest.mark.airflow


def stage(**changes):
    return CheckpointedIcebergWriteOperator(
        **({"task_id": "stage", "table": "shop.orders", "source": "/landing/*.parquet"} | changes)
    )


def warned(make):
    """The warnings of a DAG that Airflow takes in."""
    from airflow.dag_processing.dagbag import DagBag

    with DAG("uncommitted", schedule=None, start_date=start()) as dag:
        make()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        DagBag(dag_folder="/dev/null").bag_dag(dag)
    return [str(warning.message) for warning in found if "nothing commits" in str(warning.message)]


def alone():
    stage()


def followed_by_what_takes_nothing():
    @task
    def tell():
        return "done"

    stage() >> tell()


def waited_for_and_cleaned_up():
    staged = stage()
    CheckpointSensor(task_id="sealed", checkpoint=staged.output, until="sealed")
    CheckpointCleanupOperator(task_id="clean_up", checkpoint=staged.output)


@pytest.mark.parametrize("make", [alone, followed_by_what_takes_nothing, waited_for_and_cleaned_up])
def test_a_stage_that_nothing_commits_says_so_when_its_dag_is_parsed(make):
    (said,) = warned(make)
    assert "The task 'stage' of the DAG 'uncommitted' stages rows that nothing commits" in said
    assert "CheckpointCommitOperator(task_id=..." in said


def committed():
    CheckpointCommitOperator(task_id="commit", checkpoint=stage().output)


def committed_later_by_its_key():
    @task
    def look():
        return True

    stage() >> look() >> CheckpointCommitOperator(task_id="commit", checkpoint="uncommitted/stage/{{ run_id }}/-1")


def committed_by_another_dag():
    stage(idempotence_key="orders/{{ ds }}")


def taken_by_a_task_of_the_users_own():
    @task
    def land(reference):
        return reference["idempotence_key"]

    land(stage().output)


def committed_by_mapped_tasks():
    CheckpointCommitOperator.partial(task_id="commit").expand(checkpoint=[stage().output])


def in_a_group():
    checkpointed_write_group("orders", stage)


def for_the_next_task():
    CheckpointedTransformOperator(task_id="rows", source="/landing/*.parquet")


@pytest.mark.parametrize(
    "make",
    [
        committed,
        committed_later_by_its_key,
        committed_by_another_dag,
        taken_by_a_task_of_the_users_own,
        committed_by_mapped_tasks,
        in_a_group,
        for_the_next_task,
    ],
)
def test_a_stage_that_may_be_committed_says_nothing(make):
    assert warned(make) == []


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("commits", [False, True])
def test_a_mapped_stage_says_so_when_it_runs(dag_world, run_dag, capsys, commits):
    with DAG("uncommitted_mapped", schedule=None, start_date=start()) as dag:
        staged = CheckpointedIcebergWriteOperator.partial(task_id="stage", table="shop.missing").expand(source=["/a/*.parquet"])
        if commits:
            CheckpointCommitOperator(task_id="commit", checkpoint=staged.output)
    run_dag(dag)
    assert (
        "The task 'stage' of the DAG 'uncommitted_mapped' stages rows that nothing commits" in capsys.readouterr().out
    ) is not commits
