"""(q) A retry that recovers by rows, with nearly all rows staged, beside a clean run."""

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
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from benchmarks.stage import Place

NOTE = (
    f"(q) One session, {MASTER}; `SparkDataFrame` of one Parquet file with two id columns and `recover='rows'`, {BUCKETS} buckets, "
    "of which all but one are staged by an attempt that stopped there. Its retry leaves the rows out whose ids are staged and "
    "writes the rest; beside it a clean run, which writes all. Both from opening the checkpoint to the seal. One warm-up of each, "
    "then in turn."
)


def measure(spark: SparkSession, cache: Path, data: Path, scale: float, repeats: int) -> list[Line]:
    """The line of this scale."""
    rows = rows_of(data)
    retries, cleans = [], []
    with place(cache) as here:
        here.create_table("lineitem", SCHEMA)
        for number in range(repeats + 1):
            key = here.key()
            stage_on_spark(spark, here.attempt(key, _source(data), "lineitem"), stop_after=BUCKETS - 1)
            mine = _staged(spark, here, key, data, rows)
            here.clear()
            other = _staged(spark, here, here.key(), data, rows)
            here.clear()
            print(f"    {'turn ' + str(number) if number else 'warm-up'}: {shown([mine])}; clean {shown([other])}", flush=True)
            if number:
                retries.append(mine)
                cleans.append(other)
    ratios = [one.wall / two.wall for one, two in zip(retries, cleans, strict=True)]
    staged = rows * (BUCKETS - 1) // BUCKETS
    return [
        Line(
            f"(q) retry by rows with some {staged:,} ids staged, scale {scale:g}: time",
            shown(retries),
            f"clean run {shown(cleans)}; ratios {spread(ratios)}",
            statistics.median(ratios),
            1.3,
        )
    ]


def _source(data: Path) -> SparkDataFrame:
    ids = ["l_orderkey", "l_linenumber"]
    return SparkDataFrame(lines_of, ids, buckets=BUCKETS, recover="rows", parameters={"path": str(data)})


def _staged(spark: SparkSession, here: Place, key: IdempotenceKey, data: Path, rows: int) -> Spent:
    cpu, wall = cpu_seconds(), time.perf_counter()
    seal = stage_on_spark(spark, here.attempt(key, _source(data), "lineitem"))
    spent = Spent(cpu_seconds() - cpu, time.perf_counter() - wall)
    if seal is None or seal.rows != rows:
        raise RuntimeError(f"{seal} must have {rows} rows.")
    return spent
