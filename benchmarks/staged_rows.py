"""(q) A retry that recovers by rows, with nearly all rows staged, beside a scan of the DataFrame."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from airflow_ckpt_provider.sources import SparkDataFrame
from benchmarks.frame import BUCKETS, Spent, lines_of, shown
from benchmarks.lineitem import SCHEMA, rows_of
from benchmarks.processes import cpu_seconds
from benchmarks.report import Line, spread
from benchmarks.stage import MASTER, place, stage_on_spark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey

NOTE = (
    f"(q) One session, {MASTER}; `SparkDataFrame` of one Parquet file with two id columns and `recover='rows'`, {BUCKETS} buckets, "
    "of which all but one are staged by an attempt that stopped there. Its retry leaves the rows out whose ids are staged and "
    "writes the rest, from opening the checkpoint to its seal; beside it Spark's `noop` write of the same DataFrame, which "
    "computes all of its rows and keeps none. One warm-up of each, then in turn."
)


def measure(spark: SparkSession, cache: Path, data: Path, scale: float, repeats: int) -> list[Line]:
    """The line of this scale."""
    rows = rows_of(data)
    retries, scans = [], []
    with place(cache) as here:
        here.create_table("lineitem", SCHEMA)
        for number in range(repeats + 1):
            key = here.key()
            source = SparkDataFrame(
                lines_of, ["l_orderkey", "l_linenumber"], buckets=BUCKETS, recover="rows", parameters={"path": str(data)}
            )
            stage_on_spark(spark, here.attempt(key, source, "lineitem"), stop_after=BUCKETS - 1)

            def retry(key: IdempotenceKey = key, source: SparkDataFrame = source) -> None:
                seal = stage_on_spark(spark, here.attempt(key, source, "lineitem"))
                if seal is None or seal.rows != rows:
                    raise RuntimeError(f"{seal} must have {rows} rows.")

            mine = _spent(retry)
            other = _spent(lambda: lines_of(spark, str(data)).write.format("noop").mode("overwrite").save())
            here.clear()
            print(f"    {'turn ' + str(number) if number else 'warm-up'}: {shown([mine])}; scan {shown([other])}", flush=True)
            if number:
                retries.append(mine)
                scans.append(other)
    ratios = [one.wall / two.wall for one, two in zip(retries, scans, strict=True)]
    staged = rows * (BUCKETS - 1) // BUCKETS
    return [
        Line(
            f"(q) retry by rows with some {staged:,} ids staged, scale {scale:g}: time",
            shown(retries),
            f"`noop` write {shown(scans)}; ratios {spread(ratios)}",
            statistics.median(ratios),
            1.3,
        )
    ]


def _spent(run: Callable[[], None]) -> Spent:
    cpu, wall = cpu_seconds(), time.perf_counter()
    run()
    return Spent(cpu_seconds() - cpu, time.perf_counter() - wall)
