"""What Airflow shows of a stage under "Rendered Templates", and that a DAG with any source can be stored."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization
from support.dags import start

from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.lance import CheckpointedLanceWriteOperator
from airflow_ckpt_provider.operators.transform import CheckpointedTransformOperator
from airflow_ckpt_provider.sources import Files, IcebergTable, LanceDataset, Rejected, SparkDataFrame, Staged
from airflow_ckpt_provider.transforms import Aggregate, FlatMap, Map

pytestmark = [
    pytest.mark.airflow,
    # Airflow's in-process API server, and what it is built on, warn about each other while a task runs.
    pytest.mark.filterwarnings("default"),
]


def clean(batch):
    return batch


def total(amount):
    return {"total": sum(amount)}


def build(spark, day):
    return spark.range(1)


def rendered(run):
    """The rendered fields of each task of a run."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(RenderedTaskInstanceFields).where(
            RenderedTaskInstanceFields.dag_id == run.dag_id, RenderedTaskInstanceFields.run_id == run.run_id
        )
        return {fields.task_id: fields.rendered_fields for fields in session.scalars(query)}


def test_source_transform_and_connections_are_shown_as_they_were_given_and_rendered(dag_world, run_dag):
    # No table is there: a stage fails right after its templates were rendered.
    facts = {"table": "shop.missing", "spark_conn_id": "spark_{{ ds_nodash }}"}
    with DAG("rendered", schedule=None, start_date=start()) as dag:
        source = Files("/landing/{{ ds }}/*.csv", format="csv", columns=["id"], filter=[("id", ">", 3)])
        CheckpointedIcebergWriteOperator(task_id="files", source=source, transform=clean, **facts)
        frame = SparkDataFrame(sql="SELECT * FROM t WHERE day = :day", parameters={"day": "{{ ds }}"})
        CheckpointedIcebergWriteOperator(task_id="sql", source=frame, transform="shop.transforms:clean", **facts)
        CheckpointedIcebergWriteOperator(
            task_id="frame",
            source=SparkDataFrame(source=IcebergTable("shop.{{ ds_nodash }}"), dataframe=build, id_column="id", buckets=8),
            transform=Aggregate(total, by=["id"], output={"total": float}),
            **facts,
        )
        CheckpointedLanceWriteOperator(
            task_id="lance",
            uri="/data/missing.lance",
            source=Rejected("orders/{{ ds }}"),
            transform=Map(total, output={"total": float}),
        )

        @task.checkpointed_iceberg(table="shop.missing", id_column="id")
        def orders(spark, day):
            return spark.range(1)

        orders("{{ ds }}")
    shown = rendered(run_dag(dag, when=start()))

    assert shown["files"]["source"] == {
        "Files": "/landing/2026-01-01/*.csv", "format": "csv", "columns": ["id"], "filter": [["id", ">", 3]],
    }  # fmt: skip
    assert shown["files"]["transform_name"] == f"{__name__}:clean"
    assert [shown["files"][f"{name}_conn_id"] for name in ("iceberg", "spark", "checkpoint")] == [
        "iceberg_default", "spark_20260101", "checkpoint_default",
    ]  # fmt: skip
    assert shown["sql"]["source"] == {
        "SparkDataFrame": "SELECT * FROM t WHERE day = :day", "parameters": {"day": "2026-01-01"}, "recover": "partitions",
    }  # fmt: skip
    assert shown["sql"]["transform_name"] == "shop.transforms:clean"
    assert shown["frame"]["source"] == {
        "SparkDataFrame": f"{__name__}:build",
        "source": {"IcebergTable": "shop.20260101", "conn_id": "iceberg_default"},
        "id_column": ["id"],
        "buckets": 8,
        "recover": "buckets",
    }
    assert shown["frame"]["transform_name"] == f"Aggregate({__name__}:total)"
    assert shown["lance"]["source"] == {"Rejected": "orders/2026-01-01"}
    assert shown["lance"]["transform_name"] == f"Map({__name__}:total)"
    assert shown["orders"]["op_args"] == ["2026-01-01"]
    assert shown["orders"]["source"]["SparkDataFrame"].endswith(":" + orders.function.__qualname__)


def stored():
    """A DAG with every source, stored as Airflow does."""
    with DAG("stored", schedule=None, start_date=start()) as dag:
        first = CheckpointedTransformOperator(
            task_id="first", source="/landing/*.parquet", transform=FlatMap(total, output={"t": float})
        )
        sources = {
            "staged": Staged(first.output),
            "snapshot": IcebergTable("shop.raw", snapshot_id="{{ params.snapshot }}", row_filter="day = '{{ ds }}'"),
            "as_of": IcebergTable("shop.raw", as_of="{{ ts }}"),
            "lance": LanceDataset("/data/{{ ds }}.lance", version="{{ params.version }}"),
            "rejected": Rejected(first.output),
            "frame": SparkDataFrame("shop.frames:build", id_column="id", parameters={"day": "{{ ds }}"}),
        }
        for name, source in sources.items():
            CheckpointedIcebergWriteOperator(task_id=name, table="shop.orders", source=source, transform=lambda batch: batch)
    return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)


def test_a_dag_with_any_source_is_stored_in_the_same_words_each_time():
    text = stored()
    assert text == stored()
    assert " at 0x" not in text
    assert "{{ params.snapshot }}" in text
    assert "xcom_pull(task_ids='first'" in text
