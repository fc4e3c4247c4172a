"""What is refused when a DAG is parsed, and what parsing costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from airflow_ckpt_provider.exceptions import InvalidInputError, NotSupportedYetError
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.sources import Files, IcebergTable, LanceDataset, SparkDataFrame


def stage(**changes):
    facts = {"task_id": "stage", "table": "shop.orders", "source": Files("/landing/*.parquet")}
    return CheckpointedIcebergWriteOperator(**(facts | changes))


@pytest.mark.parametrize("mode", ["create", "overwrite", "overwrite_partitions", "upsert"])
def test_a_mode_of_a_later_version_is_refused_at_parse_time(mode):
    with pytest.raises(NotSupportedYetError, match=mode):
        stage(mode=mode)


@pytest.mark.parametrize(
    "later", [{"partition_by": ["day(at)"]}, {"on_change": "continue"}, {"on_rerun": "replace"}], ids=lambda one: next(iter(one))
)
def test_a_policy_of_a_later_version_is_refused_at_parse_time(later):
    with pytest.raises(NotSupportedYetError, match=next(iter(later))):
        stage(**later)


@pytest.mark.parametrize("source", [IcebergTable, LanceDataset, SparkDataFrame])
def test_a_source_of_a_later_version_is_refused_at_parse_time(source):
    with pytest.raises(NotSupportedYetError, match=source.__name__):
        source("anything", id_column=["id"])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"mode": "apend"}, "apend"),
        ({"on_change": "ignore"}, "ignore"),
        ({"on_rerun": "again"}, "again"),
        ({"transform": "shop.transforms.clean"}, "package.module:function"),
        ({"transform": 7}, "7"),
        ({"source": 7}, "7"),
    ],
    ids=lambda one: str(one) if isinstance(one, dict) else "",
)
def test_a_wrong_parameter_is_refused_at_parse_time_and_named(wrong, named):
    with pytest.raises(InvalidInputError, match=named):
        stage(**wrong)


def test_a_wrong_sensor_target_is_refused_at_parse_time():
    with pytest.raises(InvalidInputError, match="until"):
        CheckpointSensor(task_id="wait", checkpoint="key", until="done")


def test_templated_fields_are_those_that_users_expect():
    assert {"table", "source", "mode", "idempotence_key", "spark_conf"} == set(CheckpointedIcebergWriteOperator.template_fields)
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
    code = "import sys, airflow_ckpt_provider.spark.work, airflow_ckpt_provider.tables.groups; print('airflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
