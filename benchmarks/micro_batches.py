"""(z) What a micro-batch of a stream costs: landed once, beside a function that appends whatever it is handed."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_ckpt_provider.spark import checkpointed_batches
from benchmarks.report import Line
from benchmarks.stage import MASTER, place

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.stage import Place

BATCHES, ROWS = 40, 1_000

NOTE = (
    f"(z) One session, {MASTER}; a stream of {BATCHES} files of {ROWS:,} rows, one in each micro-batch, into an Iceberg table "
    "(SQLite catalog). Ours: `foreachBatch(checkpointed_batches(...))`. Beside it a function that appends `frame.toArrow()` by "
    "pyiceberg, which doubles a batch that Spark hands over again. Seconds in the function, medians of the batches behind "
    "the first three, which warm up; the growth is the median of the last ten batches by that of the first ten behind those."
)

SCHEMA = Schema(NestedField(1, "id", LongType()))


def measure(spark: SparkSession, cache: Path) -> list[Line]:
    """The lines of the time of a batch, and of its growth."""
    with place(cache) as here:
        folder = here.root / "in"
        folder.mkdir()
        for number in range(BATCHES):
            rows = range(number * ROWS, (number + 1) * ROWS)
            pq.write_table(pa.table({"id": pa.array(rows, pa.int64())}), folder / f"{number:04d}.parquet")
        for name in ("plain", "once"):
            here.create_table(name, SCHEMA)
        plain_table = here.catalog.load_table("bench.plain")
        plain = _run(spark, here, "plain", lambda frame, _: plain_table.append(frame.toArrow()))
        once = _run(spark, here, "once", _function(here))
    mine, other = statistics.median(once), statistics.median(plain)
    growth = statistics.median(once[-10:]) / statistics.median(once[:10])
    return [
        Line(
            f"(z) a micro-batch of {ROWS:,} rows: time in the function",
            f"{mine * 1000:.0f} ms",
            f"appended as it comes {other * 1000:.0f} ms",
            mine / other,
            None,
        ),
        Line(f"(z) the same, the last ten of {BATCHES} beside the first", f"{growth:.2f}x", "as fast", growth, 1.5),
    ]


def _function(here: Place) -> Callable[[DataFrame, int], None]:
    return checkpointed_batches(table="bench.once", catalog=here.catalog_properties, store=f"{here.root}/store", key="benchmark")


def _run(spark: SparkSession, here: Place, name: str, function: Callable[[DataFrame, int], None]) -> list[float]:
    """Seconds in the function, of each batch behind the first three."""
    took: list[float] = []

    def timed(frame: DataFrame, batch: int) -> None:
        began = time.perf_counter()
        function(frame, batch)
        took.append(time.perf_counter() - began)

    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", "1").parquet(f"{here.root}/in")
    query = stream.writeStream.foreachBatch(timed).option("checkpointLocation", f"{here.root}/{name}-stream")
    query.trigger(availableNow=True).start().awaitTermination()
    rows = here.catalog.load_table(f"bench.{name}").scan().to_arrow().num_rows
    if (len(took), rows) != (BATCHES, BATCHES * ROWS):
        raise RuntimeError(f"{name} has {rows} rows of {len(took)} batches; there are {BATCHES} of {ROWS}.")
    return took[3:]
