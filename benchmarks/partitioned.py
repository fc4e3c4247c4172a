"""(s) A write into a table that is partitioned by day and by bucket, beside one of the same rows into a table that is not."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import DateType, NestedField

from airflow_ckpt_provider.sources import Files
from benchmarks.lineitem import SCHEMA, rows_of
from benchmarks.processes import cpu_seconds
from benchmarks.report import Line, spread
from benchmarks.stage import MASTER, place, stage_on_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from benchmarks.stage import Place

#: Days on which the lines were loaded, and buckets of the orders.
DAYS, BUCKETS = (1, 7), 16

NOTE = (
    f"(s) TPC-H `lineitem` with the day on which a line was loaded, one or one of {DAYS[-1]} in no order, so that each batch has "
    f"rows of all partitions: `day(loaded)` and `bucket({BUCKETS}, l_orderkey)`. One session, {MASTER}; CPU seconds of the driver, "
    "the JVM and all Python workers, from opening the checkpoint to its seal. One warm-up of each, then in turn."
)

_LOADED = NestedField(len(SCHEMA.fields) + 1, "loaded", DateType(), required=True)
_SCHEMA = Schema(*SCHEMA.fields, _LOADED)
_SPEC = PartitionSpec(
    PartitionField(_LOADED.field_id, 1000, DayTransform(), "loaded_day"),
    PartitionField(SCHEMA.find_field("l_orderkey").field_id, 1001, BucketTransform(BUCKETS), "order_bucket"),
)


def measure(spark: SparkSession, cache: Path, data: Path, scale: float, repeats: int) -> list[Line]:
    """A line for each number of days."""
    return [_measured(spark, cache, _loaded(cache, data, scale, days), scale, repeats, days) for days in DAYS]


def _measured(spark: SparkSession, cache: Path, lines: Path, scale: float, repeats: int, days: int) -> Line:
    rows = rows_of(lines)
    parted, whole = [], []
    with place(cache) as here:
        here.create_table("by_day", _SCHEMA, _SPEC)
        here.create_table("whole", _SCHEMA)
        for number in range(repeats + 1):
            mine, other = _staged(spark, here, lines, "by_day", rows), _staged(spark, here, lines, "whole", rows)
            print(f"    {'turn ' + str(number) if number else 'warm-up'}: {mine:.1f} and {other:.1f} CPU s", flush=True)
            if number:
                parted.append(mine)
                whole.append(other)
    ratios = [one / two for one, two in zip(parted, whole, strict=True)]
    return Line(
        f"(s) append into {days * BUCKETS} partitions by day and bucket, scale {scale:g} ({rows:,} rows)",
        f"{spread(parted, 1)} CPU s",
        f"unpartitioned {spread(whole, 1)} CPU s; ratios {spread(ratios)}",
        statistics.median(ratios),
        1.15,
    )


def _staged(spark: SparkSession, here: Place, lines: Path, table: str, rows: int) -> float:
    before = cpu_seconds()
    seal = stage_on_spark(spark, here.attempt(here.key(), Files(str(lines)), table))
    spent = cpu_seconds() - before
    if seal is None or seal.rows != rows:
        raise RuntimeError(f"{seal} must have {rows} rows.")
    here.clear()
    return spent


def _loaded(cache: Path, data: Path, scale: float, days: int) -> Path:
    """The lines with the day on which they were loaded, which follows from their order by a multiplicative hash."""
    path = cache / f"lineitem-loaded-{days}-{scale:g}.parquet"
    if path.exists():
        return path
    unfinished = path.with_suffix(".unfinished")
    file = pq.ParquetFile(data)
    day = pa.field("loaded", pa.date32(), nullable=False)
    with pq.ParquetWriter(unfinished, file.schema_arrow.append(day), compression="zstd") as writer:
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number)
            hashed = pc.bit_wise_and(pc.multiply(rows["l_orderkey"].cast(pa.int64()), 2654435761), (1 << 31) - 1)
            nth = pc.subtract(hashed, pc.multiply(pc.divide(hashed, days), days))
            writer.write_table(rows.append_column(day, pc.add(nth, 20_000).cast(pa.int32()).cast(pa.date32())))
    unfinished.rename(path)
    return path
