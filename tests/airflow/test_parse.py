"""What is refused when a DAG is parsed, and what parsing costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from datetime import timedelta
from typing import get_args

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.lance import CheckpointedLanceWriteOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.sources import Files, LanceDataset, Rejected, SparkDataFrame
from airflow_ckpt_provider.tables.format import format_of
from airflow_ckpt_provider.tables.parameters import description_of, fields_of
from airflow_ckpt_provider.transforms import FlatMap, Map

MAP = Map(len, output={"n": int})


def stage(**changes):
    facts = {"task_id": "stage", "table": "shop.orders", "source": Files("/landing/*.parquet")}
    return CheckpointedIcebergWriteOperator(**(facts | changes))


def test_a_lance_source_that_cannot_work_is_refused_at_parse_time():
    for wrong in ({"columns": []}, {"columns": "id"}, {"max_split_bytes": 0}):
        with pytest.raises(InvalidInputError, match="LanceDataset"):
            LanceDataset("/data/vectors.lance", **wrong)


def test_every_mode_is_taken_with_its_parameters():
    stage(
        mode="create", partition_by=["day(at)", "bucket(16, id)"], sort_by="id desc", table_properties={"a": 1}, location="s3://b/t"
    )
    stage(mode="overwrite", overwrite_filter="day = '{{ ds }}'")
    stage(mode="overwrite_partitions", branch="audit", evolve_schema=True, on_rerun="replace")
    stage(mode="upsert", upsert_keys="id", when_matched="ignore")
    stage(mode="{{ params.mode }}", upsert_keys=["id"])


def test_a_mode_that_makes_no_table_says_which_do():
    takes = "the modes 'append' and 'overwrite'; this is mode='upsert'"
    with pytest.raises(InvalidInputError, match=takes):
        CheckpointedLanceWriteOperator(
            task_id="stage", uri="/lake/o.lance", source="/in/*", mode="upsert", upsert_keys=["id"], create_if_missing=True
        )


@pytest.mark.parametrize(
    ("operator", "name"), [(CheckpointedIcebergWriteOperator, "iceberg"), (CheckpointedLanceWriteOperator, "lance")]
)
def test_what_the_modes_of_a_format_take_are_arguments_of_its_operator(operator, name):
    modes = format_of(name).parameters
    arguments = inspect.signature(operator.__init__).parameters
    assert set(modes) == set(get_args(sys.modules[operator.__module__].Mode))
    for kind in modes.values():
        for parameter, field in fields_of(kind).items():
            assert arguments[parameter].default is None, parameter
            assert parameter in operator.template_fields
            assert f":param {parameter}: " in operator.__doc__
            assert description_of(field), f"{parameter} does not say what it is"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"mode": "apend"}, "apend"),
        ({"on_change": "ignore"}, "ignore"),
        ({"on_rerun": "again"}, "again"),
        ({"if_empty": "wait"}, "wait"),
        ({"missing_columns": "drop"}, "drop"),
        ({"save_every": 0}, "neither a number of input rows"),
        ({"save_every": "30s"}, "neither a number of input rows"),
        ({"save_every": timedelta(0)}, "neither a number of input rows"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"on_error": "skip"}, "None is no Map or FlatMap"),
        ({"on_error": "retry", "transform": lambda batch: batch}, "is no Map or FlatMap"),
        ({"max_errors": 3}, "belongs to on_error='skip' or 'retry'"),
        *(({"on_error": "skip", "max_errors": wrong, "transform": MAP}, "max_errors=") for wrong in (-1, 0.0, 1.0, True, "1%")),
        ({"transform": "shop.transforms.clean"}, "package.module:function"),
        ({"transform": 7}, "7"),
        ({"transform_version": "1"}, "there is none"),
        ({"transform": "shop:clean", "transform_version": " "}, "transform_version"),
        ({"transform": "shop:clean", "transform_version": 1}, "transform_version=1"),
        ({"source": 7}, "7"),
        ({"mode": "upsert"}, "upsert_keys"),
        ({"mode": "upsert", "upsert_keys": []}, "upsert_keys"),
        ({"mode": "upsert", "upsert_keys": ["id"], "when_matched": "insert"}, "when_matched"),
        ({"mode": "upsert", "upsert_keys": ["id"], "when_matched": "ignore", "when_not_matched": "ignore"}, "nothing at all"),
        ({"upsert_keys": ["id"]}, "mode='upsert'"),
        ({"mode": "append", "overwrite_filter": "id = 1"}, "mode='overwrite'"),
        ({"mode": "overwrite", "overwrite_filter": " "}, "overwrite_filter"),
        ({"mode": "overwrite", "overwrite_parameters": {"day": "1"}}, "and there is none"),
        ({"mode": "overwrite", "overwrite_filter": "d = :d", "overwrite_parameters": {"d": [1]}}, "'d' is"),
        ({"mode": "overwrite", "overwrite_filter": "d = :d", "overwrite_parameters": "d"}, "not a mapping"),
        ({"mode": "append", "partition_by": ["day(at)"]}, "mode='create'"),
        ({"mode": "create", "table_properties": "a=b"}, "table_properties"),
    ],
    # An object's text has its address in it, which differs from process to process.
    ids=lambda one: (
        ", ".join(f"{k}={v if isinstance(v, str | int | float | dict) else type(v).__name__}" for k, v in one.items())
        if isinstance(one, dict)
        else ""
    ),
)
def test_a_wrong_parameter_is_refused_at_parse_time_and_named(wrong, named):
    with pytest.raises(InvalidInputError, match=named):
        stage(**wrong)


def test_a_function_is_not_looked_into_when_a_dag_is_parsed(tmp_path):
    with (tmp_path / "log").open("w") as handle:
        stage(transform=lambda batch: (batch, handle))
        stage(source=SparkDataFrame(lambda spark: (spark, handle), "id"))
        stage(transform=lambda batch: batch, transform_version="{{ params.version }}")


def test_a_backfill_takes_no_policy_for_columns_of_rows_that_it_does_not_write():
    with pytest.raises(InvalidInputError, match="missing_columns"):
        CheckpointedLanceWriteOperator(
            task_id="stage", uri="/data/v.lance", mode="add_columns", read_columns="id", transform="a:b", missing_columns="null"
        )


def test_a_backfill_takes_a_map_and_no_function_that_makes_any_number_of_rows():
    facts = {"task_id": "stage", "uri": "/data/v.lance", "mode": "add_columns", "read_columns": "id"}
    CheckpointedLanceWriteOperator(**facts, transform=Map(len, output={"n": int}))
    with pytest.raises(InvalidInputError, match="takes no FlatMap"):
        CheckpointedLanceWriteOperator(**facts, transform=FlatMap(len, output={"n": int}))


def test_what_becomes_of_rows_that_fail_may_be_said_of_functions_of_rows_and_of_names_that_the_worker_imports():
    for transform in (MAP, FlatMap(len, output={"n": int}, batched=True), "shop.transforms:clean"):
        stage(on_error="skip", max_errors=0.01, transform=transform)
        stage(on_error="retry", max_errors=10, transform=transform)


def test_a_backfill_has_a_value_for_each_row_and_skips_none():
    facts = {"task_id": "stage", "uri": "/data/v.lance", "mode": "add_columns", "read_columns": "id", "transform": MAP}
    with pytest.raises(InvalidInputError, match="takes no on_error but 'fail'"):
        CheckpointedLanceWriteOperator(**facts, on_error="skip")


def test_a_stage_of_what_another_has_rejected_runs_after_it():
    with DAG("rejected", schedule=None):
        first = stage(on_error="skip", transform=MAP)
        second = stage(task_id="again", source=Rejected(first.output), transform=MAP)
    assert second.upstream_task_ids == {"stage"}


def test_a_wrong_sensor_target_is_refused_at_parse_time():
    with pytest.raises(InvalidInputError, match="until"):
        CheckpointSensor(task_id="wait", checkpoint="key", until="done")


def test_templated_fields_are_those_that_users_expect():
    assert {
        "table", "source", "transform_version", "mode", "overwrite_filter", "overwrite_parameters", "upsert_keys", "when_matched",
        "when_not_matched", "partition_by", "sort_by", "table_properties", "location", "create_if_missing", "branch",
        "idempotence_key", "spark_conf", "transform_name", "iceberg_conn_id", "spark_conn_id", "checkpoint_conn_id",
    } == set(CheckpointedIcebergWriteOperator.template_fields)  # fmt: skip
    assert {"uri", "columns", "filter"} == set(Files.template_fields)


def test_parsing_a_dag_imports_neither_spark_nor_a_table_format():
    code = (
        "import sys\n"
        "import airflow_ckpt_provider.operators.iceberg, airflow_ckpt_provider.operators.commit\n"
        "import airflow_ckpt_provider.sensors.checkpoint\n"
        "heavy = [m for m in ('pyspark', 'pyiceberg', 'pyarrow', 'lance', 'obstore') if m in sys.modules]\n"
        "print(heavy)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stdout


def test_the_core_is_imported_without_airflow():
    code = "import sys, airflow_ckpt_provider.write.work, airflow_ckpt_provider.write.groups; print('airflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
