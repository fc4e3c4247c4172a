"""(a) Rows per CPU-second of a stage, beside Spark's own Parquet write of the same rows in the same session."""

from __future__ import annotations

import shutil
import statistics
from typing import TYPE_CHECKING

from airflow_ckpt_provider.sources import Files
from benchmarks.lineitem import SCHEMA, rows_of
from benchmarks.processes import cpu_seconds
from benchmarks.report import Line, spread
from benchmarks.stage import CODEC, LEVEL, MASTER, place, stage_on_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NOTE = (
    f"(a) CPU seconds: user and system time of the driver, the JVM and all Python workers. One session, {MASTER}; both sides read "
    f"the same Parquet file in splits of their own default size (128 MiB) and write Parquet with {CODEC} level {LEVEL}. Ours "
    "runs from opening the checkpoint to its seal. One warm-up each, then alternating."
)


def measure(spark: SparkSession, cache: Path, data: Path, scale: float, repeats: int) -> list[Line]:
    """One line for this scale."""
    rows = rows_of(data)
    ours, other = [], []
    sizes = (0, 0)
    with place(cache) as here:
        here.create_table("lineitem", SCHEMA)
        copy = here.root / "spark-copy"
        for number in range(repeats + 1):
            before = cpu_seconds()
            seal = stage_on_spark(spark, here.attempt(here.key(), Files(str(data)), "lineitem"))
            mine = cpu_seconds() - before
            before = cpu_seconds()
            frame = spark.read.parquet(str(data))
            frame.write.option("parquet.compression.codec.zstd.level", str(LEVEL)).parquet(str(copy))
            theirs = cpu_seconds() - before
            if seal is None or not seal.rows == rows == rows_of(copy):
                raise RuntimeError(f"Both sides must write {rows} rows.")
            sizes = (seal.bytes, sum(file.stat().st_size for file in copy.glob("*.parquet")))
            shutil.rmtree(copy)
            here.clear()
            print(f"    {'pair ' + str(number) if number else 'warm-up'}: {mine:.1f} and {theirs:.1f} CPU s", flush=True)
            if number:
                ours.append(rows / mine)
                other.append(rows / theirs)
    ratios = [mine / theirs for mine, theirs in zip(ours, other, strict=True)]
    return [
        Line(
            f"(a) rows per CPU-second, scale {scale:g} ({rows:,} rows)",
            f"{statistics.median(ours):,.0f} ({sizes[0] / 1e6:.0f} MB written)",
            f"`df.write.parquet` {statistics.median(other):,.0f} ({sizes[1] / 1e6:.0f} MB written); ratios {spread(ratios)}",
            statistics.median(ratios),
            2.0,
            at_least=True,
        )
    ]
