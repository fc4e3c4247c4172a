"""A write that somebody approves of: staged, looked at, approved, committed and cleaned up.

What happens:

1. ``land_orders`` writes some orders of a shop as Parquet files.
2. ``orders.clean`` stages those that were paid. The rows are in files that no snapshot refers to.
3. ``orders.approval`` asks whether to publish them, and says how many rows they are. Answer in Airflow under "Required Actions".
4. ``orders.commit`` runs the check, and lands one snapshot; the first one creates the table. Not approved, it is skipped, and
   nothing is committed.
5. ``orders.clean_up`` removes what killed tries have left.

It needs no connection: catalog and checkpoints lie below ``AIRFLOW_HOME/checkpoints``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

import pyarrow as pa
from airflow.sdk import DAG, task

from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.task_groups import checkpointed_write_group

LANDING = os.path.join(os.environ.get("AIRFLOW_HOME", os.path.expanduser("~/airflow")), "landing", "paid_orders")


@task
def land_orders() -> None:
    """Write the orders."""
    import pyarrow.parquet as pq

    os.makedirs(LANDING, exist_ok=True)
    for number in range(4):
        ids = pa.array(range(number * 1000, (number + 1) * 1000))
        orders = pa.table({"id": ids, "amount": ids.cast(pa.float64()), "paid": [value % 10 != 0 for value in range(1000)]})
        pq.write_table(orders, os.path.join(LANDING, f"{number}.parquet"))


@task.checkpointed_iceberg(
    table="shop.paid_orders",
    mode="overwrite",
    create_if_missing=True,
    source=Files(f"{LANDING}/*.parquet", max_split_bytes=1),
    retries=2,
    retry_delay=timedelta(seconds=1),
)
def clean(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keep the orders that were paid."""
    return batch.filter(batch["paid"]).drop_columns(["paid"])


with DAG(
    "example_approval",
    schedule=None,
    start_date=datetime(2026, 1, 1),  # noqa: DTZ001 - Airflow takes it as UTC
    tags=["example"],
    doc_md=__doc__,
):
    land_orders() >> checkpointed_write_group(
        "orders",
        clean,
        checks=[{"no negative amounts": "SELECT count(*) = 0, count(*) FROM staged WHERE amount < 0"}],
        approval="Publish the orders?",
        cleanup=True,
    )
