"""(t) A DataFrame staged bucket by bucket, clean and as a retry, beside Spark's own Parquet write of the same DataFrame."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.sources import SparkDataFrame
from benchmarks.lineitem import SCHEMA, rows_of
from benchmarks.processes import cpu_seconds
from benchmarks.report import Line, spread
from benchmarks.stage import CODEC, LEVEL, MASTER, place, stage_on_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.stage import Place

#: Buckets of the DataFrame: as many as there are by default.
BUCKETS = 64

#: Buckets that the retries find staged: 70 %, and all but one.
STAGED = (math.ceil(0.7 * BUCKETS), BUCKETS - 1)

NOTE = (
    f"(t) One session, {MASTER}; `SparkDataFrame` of one Parquet file with two id columns in {BUCKETS} buckets, and "
    f"`df.write.parquet` of the same DataFrame, which has no ids and shuffles nothing; {CODEC} level {LEVEL}. CPU seconds: those "
    "of the driver, the JVM and all Python workers. Ours runs from opening the checkpoint to its seal; a retry finds buckets "
    "staged by an attempt that stopped there. One warm-up of each, then in turn."
)


class Spent(NamedTuple):
    """What one side has taken.

    :param cpu: seconds, of all processes.
    :param wall: seconds.
    :param bytes: of the files that it wrote, where they are compared.
    """

    cpu: float
    wall: float
    bytes: int = 0


def lines_of(spark: SparkSession, path: str) -> DataFrame:
    """What is written by both sides."""
    return spark.read.parquet(path)


def measure(spark: SparkSession, cache: Path, data: Path, scale: float, repeats: int) -> list[Line]:
    """Lines of the clean run and of each retry, beside Spark's own write and beside the clean run."""
    rows = rows_of(data)
    plain: list[Spent] = []
    ours: dict[int, list[Spent]] = {staged: [] for staged in (0, *STAGED)}
    with place(cache) as here:
        here.create_table("lineitem", SCHEMA)
        for number in range(repeats + 1):
            other = plain_write(here, lines_of(spark, str(data)))
            mine = {staged: _staged(spark, here, data, rows, staged) for staged in ours}
            said = ", ".join(f"{spent.cpu:.1f} CPU s with {staged} staged" for staged, spent in mine.items())
            print(f"    {'turn ' + str(number) if number else 'warm-up'}: {said}; Spark {other.cpu:.1f} CPU s", flush=True)
            if number:
                plain.append(other)
                for staged, spent in mine.items():
                    ours[staged].append(spent)
    size = f"scale {scale:g} ({rows:,} rows)"
    found = [_beside(f"(t) a DataFrame by buckets, clean, {size}", ours[0], "`df.write.parquet`", plain, None)]
    for staged, target in zip(STAGED, (0.75, 0.5), strict=True):
        what = f"(t) its retry with {staged} of {BUCKETS} buckets staged, {size}"
        found.append(_beside(what, ours[staged], "clean run", ours[0], target))
        found.append(_beside(what, ours[staged], "`df.write.parquet`", plain, None))
    return found


def _beside(what: str, mine: list[Spent], name: str, other: list[Spent], target: float | None) -> Line:
    ratios = [one.cpu / two.cpu for one, two in zip(mine, other, strict=True)]
    return Line(what, shown(mine), f"{name} {shown(other)}; ratios {spread(ratios)}", statistics.median(ratios), target)


def shown(spent: list[Spent]) -> str:
    """CPU and wall seconds."""
    return f"{spread([one.cpu for one in spent], 1)} CPU s, {spread([one.wall for one in spent], 1)} s"


def plain_write(here: Place, frame: DataFrame) -> Spent:
    """Spark's own write of a DataFrame as Parquet, into files that are removed."""
    copy = here.root / "spark-copy"
    cpu, wall = cpu_seconds(), time.perf_counter()
    frame.write.option("parquet.compression.codec.zstd.level", str(LEVEL)).parquet(str(copy))
    spent = Spent(cpu_seconds() - cpu, time.perf_counter() - wall)
    shutil.rmtree(copy)
    return spent


def _staged(spark: SparkSession, here: Place, data: Path, rows: int, staged: int) -> Spent:
    """Stage everything, with this number of buckets staged before."""
    key = here.key()
    source = SparkDataFrame(lines_of, ["l_orderkey", "l_linenumber"], buckets=BUCKETS, parameters={"path": str(data)})
    if staged:
        stage_on_spark(spark, here.attempt(key, source, "lineitem"), stop_after=staged)
    cpu, wall = cpu_seconds(), time.perf_counter()
    seal = stage_on_spark(spark, here.attempt(key, source, "lineitem"))
    spent = Spent(cpu_seconds() - cpu, time.perf_counter() - wall)
    if seal is None or seal.rows != rows:
        raise RuntimeError(f"{seal} must have {rows} rows.")
    here.clear()
    return spent
