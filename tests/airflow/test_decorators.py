"""Stages that are made of decorated functions: as transforms of a source, and as what makes a DataFrame."""

from __future__ import annotations

import time
from datetime import timedelta

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from airflow.sdk import DAG, task
from support.dags import returned, start, task_states
from support.world import rows

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.sources import Files, IcebergTable
from airflow_ckpt_provider.sources.transform import Transform

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]


def files(world):
    return Files(f"{world.input}/*.parquet", max_split_bytes=1)


def test_a_decorated_transform_that_fails_once_recovers_what_was_staged(dag_world, run_dag, tmp_path):
    dag_world.put_files(files=4)
    broken_once, stored = tmp_path / "broken_once", tmp_path / "store"

    with DAG("decorated_retry", schedule=None, start_date=start()) as dag:

        @task.checkpointed_iceberg(table="shop.orders", source=files(dag_world), retries=1, retry_delay=timedelta(0))
        def clean(batch):
            if batch["id"][0].as_py() == 300 and not broken_once.exists():
                broken_once.touch()
                while not any(stored.rglob("staged/*")):
                    time.sleep(0.05)
                raise ValueError("no luck today")
            return batch

        CheckpointCommitOperator(task_id="commit", checkpoint=clean())
    run = run_dag(dag)

    assert task_states(run) == {"clean": "success", "commit": "success"}
    reference = returned(run, "clean")
    assert reference["splits"]["recovered"] >= 1
    assert reference["splits"]["recovered"] + reference["splits"]["written"] == reference["splits"]["total"] == 4
    assert reference["idempotence_key"] == f"decorated_retry/clean/{run.run_id}/-1"
    assert dag_world.ids() == list(range(400))
    assert len(dag_world.table().snapshots()) == 1


def test_a_transform_is_given_what_its_task_is_called_with(dag_world, run_dag):
    dag_world.put_files(files=2)

    with DAG("decorated_arguments", schedule=None, start_date=start()) as dag:

        @task
        def least():
            return 150

        @task.checkpointed_iceberg(table="shop.orders", source=files(dag_world))
        def above(batch, least, most=190, kind="{{ dag_run.conf['kind'] }}", *, run_id=None):
            assert (kind, run_id[:8]) == ("x", "manual__")
            return batch.filter(pc.and_(pc.greater_equal(batch["id"], least), pc.less(batch["id"], most)))

        CheckpointCommitOperator(task_id="commit", checkpoint=above(least(), kind="{{ dag_run.conf['kind'] }}"))
    run = run_dag(dag, kind="x")

    assert run.state == "success"
    assert dag_world.ids() == list(range(150, 190))


def test_a_function_that_makes_a_dataframe_is_given_the_session_and_its_arguments(dag_world, run_dag):
    with DAG("decorated_frame", schedule=None, start_date=start()) as dag:

        @task
        def counted():
            return 40

        @task.checkpointed_iceberg(table="shop.orders", id_column="id", buckets=4)
        def orders(spark, number, first=10, ds=None):
            assert ds == "2026-01-01"
            return spark.range(first, number).selectExpr("id", "cast(id as double) as value")

        CheckpointCommitOperator(task_id="commit", checkpoint=orders(counted()))
    run = run_dag(dag, when=start())

    assert run.state == "success"
    assert returned(run, "orders")["splits"]["total"] == 4
    assert dag_world.ids() == list(range(10, 40))


def test_other_arguments_under_the_same_key_are_refused(dag_world, run_dag):
    with DAG("decorated_bound", schedule=None, start_date=start()) as dag:

        @task.checkpointed_iceberg(table="shop.orders", id_column="id", buckets=2, idempotence_key="bound/1")
        def orders(spark, number):
            return spark.range(int(number)).selectExpr("id")

        orders("{{ dag_run.conf['number'] }}")
    first, second = run_dag(dag, number=3), run_dag(dag, number=4)

    assert task_states(first) == {"orders": "success"}
    assert task_states(second) == {"orders": "failed"}


def test_a_function_that_is_called_for_each_of_a_list_is_one_write_with_many_keys(dag_world, run_dag):
    dag_world.put_files(files=3)

    with DAG("decorated_mapped", schedule=None, start_date=start()) as dag:

        @task
        def names():
            return ["0", "2"]

        @task.checkpointed_iceberg(table="shop.orders", source=Files(f"{dag_world.input}/{{{{ task.op_kwargs['name'] }}}}.parquet"))
        def shifted(batch, by, name):
            return batch.set_column(0, "id", pc.add(batch["id"], by))

        staged = shifted.partial(by=1000).expand(name=names())
        CheckpointCommitOperator(task_id="commit", checkpoint=staged)
    run = run_dag(dag)

    assert run.state == "success"
    assert [one["map_index"] for one in returned(run, "commit")] == [0, 1]
    assert dag_world.ids() == [*range(1000, 1100), *range(1200, 1300)]
    assert len(dag_world.table().snapshots()) == 1


