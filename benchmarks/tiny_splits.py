"""(x) Thousands of tiny splits: several in a Spark task, beside a task for each."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_ckpt_provider.sources import Files
from benchmarks.frame import Spent, shown
from benchmarks.processes import cpu_seconds
from benchmarks.report import Line, spread
from benchmarks.stage import MASTER, place, stage_on_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from benchmarks.stage import Place

SPLITS = 3_000

NOTE = (
    f"(x) One session, {MASTER}; {SPLITS:,} Parquet files of one row, a split for each, which is published by itself. As it is, "
    "and with a Spark task for each split. From opening the checkpoint to its seal. One warm-up of each, then in turn."
)

SCHEMA = Schema(NestedField(1, "id", LongType()))


def measure(spark: SparkSession, cache: Path, repeats: int) -> list[Line]:
    """The line of the time."""
    shared, alone = [], []
    with place(cache) as here:
        folder = here.root / "in"
        folder.mkdir()
        for number in range(SPLITS):
            pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), folder / f"{number:04d}.parquet")
        here.create_table("tiny", SCHEMA)
        for number in range(repeats + 1):
            mine = _staged(spark, here)
            with mock.patch("airflow_ckpt_provider.spark.stage._MANY_SPLITS", SPLITS):
                other = _staged(spark, here)
            print(f"    {'turn ' + str(number) if number else 'warm-up'}: {shown([mine])}; alone {shown([other])}", flush=True)
            if number:
                shared.append(mine)
                alone.append(other)
    ratios = [one.wall / two.wall for one, two in zip(shared, alone, strict=True)]
    return [
        Line(
            f"(x) {SPLITS:,} splits of one row: time",
            shown(shared),
            f"a task for each {shown(alone)}; ratios {spread(ratios)}",
            statistics.median(ratios),
            None,
        )
    ]


def _staged(spark: SparkSession, here: Place) -> Spent:
    cpu, wall = cpu_seconds(), time.perf_counter()
    seal = stage_on_spark(spark, here.attempt(here.key(), Files(f"{here.root}/in", max_split_bytes=1), "tiny"))
    spent = Spent(cpu_seconds() - cpu, time.perf_counter() - wall)
    if seal is None or (seal.splits, seal.rows) != (SPLITS, SPLITS):
        raise RuntimeError(f"{seal} must have {SPLITS} splits and rows.")
    here.clear()
    return spent
