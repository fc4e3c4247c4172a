"""A DataFrame staged through Spark Connect: the same code, another kind of session, a server whose Python lacks this package."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from spark.test_aggregate import TOTALS, attempt_of, by_kind, expected, staged, totals
from support.frames import IRREPRODUCIBLE, REPRODUCIBLE, numbers, orders, prepare, retry_of, unfolded
from support.frames import staged as frame_staged
from support.stages import Gate
from support.standalone import connect_server
from support.world import World, rows

from airflow_ckpt_provider.exceptions import InvalidInputError, StageFailedError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.frame_transform import opened
from airflow_ckpt_provider.spark.engine import job_of, planned_in
from airflow_ckpt_provider.spark.frame.reproducible import require_reproducible
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.write.attempt import WriteAttempt

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, bare_python: Path) -> Iterator[SparkSession]:
    with (
        connect_server(tmp_path_factory.mktemp("connect"), bare_python) as url,
        spark_session(SparkTarget(master="", remote=url), "connect frames") as spark,
    ):
        yield spark


@pytest.mark.parametrize("case", IRREPRODUCIBLE)
def test_a_frame_with_other_rows_every_time_is_refused_by_name(spark, case):
    said, build = IRREPRODUCIBLE[case]
    with pytest.raises(InvalidInputError, match=rf"of shop:orders is not reproducible[^\n]*\n(.*\n)*.*{said}"):
        require_reproducible(spark, build(numbers(spark)), ["id"], "shop:orders")


@pytest.mark.parametrize("case", REPRODUCIBLE)
def test_a_frame_with_the_same_rows_every_time_is_not_refused(spark, case):
    require_reproducible(spark, REPRODUCIBLE[case](numbers(spark)), ["id"], "shop:orders")


@pytest.mark.parametrize("recover", ["buckets", "rows"])
def test_a_failed_stage_is_finished_by_a_retry_and_every_row_lands_once(spark, world, tmp_path, recover):
    source = SparkDataFrame(orders, "id", buckets=8, parameters={"path": str(world.input)}, recover=recover)
    transform = partial(fail_until, fixed=str(tmp_path / "fixed"))
    with pytest.raises(StageFailedError, match="RuntimeError: not yet"):
        prepare(spark, world, source, transform=transform).stage()
    (tmp_path / "fixed").touch()
    if recover == "rows":
        pq.write_table(rows(400, 50), world.input / "late.parquet")
    retry = prepare(spark, world, source, transform=transform)
    staged = retry.attempt.checkpoint.staged_ids()
    assert set(retry.missing).isdisjoint(staged)
    retry.stage()
    world.commit(retry.attempt)
    assert world.ids() == list(range(450 if recover == "rows" else 400))


def test_ids_of_many_rows_are_cut_into_shares_and_a_retry_takes_only_those_that_are_missing(spark, world):
    def attempt() -> WriteAttempt:
        facts: dict[str, Any] = {"id_column": "kind", "buckets": 4, "bucket_rows": 50, "parameters": {"path": str(world.input)}}
        return world.attempt(world.request(source=planned_in(SparkDataFrame(orders, **facts), lambda: spark)))

    first = frame_staged(spark, attempt(), only=3)
    last = attempt()
    ran = frame_staged(spark, last)
    assert set(ran).isdisjoint(first)
    checkpoint = last.checkpoint
    assert max(record.rows for record in checkpoint.staged(sorted(checkpoint.staged_ids()))) < 100
    world.commit(last)
    assert world.ids() == list(range(400))


def test_the_rows_of_a_source_are_read_by_tasks_of_the_server_and_a_retry_is_given_the_same(spark, world):
    def of(read: Files, **changes: Any) -> WriteAttempt:
        given = SparkDataFrame(**({"source": read, "dataframe": doubled, "id_column": "id", "buckets": 4} | changes))
        return world.attempt(world.request(source=planned_in(opened(given, read, {}), lambda: spark)))

    def run(attempt: WriteAttempt, only: int | None = None) -> None:
        found = attempt.next_round()
        todo = found._replace(missing=found.missing[:only])
        job_of(spark, attempt, todo, attempt.begin("a test", 1)).run(lambda _: None)

    files = Files(f"{world.input}/*.parquet", max_split_bytes=1)
    with pytest.raises(InvalidInputError, match="over Spark Connect a DataFrame does not show its partitions"):
        of(files, id_column=None)
    run(of(files), only=2)
    pq.write_table(rows(400, 50), world.input / "late.parquet")
    run(again := of(files))
    again.seal()
    world.commit(again)
    assert world.ids() == list(range(400))


def doubled(df: DataFrame) -> DataFrame:
    return df.join(df.groupBy("id").count(), "id").selectExpr("id", "value * 2 AS value", "kind", "at")


def test_a_retry_evaluates_nothing_for_each_row_that_depends_on_no_column(spark, world):
    source = SparkDataFrame(orders, "id", buckets=8, parameters={"path": str(world.input)})
    frame: Any = retry_of(spark, world, source, 6).run._missing_rows()[0]
    plan = frame._explain_string(extended=True).partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    assert "xxhash64(id#" in plan
    assert unfolded(plan) == []


def test_groups_are_whole_on_a_server_too_and_a_retry_computes_the_missing_buckets(spark, tmp_path):
    world = World(tmp_path)
    world.create_table(schema=TOTALS)
    world.put_files()
    aggregate = by_kind(buckets=4)
    first = staged(spark, attempt_of(world, aggregate), only=2)
    early = {record.split: record.writer for record in first.checkpoint.staged(sorted(first.checkpoint.staged_ids()))}
    assert len(early) == 2
    again = staged(spark, attempt_of(world, aggregate))
    late = {record.split: record.writer for record in again.checkpoint.staged(sorted(again.checkpoint.staged_ids()))}
    assert early.items() <= late.items()
    world.commit(again)
    assert totals(world) == expected()


def fail_until(batch: pa.RecordBatch, fixed: str) -> pa.RecordBatch:
    from pathlib import Path

    if 300 in batch["id"].to_pylist() and not Path(fixed).exists():
        raise RuntimeError("not yet")
    return batch


def test_a_cancel_stops_the_job_on_the_server(spark, world, tmp_path):
    gate = Gate(tmp_path / "gate")
    source = SparkDataFrame(orders, "id", buckets=4, parameters={"path": str(world.input)})
    stage = prepare(spark, world, source, transform=gate.transform)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stage.stage)
        gate.wait_for(2)
        stage.run.cancel()
        with pytest.raises(StageFailedError, match="was stopped"):
            running.result(15)
    gate.wait_until_gone()
    assert world.files_on_disk() == set()