def test_a_function_that_is_called_twice_is_two_tasks_with_keys_of_their_own(dag_world, run_dag):
    with DAG("decorated_twice", schedule=None, start_date=start()) as dag:

        @task.checkpointed_iceberg(table="shop.orders", id_column="id", buckets=1)
        def orders(spark, begin):
            return spark.range(begin, begin + 10).selectExpr("id")

        CheckpointCommitOperator(task_id="commit", checkpoint=orders(0))
        CheckpointCommitOperator(task_id="commit_more", checkpoint=orders.override(buckets=2)(10))
    run = run_dag(dag)

    assert set(task_states(run)) == {"orders", "orders__1", "commit", "commit_more"}
    assert returned(run, "orders__1")["idempotence_key"].startswith("decorated_twice/orders__1/")
    assert returned(run, "orders__1")["splits"]["total"] == 2
    assert dag_world.ids() == list(range(20))


def test_functions_write_into_lance_and_compute_columns_of_it(dag_world, run_dag, tmp_path):
    dag_world.put_files(files=2)
    uri = str(tmp_path / "orders.lance")
    lance.write_dataset(rows(0, 1).schema.empty_table(), uri)

    with DAG("decorated_lance", schedule=None, start_date=start()) as dag:

        @task.checkpointed_lance(uri=uri, source=files(dag_world))
        def clean(batch):
            return batch

        @task.checkpointed_lance(uri=uri, mode="add_columns", read_columns=["id"])
        def doubled(batch):
            return pa.table({"double": pc.multiply(batch["id"], 2)})

        more = doubled()
        landed = CheckpointCommitOperator(task_id="commit", checkpoint=clean())
        landed >> more
        CheckpointCommitOperator(task_id="commit_columns", checkpoint=more)
    run = run_dag(dag)

    assert run.state == "success"
    table = lance.dataset(uri).to_table(columns=["id", "double"])
    assert sorted(table["double"].to_pylist()) == [2 * number for number in range(200)]


def test_what_a_decorator_is_given_is_no_part_of_the_functions_code(tmp_path):
    written = {}
    for retries, body in ((1, "batch"), (9, "batch"), (9, "batch[:1]")):
        text = (
            "from airflow.sdk import task\n"
            f"@task.checkpointed_iceberg(table='shop.orders', source='/landing/*.parquet', retries={retries})\n"
            f"def clean(batch):\n    return {body}\n"
        )
        path = tmp_path / f"dag_{len(written)}.py"
        path.write_text(text)
        names = {"__name__": "shop_dag", "__file__": str(path)}
        exec(compile(text, str(path), "exec"), names)
        written[retries, body] = Transform(names["clean"].function).fingerprint
    assert written[1, "batch"] == written[9, "batch"] != written[9, "batch[:1]"]


def test_the_dag_of_decorated_stages_is_serialized_with_the_tasks_that_come_before_them(dag_world):
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("decorated_serialized", schedule=None, start_date=start()) as dag:

        @task
        def day():
            return "2026-01-01"

        @task.checkpointed_iceberg(table="shop.orders", source=IcebergTable("shop.raw"))
        def clean(batch, day):
            return batch

        @task.checkpointed_lance(uri="/data/v.lance", id_column="id")
        def frame(spark, day):
            return spark.range(1)

        clean(day())
        frame.expand(day=day())
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))

    assert read.task_dict["clean"].upstream_task_ids == {"day"}
    assert read.task_dict["frame"].upstream_task_ids == {"day__1"}
    assert read.task_dict["clean"].operator_name == "@task.checkpointed_iceberg"


def in_a_dag(decorator, function, *args):
    with DAG("decorated_wrong", schedule=None):
        return decorator(function)(*args)


def no_parameter():
    """Take nothing."""


def any_number(*sessions):
    """Take a number of sessions."""


def by_position(batch, day, /):
    """Take a day that has no name."""


def of_rows(batch):
    """Take a batch."""


@pytest.mark.parametrize(
    ("given", "function", "named"),
    [
        ({"source": "/landing/*.parquet"}, no_parameter, "no first parameter"),
        ({}, any_number, "no first parameter"),
        ({"source": "/landing/*.parquet"}, by_position, "day by position only"),
        ({"source": "/landing/*.parquet", "id_column": ["id"], "buckets": 3}, of_rows, "id_column, buckets"),
        ({"source": "/landing/*.parquet", "transform": "shop:clean"}, of_rows, "takes no other"),
        ({"recover": "buckets"}, of_rows, "id_column"),
        ({"source": 7}, of_rows, "source=7"),
    ],
)
def test_a_function_that_cannot_be_a_stage_is_refused_at_parse_time(given, function, named):
    with pytest.raises(InvalidInputError, match=named):
        in_a_dag(task.checkpointed_iceberg(table="shop.orders", **given), function)


def test_arguments_that_a_function_does_not_take_are_refused_at_parse_time():
    with pytest.raises(TypeError, match="too many positional arguments"):
        in_a_dag(task.checkpointed_iceberg(table="shop.orders", source="/landing/*.parquet"), of_rows, 1)


def test_a_part_of_airflows_context_that_is_no_value_is_refused(dag_world, run_dag):
    with DAG("decorated_context", schedule=None, start_date=start()) as dag:

        @task.checkpointed_iceberg(table="shop.orders", id_column="id")
        def orders(spark, dag_run=None):
            return spark.range(1)

        orders()
    assert task_states(run_dag(dag)) == {"orders": "failed"}
