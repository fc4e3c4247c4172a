"""Stages into Lance datasets as an engineer uses them: whole DAG runs, and what is refused when a DAG is parsed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from datetime import timedelta

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from support.dags import returned, start, task_states
from support.s3 import SECRET
from support.world import rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.operators.cleanup import CheckpointCleanupOperator
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.lance import CheckpointedLanceWriteOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.sources import Files, IcebergTable, LanceDataset, SparkDataFrame

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture
def uri(tmp_path):
    """A dataset with the columns of all rows here, and none of them yet."""
    found = str(tmp_path / "orders.lance")
    lance.write_dataset(rows(0, 1).schema.empty_table(), found)
    return found


def stage(world, uri, task_id="stage", **changes):
    facts = {
        "task_id": task_id,
        "uri": uri,
        "source": Files(f"{world.input}/*.parquet", max_split_bytes=1),
        "retries": 0,
        "retry_delay": timedelta(0),
    }
    return CheckpointedLanceWriteOperator(**(facts | changes))


def commit_of(staged, task_id="commit", **changes):
    return CheckpointCommitOperator(task_id=task_id, checkpoint=staged.output, **changes)


def arrived(staged):
    return CheckpointSensor(task_id="arrived", checkpoint=staged.output, poke_interval=1, timeout=30)


def chain(*tasks):
    for before, after in itertools.pairwise(tasks):
        before >> after


def ids(uri, **options):
    return sorted(lance.dataset(uri, **options).to_table(columns=["id"])["id"].to_pylist())


def versions(uri):
    return [one["version"] for one in lance.dataset(uri).versions()]


def test_a_retry_recovers_what_the_first_try_staged_and_one_version_lands(dag_world, run_dag, tmp_path, uri):
    dag_world.put_files(files=4)
    broken_once, stored = tmp_path / "broken_once", tmp_path / "store"

    def fails_once_on_the_last_file(batch):
        if batch["id"][0].as_py() == 300 and not broken_once.exists():
            broken_once.touch()
            end = time.monotonic() + 30
            while not any(stored.rglob("staged/*")) and time.monotonic() < end:
                time.sleep(0.05)
            raise ValueError("no luck today")
        return batch

    with DAG("lance_retry", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, uri, transform=fails_once_on_the_last_file, retries=1)
        chain(staged, commit_of(staged), arrived(staged))
    run = run_dag(dag)

    assert task_states(run) == {"stage": "success", "commit": "success", "arrived": "success"}
    reference = returned(run, "stage")
    assert reference["splits"]["total"] == 4
    assert reference["splits"]["recovered"] >= 1
    assert reference["splits"]["recovered"] + reference["splits"]["written"] == 4
    assert reference["idempotence_key"] == returned(run, "stage", key="idempotence_key") == f"lance_retry/stage/{run.run_id}/-1"
    assert {k: reference[k] for k in ("table", "format", "mode", "state", "map_index", "rows", "files", "generation")} == {
        "table": f"file://{uri}", "format": "lance", "mode": "append", "state": "sealed", "map_index": -1, "rows": 400, "files": 4,
        "generation": 1,
    }  # fmt: skip
    committed = returned(run, "commit")
    assert committed["state"] == "committed"
    assert committed["commit"].keys() == {"version", "committed_at", "landed_now"}
    assert (committed["commit"]["version"], committed["commit"]["landed_now"]) == (2, True)
    assert ids(uri) == list(range(400))
    assert versions(uri) == [1, 2]
    assert len(json.dumps(committed)) < 4096


def test_mapped_stages_land_in_one_version(dag_world, run_dag, uri):
    for day in range(3):
        (dag_world.input / f"day={day}").mkdir()
        pq.write_table(rows(day * 100, 100), dag_world.input / f"day={day}" / "0.parquet")
    with DAG("lance_mapped", schedule=None, start_date=start()) as dag:
        staged = CheckpointedLanceWriteOperator.partial(task_id="stage", uri=uri).expand(
            source=[f"{dag_world.input}/day={day}/*.parquet" for day in range(3)]
        )
        chain(staged, commit_of(staged), arrived(staged))
    run = run_dag(dag)

    assert run.state == "success"
    committed = returned(run, "commit")
    assert [one["map_index"] for one in committed] == [0, 1, 2]
    assert {one["commit"]["version"] for one in committed} == {2}
    assert versions(uri) == [1, 2]
    assert ids(uri) == list(range(300))


def test_a_committed_key_is_reused_and_starts_no_spark(dag_world, run_dag, uri):
    dag_world.put_files(files=2)
    with DAG("lance_reuse", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, uri, idempotence_key="reuse/1")
        chain(staged, commit_of(staged))
    first, second = run_dag(dag), run_dag(dag)

    reused = returned(second, "stage")
    assert reused["state"] == "committed"
    assert reused["commit"]["version"] == returned(first, "commit")["commit"]["version"] == 2
    assert "snapshot_id" not in reused["commit"]
    assert returned(second, "commit")["commit"]["landed_now"] is False
    # An attempt is recorded once a session runs: the second run recorded none.
    assert len(Checkpoint.latest(dag_world.store, IdempotenceKey("reuse/1")).attempts()) == 1
    assert ids(uri) == list(range(200))
    assert versions(uri) == [1, 2]


def test_nothing_to_write_is_committed_without_a_version_and_the_sensor_passes(dag_world, run_dag, uri):
    with DAG("lance_nothing", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, uri)
        chain(staged, commit_of(staged), arrived(staged))
    run = run_dag(dag)

    assert run.state == "success"
    assert returned(run, "commit")["commit"]["version"] is None
    assert versions(uri) == [1]


def test_a_run_may_ask_for_a_restart_and_the_rows_are_there_once(dag_world, run_dag, uri):
    dag_world.put_files(files=2)
    with DAG("lance_restart", schedule=None, start_date=start()) as dag:
        stage(dag_world, uri, idempotence_key="restart/1")
    run_dag(dag)
    dag_world.put_files(files=3)
    with DAG("lance_restart", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, uri, idempotence_key="restart/1")
        cleaned = CheckpointCleanupOperator(task_id="cleanup", checkpoint=staged.output)
        chain(staged, commit_of(staged), cleaned)
    run = run_dag(dag, checkpoint="restart")

    assert returned(run, "stage")["generation"] == 2
    assert ids(uri) == list(range(300))
    assert versions(uri) == [1, 2]
    first, second = returned(run, "cleanup")["generations"]
    assert (first["state"], first["files"], second["state"], second["files"]) == ("discarded", 2, "committed", 0)


def test_a_dataset_is_created_filled_and_overwritten_each_in_one_version(dag_world, run_dag, tmp_path):
    uri = str(tmp_path / "made.lance")
    sources = {}
    for name, table in (("first", rows(0, 10)), ("later", rows(10, 5)), ("day", rows(50, 2))):
        (dag_world.input / name).mkdir()
        pq.write_table(table, dag_world.input / name / "0.parquet")
        sources[name] = f"{dag_world.input}/{name}/*.parquet"

    def vectors(batch):
        vector = pa.array([[n, n / 2] for n in batch["id"].to_pylist()], pa.list_(pa.float32(), 2))
        return pa.RecordBatch.from_arrays([batch["id"], vector], names=["id", "vector"])

    with DAG("lance_modes", schedule=None, start_date=start()) as dag:
        first = stage(
            dag_world, uri, "first", source=sources["first"], transform=vectors, mode="create", storage_version="2.1",
            stable_row_ids=True,
        )  # fmt: skip
        later = stage(dag_world, uri, "later", source=sources["later"], transform=vectors)
        day = stage(dag_world, uri, "day", source=sources["day"], transform=vectors, mode="{{ 'over' }}write")
        chain(*[task for one in (first, later, day) for task in (one, commit_of(one, f"commit_{one.task_id}"))])
    run = run_dag(dag)

    assert set(task_states(run).values()) == {"success"}
    assert [returned(run, f"commit_{name}")["commit"]["version"] for name in ("first", "later", "day")] == [1, 2, 3]
    assert [lance.dataset(uri, version=version).count_rows() for version in (1, 2, 3)] == [10, 15, 2]
    dataset = lance.dataset(uri)
    dataset.validate()
    assert dataset.to_table().to_pylist() == [{"id": 50, "vector": [50.0, 25.0]}, {"id": 51, "vector": [51.0, 25.5]}]
    assert dataset.schema.field("vector").type == pa.list_(pa.float32(), 2)
    assert dataset.data_storage_version == "2.1"
    assert dataset.has_stable_row_ids


def test_a_dataset_grows_by_the_columns_that_the_rows_have(dag_world, run_dag, uri):
    dag_world.put_files(files=2)

    def noted(batch):
        return batch.append_column("note", pa.array(["new"] * batch.num_rows))

    with DAG("lance_growth", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, uri, transform=noted, evolve_schema=True)
        chain(staged, commit_of(staged))
    assert run_dag(dag).state == "success"
    dataset = lance.dataset(uri)
    assert [dataset.count_rows("note = 'new'"), dataset.count_rows("note is null")] == [200, 0]
    assert versions(uri) == [1, 2, 3]


def test_a_dataframe_is_written_into_a_new_dataset(dag_world, run_dag, tmp_path):
    uri = str(tmp_path / "frames.lance")

    def numbers(spark):
        return spark.range(50).selectExpr("id", "CAST(id % 3 AS int) AS kind", "array(id) AS ids")

    with DAG("lance_frame", schedule=None, start_date=start()) as dag:
        staged = stage(dag_world, uri, source=SparkDataFrame(numbers, id_column="id", buckets=2), mode="create")
        chain(staged, commit_of(staged))
    run = run_dag(dag)

    assert run.state == "success"
    assert ids(uri) == list(range(50))
    assert lance.dataset(uri).schema.field("ids").type.value_type == pa.int64()
    assert versions(uri) == [1]


def test_a_pinned_dataset_goes_into_an_iceberg_table_with_templates_rendered(dag_world, run_dag, uri):
    lance.write_dataset(rows(0, 10), uri, mode="append")
    lance.write_dataset(rows(10, 10), uri, mode="append")
    with DAG("lance_source", schedule=None, start_date=start()) as dag:
        source = LanceDataset(
            "{{ dag_run.conf['uri'] }}", version="{{ dag_run.conf['version'] }}", filter="id >= {{ dag_run.conf['least'] }}"
        )
        staged = CheckpointedIcebergWriteOperator(task_id="stage", table="shop.orders", source=source)
        chain(staged, commit_of(staged))
    assert run_dag(dag, uri=uri, version=2, least=4).state == "success"
    assert dag_world.ids() == [4, 5, 6, 7, 8, 9]
    assert task_states(run_dag(dag, uri=uri, version="", least=4))["stage"] == "failed"


def test_a_growing_table_is_copied_into_a_dataset_row_by_row_once(dag_world, run_dag, uri):
    arrow = dag_world.table().schema().as_arrow()
    with DAG("growing", schedule=None, start_date=start()) as dag:
        source = IcebergTable("shop.orders", since="last_commit")
        staged = stage(dag_world, uri, source=source, idempotence_key="growing/{{ dag_run.conf['n'] }}")
        chain(staged, commit_of(staged))
    for number in range(2):
        dag_world.table().append(rows(number * 10, 10).cast(arrow))
        assert run_dag(dag, n=number).state == "success"
    assert run_dag(dag, n="nothing new").state == "success"
    assert ids(uri) == list(range(20))


def test_a_failed_check_leaves_the_dataset_and_its_correction_commits_without_writing(dag_world, run_dag, uri):
    dag_world.put_files(files=2)

    def dag_with(check):
        with DAG("lance_checks", schedule=None, start_date=start()) as dag:
            staged = stage(dag_world, uri, idempotence_key="checks/1")
            chain(staged, commit_of(staged, checks=[check]))
        return dag

    failed = run_dag(dag_with("SELECT max(value) < 10 FROM staged"))
    assert task_states(failed) == {"stage": "success", "commit": "failed"}
    assert versions(uri) == [1]
    fixed = run_dag(dag_with("SELECT max(value) < 100 FROM staged"))
    assert task_states(fixed) == {"stage": "success", "commit": "success"}
    assert returned(fixed, "stage")["splits"] == {"total": 2, "recovered": 2, "written": 0}
    assert ids(uri) == list(range(200))


def test_dataset_source_and_store_in_object_storage(dag_world, run_dag, s3_bucket, monkeypatch):
    options = s3_bucket.options
    keys = {"login": options["access_key_id"], "password": options["secret_access_key"]}
    extra = {"endpoint": options["endpoint"], "region": options["region"], "allow_http": True}
    store = {"conn_type": "checkpoint", "host": s3_bucket.uri("checkpoints"), **keys, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(store))
    dag_world.put_files(files=3)
    first, second = s3_bucket.uri("first.lance"), s3_bucket.uri("second.lance")
    with DAG("lance_objects", schedule=None, start_date=start()) as dag:
        places = {"lance_conn_id": "lake", "checkpoint_conn_id": "lake", "mode": "create"}
        made = stage(dag_world, first, "first", **places)
        copied = stage(dag_world, second, "second", source=LanceDataset(first, conn_id="lake", max_split_bytes=1), **places)
        cleaned = CheckpointCleanupOperator(task_id="cleanup", checkpoint=[made.output, copied.output])
        chain(made, commit_of(made, "commit_first"), copied, commit_of(copied), arrived(copied), cleaned)
    run = run_dag(dag)

    assert run.state == "success"
    assert [one["files"] for one in returned(run, "cleanup")] == [0, 0]
    assert ids(second, storage_options=options) == list(range(300))
    assert returned(run, "second")["splits"]["total"] == 3
    assert len(lance.dataset(second, storage_options=options).versions()) == 1
    names = [name.rpartition("/")[2] for name in s3_bucket.contents("second.lance/data/")]
    assert len(names) == 3
    assert all(name.startswith("ckpt-") for name in names)
    stored = s3_bucket.contents("checkpoints/")
    assert len([name for name in stored if "/staged/" in name]) == 6
    assert all(SECRET.encode() not in data for data in [*stored.values(), *s3_bucket.contents("second.lance/").values()])
    assert SECRET not in json.dumps(returned(run, "commit"))


# -- when the DAG is parsed ------------------------------------------------------------------------------------------------


def parsed(**changes):
    facts = {"task_id": "stage", "uri": "/lake/orders.lance", "source": "/landing/*.parquet"}
    return CheckpointedLanceWriteOperator(**(facts | changes))


def test_every_mode_is_taken_with_its_parameters():
    parsed()
    parsed(mode="create", storage_version="2.1", stable_row_ids=True)
    parsed(mode="overwrite", on_rerun="replace", on_change="restart", evolve_schema=True)
    parsed(mode="{{ params.mode }}", storage_version="{{ params.version }}")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"mode": "apend"}, r"'apend': the modes are create, append, overwrite"),
        ({"mode": "overwrite_partitions"}, "overwrite_partitions"),
        ({"mode": "append", "storage_version": "2.1"}, "storage_version belongs to mode='create'"),
        ({"mode": "overwrite", "stable_row_ids": True}, "stable_row_ids belongs to mode='create'"),
        ({"mode": "append", "stable_row_ids": False}, "stable_row_ids belongs to mode='create'"),
        ({"mode": "create", "stable_row_ids": "yes"}, "stable_row_ids='yes'"),
        ({"mode": "create", "storage_version": " "}, "storage_version=' '"),
        ({"mode": "create", "storage_version": 2.1}, "storage_version=2.1"),
        ({"on_change": "ignore"}, "ignore"),
        ({"on_rerun": "again"}, "again"),
        ({"transform": "shop.transforms.clean"}, "package.module:function"),
        ({"source": 7}, "7"),
    ],
    ids=str,
)
def test_a_wrong_parameter_is_refused_at_parse_time_and_named(wrong, named):
    with pytest.raises(InvalidInputError, match=named):
        parsed(**wrong)


@pytest.mark.parametrize("parameter", ["partition_by", "overwrite_filter", "branch", "table"])
def test_parameters_of_an_iceberg_stage_are_refused_at_parse_time(parameter):
    with pytest.raises(TypeError, match=parameter):
        parsed(**{parameter: "x"})


def test_templated_fields_are_those_that_users_expect():
    assert {"uri", "source", "mode", "storage_version", "idempotence_key", "spark_conf"} <= set(
        CheckpointedLanceWriteOperator.template_fields
    )


def test_parsing_a_dag_imports_neither_spark_nor_lance():
    code = (
        "import sys\n"
        "from airflow.sdk import DAG\n"
        "from airflow_ckpt_provider.operators.lance import CheckpointedLanceWriteOperator\n"
        "from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator\n"
        "from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor\n"
        "from airflow_ckpt_provider.sources import Files, LanceDataset\n"
        "with DAG('parsed', schedule=None):\n"
        "    source = LanceDataset('/lake/a.lance', version=3, filter='id > 3', columns=['id'])\n"
        "    staged = CheckpointedLanceWriteOperator(task_id='s', uri='/lake/b.lance', source=source, mode='create',\n"
        "        storage_version='2.1', stable_row_ids=True)\n"
        "    CheckpointCommitOperator(task_id='c', checkpoint=staged.output, checks=['SELECT count(*) > 0 FROM staged'])\n"
        "    CheckpointSensor(task_id='w', checkpoint=staged.output)\n"
        "repr(source), source.describe()\n"
        "print([m for m in ('pyspark', 'pyiceberg', 'pyarrow', 'lance', 'obstore') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stdout


def test_columns_that_are_added_survive_a_failed_try_and_land_in_one_version(dag_world, run_dag, tmp_path, uri):
    lance.write_dataset(rows(0, 300), uri, mode="append", max_rows_per_file=100)
    broken_once, stored = tmp_path / "broken_once", tmp_path / "store"

    def doubled_but_fails_once(batch):
        if batch["id"][0].as_py() == 200 and not broken_once.exists():
            broken_once.touch()
            end = time.monotonic() + 30
            while not any(stored.rglob("staged/*")) and time.monotonic() < end:
                time.sleep(0.05)
            raise ValueError("no luck today")
        return pa.record_batch({"doubled": pa.array([2 * number for number in batch["id"].to_pylist()])})

    with DAG("lance_columns", schedule=None, start_date=start()) as dag:
        added = CheckpointedLanceWriteOperator(
            task_id="stage",
            uri=uri,
            mode="add_columns",
            read_columns="id",
            rows_per_split=50,
            transform=doubled_but_fails_once,
            retries=1,
            retry_delay=timedelta(0),
        )
        checked = commit_of(added, checks=["SELECT count(*) = 300 AND min(doubled) = 0 FROM staged"])
        chain(added, checked, arrived(added))
    run = run_dag(dag)

    assert task_states(run) == {"stage": "success", "commit": "success", "arrived": "success"}
    reference = returned(run, "stage")
    # Six ranges, and three fragments that are each joined of two.
    assert (reference["splits"]["total"], reference["rows"], reference["mode"]) == (9, 300, "add_columns")
    assert reference["splits"]["recovered"] >= 1
    assert returned(run, "commit")["commit"]["landed_now"]
    assert versions(uri) == [1, 2, 3]
    assert all(row["doubled"] == 2 * row["id"] for row in lance.dataset(uri).to_table().to_pylist())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "/in/*.parquet"}, "takes no source"),
        ({"transform": None}, "needs a transform"),
        ({"read_columns": None}, "needs read_columns"),
        ({"rows_per_split": 0}, "rows_per_split=0 is not a number from 1"),
        ({"evolve_schema": True}, "takes no evolve_schema"),
        ({"mode": "append"}, "source=None is neither"),
        ({"mode": "append", "source": "/in/*.parquet"}, "read_columns belongs to mode='add_columns'"),
    ],
)
def test_columns_that_cannot_be_added_are_refused_when_the_dag_is_parsed(uri, changes, message):
    facts = {"task_id": "stage", "uri": uri, "mode": "add_columns", "read_columns": ["id"], "transform": len}
    with pytest.raises(InvalidInputError, match=message):
        CheckpointedLanceWriteOperator(**(facts | changes))
