"""Several transforms in a row in one DAG: each stage recovers by itself, and only the last one lands."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task, task_group
from support.dags import returned, start, task_states

from airflow_ckpt_provider.operators.cleanup import CheckpointCleanupOperator
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.readers import readers_behind
from airflow_ckpt_provider.operators.transform import CheckpointedTransformOperator
from airflow_ckpt_provider.sources import Files, SparkDataFrame, Staged
from airflow_ckpt_provider.transforms import FlatMap, Map

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]

SETTINGS = {"retries": 0, "retry_delay": timedelta(0)}


def test_a_pipeline_resumes_at_the_stage_and_row_where_it_died_and_lands_once(dag_world, run_dag, tmp_path):
    dag_world.put_files(files=2)
    broken, calls = tmp_path / "broken", tmp_path / "calls"
    calls.mkdir()
    broken.touch()
    counting, breaking = str(calls), str(broken)

    def parse(id, value, at):  # noqa: A002 - the name of a column
        with Path(counting, f"parse-{id}").open("a") as file:
            file.write("x")
        yield {"id": id, "value": value, "kind": "parsed", "at": at}

    def embed(id, kind):  # noqa: A002 - the name of a column
        with Path(counting, f"embed-{id}").open("a") as file:
            file.write("x")
        if id == 150 and Path(breaking).exists():
            Path(breaking).unlink()
            raise ValueError("the service was down")
        return {"kind": f"{kind} and embedded"}

    columns = {"id": pa.int64(), "value": pa.float64(), "kind": pa.string(), "at": pa.timestamp("us")}
    with DAG("pipeline", schedule=None, start_date=start()) as dag:
        source = Files(f"{dag_world.input}/*.parquet", max_split_bytes=1)
        parsed = CheckpointedTransformOperator(task_id="parse", source=source, transform=FlatMap(parse, output=columns), **SETTINGS)
        embedded = CheckpointedTransformOperator(
            task_id="embed",
            source=Staged(parsed.output),
            transform=Map(embed, output={"kind": pa.string()}, keep=["id", "value", "at"]),
            save_every=10,
            **(SETTINGS | {"retries": 1}),
        )
        write = CheckpointedIcebergWriteOperator(task_id="write", table="shop.orders", source=Staged(embedded.output), **SETTINGS)
        commit = CheckpointCommitOperator(task_id="commit", checkpoint=write.output)
        clean = CheckpointCleanupOperator(task_id="clean", checkpoint=commit.output)
        # It reads what the first stage has staged, too, and begins after the clean-up.
        late = CheckpointedTransformOperator(task_id="late", source=Staged(parsed.output), **SETTINGS)
        clean >> late
    assert embedded.upstream_task_ids == {"parse"}
    run = run_dag(dag)

    assert task_states(run) == dict.fromkeys(["parse", "embed", "write", "commit", "clean", "late"], "success")
    assert dag_world.ids() == list(range(200))
    assert set(dag_world.table().scan().to_arrow()["kind"].to_pylist()) == {"parsed and embedded"}
    assert len(dag_world.table().snapshots()) == 1
    twice = {path.name for path in calls.iterdir() if path.stat().st_size > 1}
    # What was saved before the row that failed is not computed again, and the stage before it not at all.
    assert {name for name in twice if name.startswith("parse")} == set()
    assert twice <= {f"embed-{number}" for number in range(140, 200)}
    reference = returned(run, "parse")
    assert {name: reference[name] for name in ("format", "mode", "state", "rows")} == {
        "format": "staged", "mode": "for_next", "state": "sealed", "rows": 200,
    }  # fmt: skip
    # What the second stage has staged is needed by nobody any more: the files of its two splits, and perhaps that of a task that
    # was stopped when the other one failed.
    embedded, parsed = returned(run, "clean")["read"]
    assert embedded["idempotence_key"].split("/")[1] == "embed"
    assert embedded["files"] in {2, 3}
    assert (parsed["files"], parsed["generations"][0]["left"]) == (0, "the task 'late' is to read it, and has not begun")
    assert returned(run, "late")["rows"] == 200


@task
def passed_on(reference):
    return reference


@task
def pulled(ti=None):
    return ti.xcom_pull(task_ids="parse")


def taking_up(source, task_id="late"):
    return CheckpointedTransformOperator(task_id=task_id, source=source, **SETTINGS)


def passed_on_in_a_group(parsed):
    @task_group
    def group(reference):
        taking_up(Staged(passed_on(reference)))

    group(parsed.output)
    return "group.late"


def passed_on_to_a_mapped_group(parsed):
    @task_group
    def group(reference):
        taking_up(Staged(reference))

    group.expand(reference=passed_on(parsed.output).map(lambda reference: [reference]))
    return "group.late"


def staged(reference):
    return Staged(reference)


def mapped(parsed):
    late = CheckpointedTransformOperator.partial(task_id="late", **SETTINGS).expand(source=passed_on(parsed.output).map(staged))
    return late.task_id


def mapped_over_sources(parsed):
    handed_on = passed_on(parsed.output)
    late = CheckpointedTransformOperator.partial(task_id="late", **SETTINGS).expand(source=[Staged(handed_on)])
    handed_on >> late
    return "late"


def pulled_by_itself(parsed):
    handed_on = pulled()
    parsed >> handed_on
    taking_up(Staged(handed_on))
    return "late"


def in_a_frame(parsed):
    taking_up(SparkDataFrame(source=Staged(passed_on(parsed.output)), dataframe="json:loads", recover="partitions"))
    return "late"


@pytest.mark.parametrize(
    "reads",
    [
        lambda parsed: taking_up(Staged(passed_on(parsed.output))).task_id,
        lambda parsed: taking_up(Staged(passed_on(passed_on(parsed.output)))).task_id,
        passed_on_in_a_group, passed_on_to_a_mapped_group, mapped, mapped_over_sources, pulled_by_itself, in_a_frame,
    ],
    ids=["passed on", "passed on twice", "in a group", "mapped group", "mapped", "over sources", "pulled", "in a frame"],
)  # fmt: skip
def test_a_stage_that_is_handed_the_reference_by_another_task_is_to_read_the_rows(reads):
    with DAG("handed-on", schedule=None, start_date=start()):
        parsed = taking_up("/in/*.parquet", "parse")
        reader = reads(parsed)
        other = taking_up(Staged(parsed.output), "next")
        # These come behind it and read something else.
        behind = taking_up(Staged(other.output), "behind")
        taking_up(f"/out/{behind.task_id}/*.parquet", "elsewhere").set_upstream(behind)
    assert readers_behind(parsed) == sorted([reader, "next"])


def test_rows_stay_for_a_stage_two_tasks_further_down(dag_world, run_dag):
    dag_world.put_files(files=1)
    with DAG("two-tasks", schedule=None, start_date=start()) as dag:
        parsed = taking_up(f"{dag_world.input}/*.parquet", "parse")
        write = CheckpointedIcebergWriteOperator(task_id="write", table="shop.orders", source=Staged(parsed.output), **SETTINGS)
        commit = CheckpointCommitOperator(task_id="commit", checkpoint=write.output)
        clean = CheckpointCleanupOperator(task_id="clean", checkpoint=commit.output)
        chosen = passed_on(parsed.output)
        late = taking_up(Staged(chosen))
        clean >> chosen
        CheckpointCleanupOperator(task_id="at_last", checkpoint=late.output, discard_unfinished=True)
    run = run_dag(dag)
    assert set(task_states(run).values()) == {"success"}
    (parsed,) = returned(run, "clean")["read"]
    assert (parsed["files"], parsed["generations"][0]["left"]) == (0, "the task 'late' is to read it, and has not begun")
    assert returned(run, "late")["rows"] == 100
    # Once it has read them, nobody is to come.
    assert [(read["idempotence_key"].split("/")[1], read["files"]) for read in returned(run, "at_last")["read"]] == [("parse", 1)]


def test_another_run_takes_up_what_was_computed(dag_world, run_dag, tmp_path):
    dag_world.put_files(files=2)
    calls = tmp_path / "calls"
    counting = str(calls)

    def counted(batch):
        with Path(counting).open("a") as file:
            file.write(f"{batch.num_rows}\n")
        return batch

    for number in range(2):
        with DAG(f"content-{number}", schedule=None, start_date=start()) as dag:
            source = Files(f"{dag_world.input}/*.parquet", max_split_bytes=1)
            CheckpointedTransformOperator(task_id="make", source=source, transform=counted, reuse="content", **SETTINGS)
        run = run_dag(dag)
        assert set(task_states(run).values()) == {"success"}
        if not number:
            first = calls.read_text()
    assert calls.read_text() == first
    assert returned(run, "make")["splits"] == {"total": 2, "recovered": 2, "written": 0}
