"""(y) An upsert that hits thousands of small files of its table: several in a split, beside a split for each."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.iceberg.upsert.grouping import (
    OPEN_FILE_COST,
    OPEN_FILE_COST_DEFAULT,
    TARGET_SIZE,
    TARGET_SIZE_DEFAULT,
)
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter, WriterFacts
from benchmarks.frame import Spent, shown
from benchmarks.processes import cpu_seconds
from benchmarks.report import Line, spread
from benchmarks.requests import asked
from benchmarks.stage import MASTER, place, stage_on_spark

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Seal
    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from benchmarks.requests import Asked
    from benchmarks.stage import Place

FILES, ROWS_EACH = 2_000, 10

#: As it is, and a split for each file.
TOGETHER = {TARGET_SIZE: str(TARGET_SIZE_DEFAULT), OPEN_FILE_COST: str(OPEN_FILE_COST_DEFAULT)}
ALONE = {TARGET_SIZE: "1", OPEN_FILE_COST: "1"}

NOTE = (
    f"(y) One session, {MASTER}; {FILES:,} data files of {ROWS_EACH} rows, of each of which an upsert changes one row, from one "
    "source file; with the sizes of splits that Iceberg has, and with a split for each file (`read.split.target-size=1`). Time: "
    "from opening the checkpoint to its seal; one warm-up of each, then in turn. Requests: of the checkpoint store, by a stage in "
    "one process without Spark. Memory: what Python holds of the last plan as it was read from the store, for each file."
)

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "value", LongType()))


class _Plan(NamedTuple):
    splits: int
    stored: int
    held: int


def measure(spark: SparkSession, cache: Path, repeats: int) -> list[Line]:
    """The lines of time, requests and memory."""
    together, alone = [], []
    with place(cache) as here:
        _fill(here)
        for number in range(repeats + 1):
            mine, other = _staged(spark, here, TOGETHER), _staged(spark, here, ALONE)
            print(f"    {'turn ' + str(number) if number else 'warm-up'}: {shown([mine])}; alone {shown([other])}", flush=True)
            if number:
                together.append(mine)
                alone.append(other)
        (asked_mine, plan_mine), (asked_other, plan_other) = _counted(here, TOGETHER), _counted(here, ALONE)
    ratios = [one.wall / two.wall for one, two in zip(together, alone, strict=True)]
    what = f"(y) upsert of {FILES:,} small files"
    return [
        Line(
            f"{what}: time",
            shown(together),
            f"a split for each {shown(alone)}; ratios {spread(ratios)}",
            statistics.median(ratios),
            None,
        ),
        Line(
            f"{what}: requests",
            f"{asked_mine}",
            f"a split for each {asked_other}",
            asked_mine.requests / asked_other.requests,
            None,
        ),
        Line(
            f"{what}: plan",
            _of_each_file(plan_mine),
            f"a split for each: {_of_each_file(plan_other)}",
            plan_mine.held / plan_other.held,
            None,
        ),
    ]


def _of_each_file(plan: _Plan) -> str:
    return (
        f"{plan.splits:,} splits; for each file {plan.held / FILES:,.0f} bytes in memory, {plan.stored / FILES:,.0f} in the store"
    )


def _fill(here: Place) -> None:
    """The table, and the source."""
    table = here.create_table("small", SCHEMA)
    metadata = table.metadata
    facts = WriterFacts(
        "small", metadata.location, table.schema(), table.spec(), dict(metadata.properties), dict(table.io.properties)
    )
    writer = IcebergWriter(facts)
    files = []
    for number in range(FILES):
        ids = pa.array(range(number * ROWS_EACH, (number + 1) * ROWS_EACH), pa.int64())
        anew = writer.chunks([pa.record_batch({"id": ids, "value": ids})])
        files += writer.write_files(anew, f"t{number:06d}")
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in files:
            append.append_data_file(file)
    folder = here.root / "in"
    folder.mkdir()
    changed = pa.array(range(0, FILES * ROWS_EACH, ROWS_EACH), pa.int64())
    pq.write_table(pa.table({"id": changed, "value": pa.array([-1] * FILES, pa.int64())}), folder / "0.parquet")


def _attempt(here: Place, properties: Mapping[str, str]) -> WriteAttempt:
    table = here.catalog.load_table("bench.small")
    with table.transaction() as transaction:
        transaction.set_properties(dict(properties))
    return here.attempt(here.key(), Files(f"{here.root}/in"), "small", "upsert", upsert_keys=["id"])


def _staged(spark: SparkSession, here: Place, properties: Mapping[str, str]) -> Spent:
    attempt = _attempt(here, properties)
    cpu, wall = cpu_seconds(), time.perf_counter()
    seal = stage_on_spark(spark, attempt)
    spent = Spent(cpu_seconds() - cpu, time.perf_counter() - wall)
    _require(seal)
    return spent


def _counted(here: Place, properties: Mapping[str, str]) -> tuple[Asked, _Plan]:
    attempt = _attempt(here, properties)
    with asked() as found:
        while (planned := attempt.next_round()) is not None:
            work = attempt.begin("benchmark", 1)
            for split in planned.missing:
                work.run(split, "0")
        seal = attempt.seal()
    _require(seal)
    last = attempt.checkpoint.plan(seal.round)
    if last is None:
        raise RuntimeError("The plan must be there.")
    text = msgspec.json.encode(last)
    tracemalloc.start()
    held = msgspec.json.decode(text, type=type(last))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return found, _Plan(sum(split.task == "match" for split in held.splits), len(text), size)


def _require(seal: Seal | None) -> None:
    if seal is None or seal.counts.get("updated") != FILES:
        raise RuntimeError(f"{seal} must have {FILES} rows updated.")
