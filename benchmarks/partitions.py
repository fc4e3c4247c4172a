"""(o) A DataFrame staged by Spark's own partitions, and by buckets, beside Spark's own writes of it. (p) Its retries."""

from __future__ import annotations

import math
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from airflow_ckpt_provider.sources import SparkDataFrame
from benchmarks.frame import Spent, lines_of, plain_write, shown
from benchmarks.lineitem import SCHEMA, rows_of
from benchmarks.processes import cpu_seconds
from benchmarks.report import Line, spread
from benchmarks.stage import CODEC, LEVEL, MASTER, place, stage_on_spark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.stage import Place

#: Buckets, columns that they are of, and the share of splits that the retries find staged.
BUCKETS, IDS, STAGED = 64, ["l_orderkey", "l_linenumber"], 0.7

#: So that a scan has enough partitions, and a shuffle as many as there are buckets.
SETTINGS = {"spark.sql.files.maxPartitionBytes": "8m", "spark.sql.shuffle.partitions": str(BUCKETS)}

NOTE = (
    f"(o) One session, {MASTER}; `SparkDataFrame` of one Parquet file, read in partitions of 8 MiB, by partitions and in "
    f"{BUCKETS} buckets of two columns, beside `df.write.parquet` of the same DataFrame, as it is and after a `repartition` into "
    f"{BUCKETS} by the same columns; {CODEC} level {LEVEL}. CPU seconds: those of the driver, the JVM and all Python workers. Ours "
    f"runs from opening the checkpoint to its seal. (p) The retry of an attempt that stopped with {STAGED:.0%} of the partitions "
    "staged, of the same scan, and of a join of it with sums of itself; bytes are those of the files that the retry writes. One "
    "warm-up of each, then in turn."
)


def joined(spark: SparkSession, path: str) -> DataFrame:
    """A join of the lines with what each order has in all."""
    lines = spark.read.parquet(path)
    orders = lines.groupBy("l_orderkey").agg({"l_quantity": "sum"}).toDF("l_orderkey", "ordered")
    return lines.hint("shuffle_hash").join(orders, "l_orderkey").where("ordered > 0").select(*lines.columns)


def measure(spark: SparkSession, cache: Path, data: Path, scale: float, repeats: int, only: str) -> list[Line]:
    """Lines of the clean runs, with ``o`` in ``only``, and of the retries, with ``p``."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    lines, size = list[Line](), f"scale {scale:g} ({rows_of(data):,} rows)"
    with place(cache) as here:
        here.create_table("lineitem", SCHEMA)
        if "o" in only:
            lines += _clean(spark, here, data, size, repeats)
        if "p" in only:
            lines += _retries(spark, here, data, size, repeats)
    for name in SETTINGS:
        spark.conf.unset(name)
    return lines


def _clean(spark: SparkSession, here: Place, data: Path, size: str, repeats: int) -> list[Line]:
    sides: dict[str, Callable[[], Spent]] = {
        "partitions": lambda: _ours(spark, here, lines_of, data),
        "plain": lambda: plain_write(here, lines_of(spark, str(data))),
        "buckets": lambda: _ours(spark, here, lines_of, data, IDS),
        "repartition": lambda: plain_write(here, lines_of(spark, str(data)).repartition(BUCKETS, *IDS)),
    }
    spent = _in_turn(sides, repeats)
    return [
        _rate(f"(o) a DataFrame by partitions, {size}", spent["partitions"], "`df.write.parquet`", spent["plain"]),
        _rate(
            f"(o) a DataFrame by buckets, {size}",
            spent["buckets"],
            f"`df.repartition({BUCKETS}, …).write.parquet`",
            spent["repartition"],
        ),
    ]


def _retries(spark: SparkSession, here: Place, data: Path, size: str, repeats: int) -> list[Line]:
    lines = []
    for name, build in (("scan", lines_of), ("join and aggregation", joined)):
        sides: dict[str, Callable[[], Spent]] = {
            "clean": partial(_ours, spark, here, build, data),
            "retry": partial(_ours, spark, here, build, data, staged=STAGED),
        }
        spent = _in_turn(sides, repeats)
        what = f"(p) retry of a {name} with {STAGED:.0%} of the partitions staged, {size}"
        pairs = list(zip(spent["retry"], spent["clean"], strict=True))
        lines.append(
            Line(
                f"{what}: bytes written",
                f"{spread([one.bytes / 1e6 for one, _ in pairs], 1)} MB",
                f"clean run {spread([other.bytes / 1e6 for _, other in pairs], 1)} MB",
                statistics.median(one.bytes / other.bytes for one, other in pairs),
                0.31,
            )
        )
        lines.append(
            Line(
                f"{what}: time",
                f"{spread([one.wall for one, _ in pairs], 1)} s",
                f"clean run {spread([other.wall for _, other in pairs], 1)} s",
                statistics.median(one.wall / other.wall for one, other in pairs),
                0.45,
            )
        )
    return lines


def _in_turn(sides: dict[str, Callable[[], Spent]], repeats: int) -> dict[str, list[Spent]]:
    spent: dict[str, list[Spent]] = {name: [] for name in sides}
    for number in range(repeats + 1):
        turn = {name: side() for name, side in sides.items()}
        said = ", ".join(f"{name} {one.cpu:.1f} CPU s and {one.wall:.1f} s" for name, one in turn.items())
        print(f"    {'turn ' + str(number) if number else 'warm-up'}: {said}", flush=True)
        if number:
            for name, one in turn.items():
                spent[name].append(one)
    return spent


def _rate(what: str, mine: list[Spent], name: str, other: list[Spent]) -> Line:
    """Rows per CPU second, as a share of the other side's."""
    ratios = [two.cpu / one.cpu for one, two in zip(mine, other, strict=True)]
    beside = f"{name} {shown(other)}; rows per CPU s {spread(ratios)}"
    return Line(what, shown(mine), beside, statistics.median(ratios), 1.0, at_least=True)


def _ours(
    spark: SparkSession,
    here: Place,
    build: Callable[..., DataFrame],
    data: Path,
    ids: list[str] | None = None,
    staged: float = 0,
) -> Spent:
    """Stage everything, with this share of the splits staged before."""
    key, rows = here.key(), rows_of(data)
    source = SparkDataFrame(build, ids, buckets=BUCKETS, parameters={"path": str(data)})
    before = 0
    if staged:
        stopped = here.attempt(key, source, "lineitem", spark=spark)
        found = stopped.next_round()
        if found is None:
            raise RuntimeError("There must be something to stage.")
        stage_on_spark(spark, stopped, stop_after=math.ceil(staged * len(found.missing)))
        before = sum(here.written().values())
    cpu, wall = cpu_seconds(), time.perf_counter()
    seal = stage_on_spark(spark, here.attempt(key, source, "lineitem", spark=spark))
    spent = Spent(cpu_seconds() - cpu, time.perf_counter() - wall, sum(here.written().values()) - before)
    if seal is None or seal.rows != rows:
        raise RuntimeError(f"{seal} must have {rows} rows.")
    here.clear()
    return spent
