"""(r) What one row costs, from the start of the process to its end, beside a Spark session that does next to nothing."""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.spark.engine import SparkEngine
from airflow_ckpt_provider.spark.session import SparkTarget
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.rounds import Rounds
from benchmarks import child
from benchmarks.processes import cpu_seconds
from benchmarks.report import Line, spread
from benchmarks.stage import MASTER, Place, place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOTE = (
    f"(r) One row, appended and committed, beside a session with Spark's defaults that runs `mapInArrow` over one row, both on "
    f"{MASTER} and each in a process of its own, from its start to its end: CPU seconds of the process, its JVM and all Python "
    "workers. Without Airflow. One warm-up of each, then in turn."
)

SCHEMA = Schema(NestedField(1, "id", LongType()))


class _Spent(NamedTuple):
    cpu: float
    wall: float


def measure(cache: Path, repeats: int) -> list[Line]:
    """The line of CPU seconds, and that of the time."""
    ours, bare = [], []
    with place(cache) as here:
        pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), here.root / "in.parquet")
        here.create_table("one_row", SCHEMA)
        for number in range(repeats + 1):
            mine = _timed(partial(child.run, "fixed_cost:append", root=str(here.root), key=f"row-{number}"))
            other = _timed(lambda: child.run("fixed_cost:trivial"))
            name = f"turn {number}" if number else "warm-up"
            print(
                f"    {name}: {mine.cpu:.1f} CPU s and {mine.wall:.1f} s; session {other.cpu:.1f} and {other.wall:.1f}", flush=True
            )
            if number:
                ours.append(mine)
                bare.append(other)
        if here.catalog.load_table("bench.one_row").scan().count() != repeats + 1:
            raise RuntimeError("Each run must have added its row.")
    return [
        _line("CPU", "CPU s", [one.cpu for one in ours], [one.cpu for one in bare], 1.3),
        _line("time", "s", [one.wall for one in ours], [one.wall for one in bare], None),
    ]


def _line(what: str, unit: str, mine: list[float], other: list[float], target: float | None) -> Line:
    ratios = [one / two for one, two in zip(mine, other, strict=True)]
    return Line(
        f"(r) one row, whole process: {what}",
        f"{spread(mine, 1)} {unit}",
        f"session with one `mapInArrow` {spread(other, 1)} {unit}; ratios {spread(ratios)}",
        statistics.median(ratios),
        target,
    )


def _timed(run: Callable[[], child.Outcome]) -> _Spent:
    start = time.perf_counter()
    outcome = run()
    return _Spent(outcome["cpu"], time.perf_counter() - start)


def append(root: str, key: str) -> dict[str, Any]:
    """Stage and commit one row, as a stage and a commit do, in this process."""
    cpu_seconds()
    here = Place(Path(root))
    with SparkEngine(SparkTarget(MASTER), "one row", lambda _: None) as engine:
        attempt = here.attempt(IdempotenceKey(key), Files(f"{root}/in.parquet"), "one_row")
        Rounds(engine, 1).run(attempt, lambda _: None, lambda _: None)
        attempt.seal()
        groups.commit([attempt.checkpoint], here.as_table("one_row"))
    return {"cpu": cpu_seconds()}


def trivial() -> dict[str, Any]:
    """Run one Spark task in Python."""
    cpu_seconds()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(MASTER).appName("one row").getOrCreate()
    rows = spark.range(1).mapInArrow(_same, "id long").collect()
    spark.stop()
    if len(rows) != 1:
        raise RuntimeError("There must be one row.")
    return {"cpu": cpu_seconds()}


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
