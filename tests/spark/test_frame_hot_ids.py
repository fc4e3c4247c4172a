"""Buckets of very many rows are cut: an id that half of the rows have is not one task, and each row still lands once."""

from __future__ import annotations

import datetime as dt
import functools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType
from support.frames import orders, staged
from support.world import World

from airflow_ckpt_provider.checkpoint.pieces import pieces_of
from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError, StageFailedError
from airflow_ckpt_provider.sources import Files, SparkDataFrame
from airflow_ckpt_provider.sources.frame_transform import opened
from airflow_ckpt_provider.spark import checkpointed_write
from airflow_ckpt_provider.spark.engine import planned_in
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.spark.stage import spark_settings
from airflow_ckpt_provider.write.pieces import SaveEvery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.write.attempt import WriteAttempt

pytestmark = pytest.mark.spark

#: ``n`` is a row's own number; every second row is of the shop 7.
VISITS = Schema(
    NestedField(1, "shop", LongType()),
    NestedField(2, "n", LongType()),
    NestedField(3, "what", StringType()),
    NestedField(4, "paid", DoubleType()),
    NestedField(5, "at", TimestamptzType()),
)

ROWS, BUCKETS, MOST = 2000, 4, 200

#: Settings that change how Spark cuts and shuffles what it computes.
OTHERWISE = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.files.maxPartitionBytes": "4096",
    "spark.sql.codegen.wholeStage": "false",
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkTarget("local[2]", conf={"spark.sql.shuffle.partitions": "2"}), "hot ids") as spark:
        yield spark


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    found.create_table(schema=VISITS)
    pq.write_table(visits(), found.input / "visits.parquet")
    return found


def visits(hot: int = 7) -> pa.Table:
    """Rows with nulls in all columns but the number."""
    return pa.table(
        {
            "shop": pa.array([hot if n % 2 else (None if n % 20 == 0 else n) for n in range(ROWS)], pa.int64()),
            "n": pa.array(range(ROWS), pa.int64()),
            "what": pa.array([None if n % 3 else f"visit {n}" for n in range(ROWS)]),
            "paid": pa.array([n / 7 if n % 5 else None for n in range(ROWS)]),
            "at": pa.array([dt.datetime(2026, 1, 1 + n % 28, tzinfo=dt.UTC) for n in range(ROWS)], pa.timestamp("us", "UTC")),
        }
    )


def attempt_of(spark: SparkSession, world: World, build: Any = orders, request: Any = None, **changes: Any) -> WriteAttempt:
    facts = {"id_column": "shop", "buckets": BUCKETS, "bucket_rows": MOST, "parameters": {"path": str(world.input)}}
    source = SparkDataFrame(build, **(facts | changes))
    return world.attempt(world.request(source=planned_in(source, lambda: spark), **(request or {})))


def landed(world: World, attempt: WriteAttempt) -> list[int]:
    world.commit(attempt)
    return sorted(rows_in(world)["n"].to_pylist())


def rows_in(world: World) -> pa.Table:
    return world.table().scan().to_arrow()


def sizes(attempt: WriteAttempt) -> dict[str, int]:
    """Rows of each split that is staged."""
    checkpoint = attempt.checkpoint
    return {record.split: record.rows for record in checkpoint.staged(sorted(checkpoint.staged_ids()))}


def test_an_id_of_half_of_the_rows_is_no_task_of_half_of_the_rows_and_each_row_lands_once(spark, world):
    whole = attempt_of(spark, world, bucket_rows=None, request={"key": "whole"})
    staged(spark, whole)
    assert max(sizes(whole).values()) >= ROWS // 2
    cut = attempt_of(spark, world)
    ran = staged(spark, cut)
    assert max(sizes(cut).values()) < 1.5 * MOST
    assert sum(sizes(cut).values()) == ROWS
    assert set(ran) == set(sizes(cut))
    assert landed(world, cut) == list(range(ROWS))
    found = rows_in(world)
    assert found.sort_by("n").equals(visits().cast(found.schema))


