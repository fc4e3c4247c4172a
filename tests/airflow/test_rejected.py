"""Rows at which the transform fails, in a whole DAG run: skipped and written by another task, or retried."""

from __future__ import annotations

import itertools
from datetime import timedelta

import lance
import pytest
from airflow.sdk import DAG
from support.dags import returned, start, task_states
from support.world import rows

from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.lance import CheckpointedLanceWriteOperator
from airflow_ckpt_provider.sources import Files, Rejected
from airflow_ckpt_provider.transforms import Map

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]

OUTPUT = {"output": {"kind": str}, "keep": ["id", "value", "at"]}


def commit_of(staged):
    return CheckpointCommitOperator(task_id=f"commit_{staged.task_id}", checkpoint=staged.output)


def chain(*tasks):
    for before, after in itertools.pairwise(tasks):
        before >> after


def test_what_one_task_skips_another_writes_and_rows_to_retry_run_again_in_the_next_try(dag_world, run_dag, tmp_path):
    dag_world.put_files(files=2)
    uri, broken_once = str(tmp_path / "orders.lance"), tmp_path / "broken_once"
    lance.write_dataset(rows(0, 1).schema.empty_table(), uri)

    def fails_at_some(id):  # noqa: A002 - the column
        if id % 50 == 3:
            raise ValueError(f"{id} is bad")
        return "first"

    def fails_once(id):  # noqa: A002 - the column
        if id == 153 and not broken_once.exists():
            broken_once.touch()
            raise ConnectionError("the service is down")
        return "second"

    with DAG("rejecting", schedule=None, start_date=start()) as dag:
        stage = CheckpointedIcebergWriteOperator(
            task_id="stage",
            table="shop.orders",
            source=Files(f"{dag_world.input}/*.parquet", max_split_bytes=1),
            transform=Map(fails_at_some, **OUTPUT),
            on_error="skip",
            max_errors=0.05,
            retries=0,
        )
        again = CheckpointedLanceWriteOperator(
            task_id="again",
            uri=uri,
            source=Rejected(stage.output),
            transform=Map(fails_once, **OUTPUT),
            transform_version="1",
            on_error="retry",
            retries=1,
            retry_delay=timedelta(0),
        )
        chain(stage, commit_of(stage), again, commit_of(again))
    run = run_dag(dag)
    assert set(task_states(run).values()) == {"success"}
    bad = [3, 53, 103, 153]
    assert returned(run, "commit_stage")["rejected"] == len(bad)
    assert dag_world.ids() == [one for one in range(200) if one not in bad]
    found = sorted(lance.dataset(uri).to_table().to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["kind"]) for row in found] == [(one, "second") for one in bad]
    second = returned(run, "again")
    assert "rejected" not in second
    # The rows that came right at once were recovered.
    assert second["splits"] == {"total": 2, "recovered": 1, "written": 1}
