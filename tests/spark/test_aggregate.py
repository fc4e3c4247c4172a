"""Groups on a local Spark: every group is whole, whatever splits its rows are in, and a retry computes the missing buckets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from support import chains
from support.world import World

from airflow_ckpt_provider.exceptions import BindingMismatchError, InputChangedError, InvalidInputError, StageFailedError
from airflow_ckpt_provider.sources import Files, SparkDataFrame
from airflow_ckpt_provider.sources.grouped import GroupedRows
from airflow_ckpt_provider.spark.frame.run import FrameRun
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.transforms import Aggregate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOTALS = Schema(NestedField(1, "kind", StringType()), NestedField(2, "total", DoubleType()), NestedField(3, "rows", LongType()))

OUT = {"total": pa.float64(), "rows": pa.int64()}

#: Rows of the input, of three kinds that are in every file.
ROWS = 400


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkTarget("local[2]", conf={"spark.sql.shuffle.partitions": "2"}), "groups") as spark:
        yield spark


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    found.create_table(schema=TOTALS)
    found.put_files()
    return found


def total(value):
    return {"total": sum(value), "rows": len(value)}


def by_kind(function=total, **changes):
    return Aggregate(function, **({"by": "kind", "output": OUT, "buckets": 8} | changes))


def files(world):
    return Files(f"{world.input}/*.parquet", max_split_bytes=1)


def attempt_of(world, aggregate, read=None, **changes):
    source = GroupedRows(read or files(world), {}, aggregate)
    return world.attempt(world.request(source=source, transform=aggregate, **changes))


def staged(spark, attempt, only=None):
    """Stage what is missing, or the first few buckets of it."""
    while (found := attempt.next_round()) is not None:
        missing = found.missing[:only]
        work = attempt.begin("a test", 1)
        FrameRun(spark, attempt.checkpoint, work, attempt.source, found.plan, missing).run(lambda _: None)
        if only is not None:
            return attempt
    attempt.seal()
    return attempt


def totals(world):
    return sorted(world.table().scan().to_arrow().to_pylist(), key=lambda row: (row["kind"] is None, row["kind"] or ""))


def expected(ids=range(ROWS)):
    return [
        {"kind": f"kind-{kind}", "total": sum(n / 4 for n in ids if n % 3 == kind), "rows": sum(n % 3 == kind for n in ids)}
        for kind in range(3)
    ]


def test_groups_whose_rows_are_in_all_splits_are_whole(spark, world):
    world.commit(staged(spark, attempt_of(world, by_kind())))
    assert totals(world) == expected()


def test_a_retry_computes_only_the_missing_buckets(spark, world):
    # More groups than buckets.
    aggregate = by_kind(buckets=4)
    first = staged(spark, attempt_of(world, aggregate), only=2)
    before = {record.split: record.writer for record in first.checkpoint.staged(sorted(first.checkpoint.staged_ids()))}
    again = staged(spark, attempt_of(world, aggregate))
    after = {record.split: record.writer for record in again.checkpoint.staged(sorted(again.checkpoint.staged_ids()))}
    assert len(before) == 2
    assert before.items() <= after.items()
    world.commit(again)
    assert totals(world) == expected()


def test_a_group_that_fails_is_named_and_the_others_stay(spark, world, tmp_path):
    broken = str(tmp_path / "broken")
    Path(broken).touch()

    def breaks(kind, value):
        if kind == "kind-1" and Path(broken).exists():
            raise ValueError("not today")
        return {"total": sum(value), "rows": len(value)}

    aggregate = by_kind(breaks)
    with pytest.raises(StageFailedError, match="kind=kind-1: ValueError: not today"):
        staged(spark, attempt_of(world, aggregate))
    Path(broken).unlink()
    world.commit(staged(spark, attempt_of(world, aggregate)))
    assert totals(world) == expected()


def test_rows_of_a_group_come_in_the_order_that_was_asked_for(spark, world):
    def in_order(id):  # noqa: A002 - the name of a column
        assert id == sorted(id)
        return {"total": float(id[0]), "rows": len(id)}

    world.commit(staged(spark, attempt_of(world, by_kind(in_order, order_by="id"))))
    assert [(row["total"], row["rows"]) for row in totals(world)] == [(0.0, 134), (1.0, 133), (2.0, 133)]


def test_nulls_nans_and_both_zeros_make_one_group_each(spark, tmp_path):
    world = World(tmp_path)
    world.create_table(schema=Schema(NestedField(1, "at", DoubleType()), NestedField(2, "rows", LongType())))
    values = [None, -0.0, math.nan, 0.0, None, 1.0, -0.0, math.nan]
    table = pa.table({"at": pa.array(values, pa.float64()), "n": pa.array([3, 1, 2, 2, 1, 1, 3, 1], pa.int64())})
    for number in range(2):
        pq.write_table(table, world.input / f"{number}.parquet")
    aggregate = Aggregate(lambda n: {"rows": len(n)}, by="at", order_by="n", output={"rows": pa.int64()}, buckets=3)
    world.commit(staged(spark, attempt_of(world, aggregate)))
    found = world.table().scan().to_arrow().to_pylist()
    assert sorted(row["rows"] for row in found) == [2, 4, 4, 6]
    assert len(found) == 4


def test_a_group_of_more_rows_than_a_batch_of_spark_is_one_group(spark, world):
    pq.write_table(pa.table({"kind": ["many"] * 250_000, "value": [1.0] * 250_000}), world.input / "many.parquet")
    world.commit(staged(spark, attempt_of(world, by_kind(buckets=2))))
    assert totals(world) == [*expected(), {"kind": "many", "total": 250_000.0, "rows": 250_000}]


def test_values_that_a_collation_takes_for_equal_are_groups_of_their_own(spark, world):
    """And each of them one group, though Spark would sort them in any order."""

    def orders(spark):
        return spark.range(40).selectExpr("if(id % 2 = 0, 'a', 'A') COLLATE UTF8_LCASE AS kind", "double(id) AS value", "id")

    world.commit(staged(spark, attempt_of(world, by_kind(buckets=1), SparkDataFrame(orders, id_column="id"))))
    assert [(row["kind"], row["rows"]) for row in totals(world)] == [("A", 20), ("a", 20)]


def test_formats_without_types_are_grouped_by_what_their_rows_say(spark, world):
    (world.input / "orders.csv").write_text("kind,value\na,1\nb,2\na,3\n")
    world.commit(staged(spark, attempt_of(world, by_kind(), Files(f"{world.input}/orders.csv", format="csv"))))
    assert [(row["kind"], row["total"], row["rows"]) for row in totals(world)] == [("a", 4.0, 2), ("b", 2.0, 1)]


def test_a_dataframe_is_grouped(spark, world):
    def orders(spark, path):
        return spark.read.parquet(path)

    frame = SparkDataFrame(orders, id_column="id", parameters={"path": str(world.input)})
    world.commit(staged(spark, attempt_of(world, by_kind(), frame)))
    assert totals(world) == expected()


def test_what_an_earlier_stage_has_staged_is_grouped(spark, world):
    parsed = chains.for_next(world, "parse", None)
    world.commit(staged(spark, attempt_of(world, by_kind(), chains.read(world, parsed))))
    assert totals(world) == expected()


def test_input_that_changed_is_refused_before_anything_is_shuffled(spark, world):
    staged(spark, attempt_of(world, by_kind()), only=2)
    world.put_files(1, 90)
    with pytest.raises(InputChangedError, match="changed since this checkpoint was planned"):
        staged(spark, attempt_of(world, by_kind()))


def test_other_groups_are_another_write(spark, world):
    staged(spark, attempt_of(world, by_kind()), only=1)
    with pytest.raises(BindingMismatchError, match="source: was"):
        attempt_of(world, by_kind(by="id", function=lambda value: {"total": value[0], "rows": 1}))


def test_a_column_that_is_not_there_is_named(spark, world):
    with pytest.raises(InvalidInputError, match="needs the columns amount; the rows have id, value, kind, at"):
        staged(spark, attempt_of(world, by_kind(lambda amount: {"total": 0.0, "rows": len(amount)})))


def test_nothing_to_group_is_nothing_to_write(spark, world):
    attempt = staged(spark, attempt_of(world, by_kind(), Files(f"{world.input}/none-*.parquet")))
    assert world.commit(attempt)[0].commit.commit_id is None
