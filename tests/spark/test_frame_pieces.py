"""A bucket of a DataFrame that takes long, on a local Spark: what is saved of it, whatever order Spark has its rows in."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from support.frames import Calls, orders, staged, wait_for_tasks
from support.world import rows

from airflow_ckpt_provider.checkpoint.pieces import pieces_of
from airflow_ckpt_provider.exceptions import StageFailedError
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.spark.engine import job_of
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.write.pieces import SaveEvery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from support.world import World

    from airflow_ckpt_provider.checkpoint.documents import Piece
    from airflow_ckpt_provider.write.attempt import WriteAttempt

pytestmark = pytest.mark.spark

#: Rows of the input between two pieces.
SAVE = 10


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkTarget("local[2]"), "pieces of buckets") as spark:
        yield spark


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path / "calls")


def asked(world: World, transform: Any, build: Any = orders, save: SaveEvery | None = None, **changes: Any) -> WriteAttempt:
    """An attempt to write a DataFrame of two buckets of which a piece is saved every so many rows."""
    facts = {"id_column": "id", "buckets": 2, "parameters": {"path": str(world.input)}, "build_version": "1"}
    request = {"transform_version": "1", "save_every": save or SaveEvery(rows=SAVE, seconds=None, buckets=True)}
    return world.attempt(world.request(source=SparkDataFrame(build, **(facts | changes)), transform=transform, **request))


def die(spark: SparkSession, world: World, transform: Any, build: Any = orders, **changes: Any) -> None:
    with pytest.raises(StageFailedError, match="not today"):
        staged(spark, asked(world, transform, build, **changes))
    wait_for_tasks(spark)


def land(spark: SparkSession, world: World, transform: Any, build: Any = orders, **changes: Any) -> None:
    attempt = asked(world, transform, build, **changes)
    staged(spark, attempt)
    world.commit(attempt)


def saved(attempt: WriteAttempt) -> list[Piece]:
    """The last piece of each bucket."""
    checkpoint = attempt.checkpoint
    plan = checkpoint.plan()
    assert plan is not None
    return [pieces[-1] for pieces in pieces_of(checkpoint.store, checkpoint.paths, plan.splits).values()]


def test_a_retry_calls_the_function_with_the_rows_behind_the_last_piece_of_a_bucket_only(spark, world, calls):
    die(spark, world, calls.map(300, 301, 302, 303, 304))
    first = calls.taken()
    assert set(first.values()) == {1}
    attempt = asked(world, calls.map())
    done = sum(piece.end for piece in saved(attempt)) + sum(
        record.input_rows or 0 for record in attempt.checkpoint.staged(sorted(attempt.checkpoint.staged_ids()))
    )
    assert done > 100
    # What was done of the piece that was under way is done once more.
    assert len(first) - done < 2 * SAVE
    staged(spark, attempt)
    assert sum(calls.taken().values()) == 400 - done
    world.commit(attempt)
    assert world.ids() == [*range(400)]
    assert len([path for path in world.files_on_disk() if path.endswith(".parquet")]) == 2


def test_other_partitions_batches_and_plans_make_no_difference(spark, world, calls):
    """The order of the rows is that of their ids, however they come through the shuffle."""

    otherwise: list[bool] = []

    def build(spark: SparkSession, path: str) -> DataFrame:
        frame = orders(spark, path)
        return frame.orderBy("id", ascending=False).repartition(7) if otherwise else frame

    die(spark, world, calls.map(350, 351, 352, 353, 354), build, buckets=1)
    first = calls.taken()
    otherwise.append(True)
    (piece,) = saved(asked(world, calls.map(), build, buckets=1))
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.execution.sortBeforeRepartition": "false",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        land(spark, world, calls.map(), build, buckets=1)
    finally:
        for name in settings:
            spark.conf.unset(name)
    again = calls.taken()
    assert (piece.end, sum(again.values())) == (350, 50)
    assert first & again == Counter()
    assert world.ids() == [*range(400)]


#: Ids that are hard to sort and to compare, as SQL of a number n that each row has another of.
IDS = {
    "nulls": "if(n % 3 = 0, NULL, n)",
    "both zeros and not a number": ("CASE n % 4 WHEN 0 THEN -0.0D WHEN 1 THEN 0.0D WHEN 2 THEN double('NaN') ELSE double(n) END"),
    "a collation": "cast(concat(if(n % 2 = 0, 'a', 'A'), n div 4) AS string) COLLATE UTF8_LCASE",
    "a collation that ignores accents": "cast(concat(if(n % 2 = 0, 'e', 'é'), n div 4) AS string) COLLATE UNICODE_CI_AI",
    "decimals": "cast(n / 4 AS decimal(20, 2))",
    "times": "timestamp_seconds(n div 2)",
    "binary": "cast(cast(n div 3 AS string) AS binary)",
}


@pytest.mark.parametrize("sql", IDS.values(), ids=IDS)
def test_ids_that_are_hard_to_compare_are_done_once(spark, world, calls, sql):
    backwards: list[bool] = []

    def build(spark: SparkSession) -> DataFrame:
        frame = spark.range(400).selectExpr("id AS n").orderBy("n", ascending=not backwards).repartition(5 + len(backwards))
        return frame.selectExpr("n AS id", f"{sql} AS k", "double(n) AS value", "'x' AS kind", "timestamp_ntz'2026-01-01' AS at")

    changes: dict[str, Any] = {"id_column": "k", "buckets": 1, "parameters": {}}
    die(spark, world, calls.map(395), build, **changes)
    first = calls.taken()
    backwards.append(True)
    attempt = asked(world, calls.map(), build, **changes)
    (piece,) = saved(attempt)
    staged(spark, attempt)
    again = calls.taken()
    world.commit(attempt)
    assert piece.end > 0
    assert sum(again.values()) == 400 - piece.end
    assert len(first | again) == 400
    assert world.ids() == [*range(400)]


def test_a_bucket_whose_ids_have_changed_lands_as_it_is_and_the_log_is_told(spark, world, calls):
    die(spark, world, calls.map(300, 301, 302, 303, 304), buckets=1)
    calls.taken()
    pq.write_table(rows(-5, 5), world.input / "early.parquet")
    attempt = asked(world, calls.map(), buckets=1)
    reports: list[Any] = []
    found = attempt.next_round()
    assert found is not None
    job_of(spark, attempt, found, attempt.begin("a test", 1)).run(reports.append)
    assert reports[-1].changed == 1
    attempt.seal()
    world.commit(attempt)
    assert sum(calls.taken().values()) == 405
    assert world.ids() == [*range(-5, 400)]
    assert len([path for path in world.files_on_disk() if path.endswith(".parquet")]) == 1


def test_what_was_saved_of_a_bucket_that_has_no_rows_any_more_is_removed(spark, world, calls):
    most: list[int] = [400]

    def build(spark: SparkSession, path: str) -> DataFrame:
        return orders(spark, path).where(f"id < {most[-1]}")

    die(spark, world, calls.map(300, 301, 302, 303, 304), build, buckets=1)
    most.append(0)
    land(spark, world, calls.map(), build, buckets=1)
    assert [path for path in world.files_on_disk() if path.endswith(".parquet")] == []


#: Writes of DataFrames that have no pieces: nothing is sorted for them.
WHOLE: dict[str, Callable[[Calls], dict[str, Any]]] = {
    "by default": lambda calls: {"transform": calls.map(), "save": SaveEvery(rows=SAVE)},
    "without a transform": lambda _: {"transform": None},
    "with the ids of the rows": lambda calls: {"transform": calls.map(), "recover": "rows"},
}


@pytest.mark.parametrize("facts", WHOLE.values(), ids=WHOLE)
def test_rows_are_sorted_only_where_pieces_are_saved(spark, world, calls, facts):
    assert "Sort [" not in plan_of(spark, asked(world, **facts(calls)))


def test_rows_are_sorted_where_pieces_are_saved(spark, world, calls):
    assert "Sort [" in plan_of(spark, asked(world, calls.map()))


def plan_of(spark: SparkSession, attempt: WriteAttempt) -> str:
    found = attempt.next_round()
    assert found is not None
    run: Any = job_of(spark, attempt, found, attempt.begin("a test", 1))
    frame: Any = run._missing_rows()[0]
    plan: str = frame._jdf.queryExecution().optimizedPlan().toString()
    return plan