def test_a_retry_computes_only_shares_that_are_missing_however_spark_is_set_up_by_then(spark, world):
    first = staged(spark, attempt_of(spark, world), only=5)
    with spark_settings(spark, OTHERWISE):
        second = attempt_of(spark, world)
        ran = staged(spark, second)
    assert len(first) == 5
    assert set(ran).isdisjoint(first)
    assert set(ran) | set(first) == set(sizes(second))
    assert landed(world, second) == list(range(ROWS))


def test_shares_are_the_same_in_whichever_order_and_form_the_rows_come(spark, world):
    before = attempt_of(spark, world)
    staged(spark, before)
    other = attempt_of(spark, world, repartitioned, request={"key": "other"})
    staged(spark, other)
    assert sizes(other) == sizes(before)


def repartitioned(spark: SparkSession, path: str) -> DataFrame:
    """The same rows, with a wider type, another collation and in another order."""
    rows = spark.read.parquet(path).repartition(5, "n").sortWithinPartitions("at")
    return rows.selectExpr("shop", "n", "what COLLATE UTF8_LCASE AS what", "paid", "at")


def changed(spark: SparkSession, path: str, flag: str) -> DataFrame:
    """The rows, of which one has other values than before as long as there is a file."""
    from pathlib import Path

    rows = spark.read.parquet(path)
    return rows.selectExpr("shop", "n", "if(n = 1, 'other', what) AS what", "paid", "at") if Path(flag).exists() else rows


def test_rows_that_may_have_moved_between_shares_are_refused_and_what_is_staged_stays_good(spark, world, tmp_path):
    flag = tmp_path / "changed"
    parameters = {"path": str(world.input), "flag": str(flag)}
    told = {"build_version": "1", "parameters": parameters, "reproducible": True}
    first = staged(spark, attempt_of(spark, world, changed, **told), only=4)
    flag.touch()
    with pytest.raises(InputChangedError, match=r"Share \d+ of bucket \d does not have the rows .*under the key 'orders'"):
        staged(spark, attempt_of(spark, world, changed, **told))
    flag.unlink()
    last = attempt_of(spark, world, changed, **told)
    ran = staged(spark, last)
    assert set(ran).isdisjoint(first)
    assert landed(world, last) == list(range(ROWS))
    assert rows_in(world).filter(pc.field("what") == "other").num_rows == 0


def emptied(spark: SparkSession, path: str, flag: str) -> DataFrame:
    from pathlib import Path

    return spark.read.parquet(path).where("n < 0" if Path(flag).exists() else "true")


def test_a_share_whose_rows_are_all_gone_is_not_staged_as_empty(spark, world, tmp_path):
    flag = tmp_path / "gone"
    told = {"build_version": "1", "parameters": {"path": str(world.input), "flag": str(flag)}}
    staged(spark, attempt_of(spark, world, emptied, **told), only=1)
    flag.touch()
    again = attempt_of(spark, world, emptied, **told)
    with pytest.raises(InputChangedError, match=r"rows were counted, and there are 0"):
        staged(spark, again)
    assert not {split for split, rows in sizes(again).items() if not rows and "s" in split}


def test_many_ids_of_a_large_bucket_are_told_apart_by_ids_alone_so_that_other_columns_may_change(spark, world):
    def ids(spark: SparkSession, path: str, factor: int) -> DataFrame:
        # A value that no attempt computes like another one.
        return spark.read.parquet(path).selectExpr("n AS shop", "n", "uuid() AS what", "paid * rand() AS paid", "at")

    told = {"parameters": {"path": str(world.input), "factor": 1}, "reproducible": True}
    first = staged(spark, attempt_of(spark, world, ids, **told), only=6)
    pq.write_table(visits().slice(0, 3).set_column(1, "n", pa.array([ROWS, ROWS + 1, ROWS + 2])), world.input / "late.parquet")
    last = attempt_of(spark, world, ids, **told)
    ran = staged(spark, last)
    assert set(ran).isdisjoint(first)
    assert max(sizes(last).values()) < 2 * MOST
    found = landed(world, last)
    assert found[:ROWS] == list(range(ROWS))
    assert set(found[ROWS:]) <= {ROWS, ROWS + 1, ROWS + 2}


