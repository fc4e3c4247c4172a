"""Saves in the format, and programs, on a standalone cluster: machines that die and tasks that run twice cost and double no row."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.stages import Gate

from airflow_ckpt_provider.spark import checkpointed_write, commit
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from support.standalone import Standalone
    from support.world import World

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

#: Two tasks at a time, one on each worker, and a task that takes longer than the others runs twice.
CONF = {
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.network.timeout": "60s",
    # Shuffled rows of a machine that is gone are not waited for.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2",
}

#: Each way of writing is tried in each way, with ``CLUSTER_WRITES=1``; else only what differs most.
ALL = bool(os.environ.get("CLUSTER_WRITES"))


@pytest.fixture(scope="module")
def spark(cluster: Standalone) -> Iterator[SparkSession]:
    # A format needs the package where its tasks run.
    with spark_session(SparkTarget(cluster.url, conf=CONF | {"spark.pyspark.python": sys.executable}), "cluster writes") as spark:
        yield spark


def save(world: World, frame: DataFrame) -> None:
    """In the format: Spark's own tasks stage, and its driver says which of them count."""
    catalog = {f"catalog.{name}": value for name, value in world.catalog_properties.items()}
    options = {"table": "shop.orders", "key": "orders", "store": world.store.uri, "commit": "true"}
    frame.write.format("checkpointed").mode("append").options(**catalog, **options).save()


def program(world: World, frame: DataFrame) -> None:
    """By ids, so that a shuffle whose files are lost has to be computed again."""
    facts = {"catalog": world.catalog_properties, "store": world.store.uri}
    staged = checkpointed_write(frame, table="shop.orders", key="orders", id_column="id", buckets=4, **facts)
    commit(staged, **facts)


def orders(spark: SparkSession) -> DataFrame:
    """The rows of the input of a ``World``, a hundred in each partition, in several batches."""
    return spark.range(0, 400, 1, 4).selectExpr(
        "id", "id / 4 AS value", "concat('kind-', id % 3) AS kind", "timestamp_micros(id * 3600000000)::timestamp_ntz AS at"
    )


def held_in_half(frame: DataFrame, gate: Gate) -> DataFrame:
    """The same rows; each task waits with half of its rows gone on until the gate is open."""
    folder = str(gate.folder)

    def passing(batches):
        for batch in batches:
            yield batch.slice(0, 50)
            Path(folder, f"at.{os.getpid()}").touch()
            end = time.monotonic() + 60
            while Path(folder, "closed").exists() and time.monotonic() < end:
                time.sleep(0.02)
            yield batch.slice(50)

    return frame.mapInArrow(passing, frame.schema)


def slow_once(frame: DataFrame, folder: Path) -> DataFrame:
    """The same rows; the first task of the last partition waits until a second one, which is speculative, is half-way through."""
    at = str(folder)

    def passing(batches):
        for batch in batches:
            yield batch.slice(0, 50)
            if batch["id"][0].as_py() == 300:
                Path(at, f"at.{os.getpid()}").touch()
                end = time.monotonic() + 60
                while len(list(Path(at).glob("at.*"))) < 2 and time.monotonic() < end:
                    time.sleep(0.02)
            yield batch.slice(50)

    return frame.mapInArrow(passing, frame.schema)


def kill_a_machine(cluster: Standalone) -> None:
    """A worker, and what runs on its machine; another one comes in its place."""
    number = next(number for number in (0, 1) if cluster.executors(number))
    executors = cluster.executors(number)
    cluster.kill_worker(number)
    for executor in executors:
        # Some end by themselves when their worker is gone.
        with contextlib.suppress(ProcessLookupError):
            os.kill(executor, signal.SIGKILL)
    cluster.start_worker(number)


def require_landed_once(world: World) -> None:
    """Every row once, in one snapshot, as pyiceberg reads them."""
    found = world.table().scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["value"], row["kind"]) for row in found] == [(n, n / 4, f"kind-{n % 3}") for n in range(400)]
    assert len(world.table().snapshots()) == 1


#: Spark never speculates on the host of the slow task, and after a kill both executors may be on one: this is the first test.
@pytest.mark.parametrize("write", [save, program] if ALL else [save])
def test_a_task_that_runs_twice_at_the_same_time_lands_its_rows_once(
    spark: SparkSession, world: World, tmp_path: Path, write: Callable[[World, DataFrame], None]
) -> None:
    (tmp_path / "at").mkdir()
    write(world, slow_once(orders(spark), tmp_path / "at"))
    assert len(list((tmp_path / "at").iterdir())) >= 2
    require_landed_once(world)


@pytest.mark.parametrize("write", [save, program])
def test_a_machine_that_dies_in_the_middle_costs_no_row_and_doubles_none(
    spark: SparkSession, world: World, cluster: Standalone, tmp_path: Path, write: Callable[[World, DataFrame], None]
) -> None:
    gate = Gate(tmp_path / "gate")

    def kill() -> int:
        """Kill it once two tasks are half-way through; Spark finds a format only in the thread of its session."""
        try:
            at_the_gate = len(gate.wait_for(2))
            kill_a_machine(cluster)
        finally:
            gate.open()
        return at_the_gate

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill)
        write(world, held_in_half(orders(spark), gate))
        assert killed.result(120) >= 2
    require_landed_once(world)
