"""(d) Peak memory of Python workers, at two scales: with splits of one size, and with one split that is the whole file."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.sources.packing import DEFAULT_SPLIT_BYTES
from benchmarks.lineitem import SCHEMA, rows_of
from benchmarks.processes import peak_worker_mib
from benchmarks.report import Line
from benchmarks.stage import place, session, stage_on_spark

if TYPE_CHECKING:
    from pathlib import Path

NOTE = (
    "(d) Highest resident size (VmHWM) of any Python worker, with new workers in a new session for each figure, which is "
    "measured once. Includes the interpreter and its libraries."
)


def measure(cache: Path, files: dict[float, Path]) -> list[Line]:
    """Two lines: with the default split size, and with one split."""
    small, large = min(files), max(files)
    lines = []
    for what, split_bytes in (("default splits", DEFAULT_SPLIT_BYTES), ("the file as one split", 1 << 50)):
        mib = {scale: _peak(cache, files[scale], split_bytes) for scale in (small, large)}
        lines.append(
            Line(
                f"(d) peak worker memory, {what}, scale {large:g} to {small:g}",
                f"{mib[large]:.0f} MiB at scale {large:g}",
                f"{mib[small]:.0f} MiB at scale {small:g}",
                mib[large] / mib[small],
                1.1,
            )
        )
    return lines


def _peak(cache: Path, data: Path, split_bytes: int) -> float:
    gc.collect()
    with place(cache) as here, session() as spark:
        here.create_table("lineitem", SCHEMA)
        with peak_worker_mib() as peak:
            seal = stage_on_spark(spark, here.attempt(here.key(), Files(str(data), max_split_bytes=split_bytes), "lineitem"))
        if seal is None or seal.rows != rows_of(data) or not peak[0]:
            raise RuntimeError("No worker was seen, or rows are missing.")
    return peak[0]