def test_a_dataframe_of_small_buckets_is_planned_as_ever(spark, world):
    cut = attempt_of(spark, world, bucket_rows=ROWS)
    assert sorted(staged(spark, cut)) == [f"{number:06d}" for number in range(BUCKETS)]
    (plan,) = cut.checkpoint.plans()
    assert plan.source == {"kind": "dataframe", "buckets": BUCKETS}


def test_ids_that_occur_twice_are_in_one_share_and_so_are_found(spark, world):
    with pytest.raises(InvalidInputError, match=r"assert_unique: . ids occur more than once in this bucket"):
        staged(spark, attempt_of(spark, world, assert_unique=True))
    once = attempt_of(spark, world, id_column="n", assert_unique=True, request={"key": "once"})
    staged(spark, once)
    assert landed(world, once) == list(range(ROWS))


def test_a_dataframe_made_of_a_source_is_counted_as_it_was_planned(spark, world):
    def attempt() -> WriteAttempt:
        read = Files(f"{world.input}/*.parquet")
        frame = SparkDataFrame(
            source=read, dataframe=functools.partial(as_it_is), id_column="shop", buckets=BUCKETS, bucket_rows=MOST
        )
        return world.attempt(world.request(source=planned_in(opened(frame, read, {}), lambda: spark)))

    first = staged(spark, attempt(), only=4)
    pq.write_table(visits(), world.input / "late.parquet")
    last = attempt()
    ran = staged(spark, last)
    assert set(ran).isdisjoint(first)
    assert max(sizes(last).values()) < 1.5 * MOST
    assert landed(world, last) == list(range(ROWS))


def as_it_is(df: DataFrame) -> DataFrame:
    return df


def test_a_program_can_ask_for_it(spark, world):
    told = {"table": "shop.orders", "catalog": world.catalog_properties, "store": world.store.uri, "key": "program"}
    reference = checkpointed_write(orders(spark, str(world.input)), id_column="shop", buckets=BUCKETS, bucket_rows=MOST, **told)
    assert reference["rows"] == ROWS
    assert reference["splits"]["total"] > BUCKETS + 2


def test_no_pieces_are_saved_of_a_share_that_is_told_by_its_rows(spark, world):
    world_of = {"transform": failing, "save_every": SaveEvery(rows=20, seconds=None, buckets=True)}
    first = attempt_of(spark, world, request=world_of)
    with pytest.raises(StageFailedError, match="not today"):
        staged(spark, first)
    checkpoint = first.checkpoint
    assert pieces_of(checkpoint.store, checkpoint.paths, checkpoint.plan().splits) == {}


def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.greater(batch["n"], ROWS - 8)).as_py():
        raise ValueError("not today")
    return batch


def test_rows_that_cannot_be_counted_are_an_error_of_the_stage_which_says_why(spark, world):
    with pytest.raises(StageFailedError, match=r"The rows of the DataFrame of .* could not be counted: .*DIVIDE_BY_ZERO"):
        staged(spark, attempt_of(spark, world, divided))
    with pytest.raises(InvalidInputError, match=r"bucket_rows=1\): .* would have 1\d\d,\d\d\d splits"):
        staged(
            spark,
            attempt_of(spark, world, alike, bucket_rows=1),
        )


def divided(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.parquet(path).selectExpr("cast(1 / (n - n) AS bigint) AS shop", "n")


def alike(spark: SparkSession, path: str) -> DataFrame:
    del path
    return spark.range(150_000).selectExpr("1 AS shop", "id AS n")
