"""(c) A retry that finds most splits staged, beside a clean run of the same write."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING

from airflow_ckpt_provider.sources import Files
from benchmarks.lineitem import SCHEMA, rows_of
from benchmarks.report import Line, spread
from benchmarks.stage import MASTER, place, stage_on_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from benchmarks.stage import Place

#: Share of the splits that the retry finds staged, and the number of splits aimed at; row groups are not cut.
STAGED, SPLITS = 0.7, 20

NOTE = (
    f"(c) {MASTER}, session already started. The retry finds {STAGED:.0%} of the splits staged by an attempt that stopped there; "
    "its time runs from opening the checkpoint to its seal, as the clean run's does. Bytes are those of all files that the "
    "retry left in the warehouse, data and manifests. One warm-up, then alternating."
)


def measure(spark: SparkSession, cache: Path, data: Path, scale: float, repeats: int) -> list[Line]:
    """Two lines: bytes and time."""
    rows = rows_of(data)
    source = Files(str(data), max_split_bytes=math.ceil(data.stat().st_size / SPLITS))
    clean_s, retry_s, clean_b, retry_b = [], [], [], []
    planned = left = 0
    with place(cache) as here:
        here.create_table("lineitem", SCHEMA)
        for number in range(repeats + 1):
            clean = _run(spark, here, source, rows, staged=0.0)
            retry = _run(spark, here, source, rows, staged=STAGED)
            planned, left = retry[2], retry[3]
            if number:
                clean_s.append(clean[0])
                clean_b.append(clean[1])
                retry_s.append(retry[0])
                retry_b.append(retry[1])
    ratios = [mine / theirs for mine, theirs in zip(retry_s, clean_s, strict=True)]
    what = f"retry with {planned - left} of {planned} splits staged, scale {scale:g}"
    return [
        Line(
            f"(c) bytes written by a {what}",
            f"{statistics.median(retry_b) / 1e6:.1f} MB",
            f"clean run {statistics.median(clean_b) / 1e6:.1f} MB",
            statistics.median(mine / theirs for mine, theirs in zip(retry_b, clean_b, strict=True)),
            0.31,
            unit="%",
        ),
        Line(
            f"(c) wall time of a {what}",
            f"{statistics.median(retry_s):.2f} s",
            f"clean run {statistics.median(clean_s):.2f} s; ratios {spread(ratios)}",
            statistics.median(ratios),
            0.40,
        ),
    ]


def _run(spark: SparkSession, here: Place, source: Files, rows: int, *, staged: float) -> tuple[float, int, int, int]:
    """Stage everything with a share of it staged before: seconds, bytes, splits planned, and splits left to write."""
    key = here.key()
    if staged:
        first = here.attempt(key, source, "lineitem")
        stage_on_spark(spark, first, stop_after=math.ceil(staged * _splits(first)[0]))
    before = here.written()
    start = time.perf_counter()
    attempt = here.attempt(key, source, "lineitem")
    splits, left = _splits(attempt)
    seal = stage_on_spark(spark, attempt)
    seconds = time.perf_counter() - start
    if seal is None or seal.rows != rows:
        raise RuntimeError(f"{seal} must have {rows} rows.")
    after = here.written()
    here.clear()
    return seconds, sum(after[path] for path in after.keys() - before.keys()), splits, left


def _splits(attempt: WriteAttempt) -> tuple[int, int]:
    """Splits planned, and those of them left to stage."""
    found = attempt.next_round()
    return (len(found.plan.splits), len(found.missing)) if found else (0, 0)
