"""A DataFrame staged bucket by bucket on a local Spark: what a retry skips, what is refused, and where each row goes."""

from __future__ import annotations

import logging
import struct
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from support.appending import seal
from support.frames import orders, prepare, retry_of, unfolded
from support.stages import Gate
from support.world import World

from airflow_ckpt_provider.exceptions import InvalidInputError, SchemaMismatchError, StageFailedError, TerminalError
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.spark.frame import skew
from airflow_ckpt_provider.spark.frame.buckets import PLACE, canonical, placed
from airflow_ckpt_provider.spark.frame.task import FrameTask, require_unique
from airflow_ckpt_provider.spark.session import SparkTarget, quiet, spark_session
from airflow_ckpt_provider.write.stage_log import StageLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.write.rounds import Progress

pytestmark = pytest.mark.spark

LINES = Schema(
    NestedField(1, "order_id", LongType()),
    NestedField(2, "line", StringType()),
    NestedField(3, "seen", TimestamptzType()),
)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkTarget("local[2]", conf={"spark.sql.session.timeZone": "Asia/Kathmandu"}), "frames") as spark:
        yield spark


def source_of(world: World, build: Any = orders, **changes: Any) -> SparkDataFrame:
    facts = {"id_column": "id", "buckets": 8, "parameters": {"path": str(world.input)}}
    return SparkDataFrame(build, **(facts | changes))


def tasks_of_last_job(spark: SparkSession) -> int:
    """Tasks of the stage that wrote."""
    tracker = spark.sparkContext.statusTracker()
    job = max(tracker.getJobIdsForGroup())
    return tracker.getStageInfo(max(tracker.getJobInfo(job).stageIds)).numTasks


def test_every_row_lands_once_and_a_bucket_without_rows_is_staged_without_files(spark, world):
    source = source_of(world, lambda spark: spark.range(9), buckets=30, parameters={})
    stage = prepare(spark, world, source)
    reports = stage.stage()
    staged = stage.attempt.checkpoint.staged([split.id for split in stage.plan.splits])
    empty = [one for one in staged if not one.rows]
    assert len(staged) == 30
    assert len(empty) >= 21
    assert {one.files for one in empty} == {()}
    assert {one.manifest for one in empty} == {None}
    assert (reports[-1].done, reports[-1].rows, reports[-1].eta_s) == (30, 9, 0.0)
    assert str(reports[-1]).startswith("30/30 buckets staged (0 recovered), 9 rows written, ETA 0 s")
    world.commit(stage.attempt)
    assert world.ids() == list(range(9))


def hot(spark: SparkSession, of: int) -> DataFrame:
    """An id that 90 rows have, and 60 that one row has."""
    return spark.range(150).selectExpr(
        f"if(id < 90, {of}, id) as id", "1.0D as value", "'k' as kind", "timestamp_ntz'2026-01-01' as at"
    )


def test_a_bucket_that_is_far_larger_than_the_others_is_told_once_all_are_staged(spark, world, monkeypatch, caplog):
    monkeypatch.setattr(skew, "_ROWS", 50)
    stage = prepare(spark, world, source_of(world, hot, parameters={"of": 7}))
    reports: list[Progress] = []
    stage.run.run(reports.append)
    assert [report.skew for report in reports[:-1]] == [""] * (len(reports) - 1)
    largest = max(stage.attempt.checkpoint.staged(sorted(stage.attempt.checkpoint.staged_ids())), key=lambda record: record.rows)
    assert f"The bucket {largest.split} has {largest.rows} rows" in reports[-1].skew
    assert "bucket_rows=5_000_000" in reports[-1].skew
    assert "naming more columns in id_column" in reports[-1].skew
    StageLog(logging.getLogger("a stage"), None).report(reports[-1])
    said = [record for record in caplog.records if record.name == "a stage" and record.levelname == "WARNING"]
    assert [record.getMessage() for record in said] == [reports[-1].skew]


def test_buckets_of_about_one_size_and_small_ones_are_not_told():
    assert skew.skew_of({"1": 4_900_000, "2": 1_000_000, "3": 0}, "bucket") == ""
    assert skew.skew_of({"1": 900_000, "2": 10, "3": 10}, "bucket") == ""
    assert skew.skew_of({"1": 9_000_000, "2": 0}, "bucket") == ""
    assert skew.skew_of({}, "bucket") == ""
    assert "30 times the median of the 3" in skew.skew_of({"1": 3_000_000, "2": 100_000, "3": 100_000}, "partition")


def test_a_frame_without_rows_commits_nothing(spark, world):
    def nothing(spark: SparkSession, path: str) -> DataFrame:
        return spark.read.parquet(path).where("id < 0")

    stage = prepare(spark, world, source_of(world, nothing))
    stage.stage()
    world.commit(stage.attempt)
    assert world.ids() == []


def staged_at_last(checkpoint):
    """What is staged once the tasks that were running when their job failed have ended: they may still publish."""
    while True:
        staged = checkpoint.staged_ids()
        time.sleep(1)
        if checkpoint.staged_ids() == staged:
            return staged


def test_a_retry_computes_and_writes_only_the_missing_buckets(spark, world, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    transform = partial(marked, folder=str(marks), fixed=str(tmp_path / "fixed"))
    source = source_of(world)
    stage = prepare(spark, world, source, transform=transform)
    with pytest.raises(StageFailedError, match=r"RuntimeError: not yet .*test_frame_buckets.py.*in marked"):
        stage.stage()
    checkpoint = stage.attempt.checkpoint
    before = {one.split: one for one in checkpoint.staged(sorted(staged_at_last(checkpoint)))}
    files = world.files_on_disk()
    assert 0 < len(before) < 8
    for mark in marks.iterdir():
        mark.unlink()
    (tmp_path / "fixed").touch()

    retry = prepare(spark, world, source, transform=transform)
    assert set(retry.missing) == {split.id for split in stage.plan.splits} - before.keys()
    reports = retry.stage()
    assert tasks_of_last_job(spark) == len(retry.missing)
    assert (reports[-1].done, reports[-1].recovered) == (8, len(before))
    passed = {int(line) for mark in marks.iterdir() for line in mark.read_text().split()}
    assert len(passed) == 400 - sum(one.rows for one in before.values())
    assert {one.split: one for one in checkpoint.staged(sorted(before))} == before
    assert files <= world.files_on_disk()
    world.commit(retry.attempt)
    assert world.ids() == list(range(400))


@pytest.mark.parametrize("staged", [1, 6])
def test_a_retry_evaluates_nothing_for_each_row_that_depends_on_no_column(spark, world, staged):
    retry = retry_of(spark, world, source_of(world), staged)
    frame: Any = retry.run._missing_rows()[0]
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert "xxhash64(id#" in plan
    assert unfolded(plan) == []
    retry.stage()
    world.commit(retry.attempt)
    assert world.ids() == list(range(400))


def test_a_retry_of_one_bucket_costs_spark_less_than_the_clean_run(spark, world):
    source = source_of(world, lambda spark: spark.range(100_000), buckets=16, parameters={})
    prepare(spark, world, source, key="warm-up").stage()
    clean = cpu_of(spark, prepare(spark, world, source, key="clean").stage)
    retry = retry_of(spark, world, source, 15, key="retried")
    assert len(retry.missing) == 1
    assert cpu_of(spark, retry.stage) < clean


def cpu_of(spark: SparkSession, work: Callable[[], object]) -> float:
    """CPU seconds that the JVM of the session takes for some work."""
    jvm: Any = spark.sparkContext._jvm
    system = jvm.java.lang.management.ManagementFactory.getOperatingSystemMXBean()
    clock = jvm.java.lang.Class.forName("com.sun.management.OperatingSystemMXBean").getMethod("getProcessCpuTime", None)
    before = clock.invoke(system, None)
    work()
    return (clock.invoke(system, None) - before) / 1e9


def marked(batch: pa.RecordBatch, folder: str, fixed: str) -> pa.RecordBatch:
    ids = batch["id"].to_pylist()
    if 300 in ids and not Path(fixed).exists():
        raise RuntimeError("not yet")
    Path(folder, uuid.uuid4().hex).write_text(" ".join(map(str, ids)))
    return batch


def test_ids_of_several_columns_with_nulls_and_times_in_another_zone(spark, tmp_path):
    world = World(tmp_path)
    world.create_table(schema=LINES)
    lines = pa.table(
        {
            "order_id": pa.array([1, 1, None, None, 2, 2], pa.int32()),
            "line": pa.array(["a", None, "a", None, "b", "b"]),
            "seen": pa.array([0, 1, 2, 3, 4, 5], pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(lines, world.input / "lines.parquet")
    stage = prepare(spark, world, source_of(world, id_column=["order_id", "line"]))
    stage.stage()
    world.commit(stage.attempt)
    found = world.table().scan().to_arrow().sort_by("seen")
    assert found.to_pylist() == lines.cast(found.schema).to_pylist()
    # Both rows of one id are in one file.
    assert len(seal(stage.attempt.checkpoint, stage.plan).manifests) <= 5


# -- where a row goes -------------------------------------------------------------------------------------------------


def places(frame: DataFrame, id_columns: list[str], wanted: list[int], count: int = 16) -> dict[Any, tuple[int, int]]:
    """Partition and place of each row, by the value of its last column."""
    quiet()

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        for batch in batches:
            partition = pa.array([TaskContext.get().partitionId()] * batch.num_rows, pa.int32())
            columns = [partition, batch.column(0), batch.column(batch.num_columns - 1).cast(pa.string())]
            yield pa.RecordBatch.from_arrays(columns, ["partition", "place", "row"])

    kinds = canonical(frame.schema, id_columns, "a test")
    rows = placed(frame, id_columns, kinds, count, wanted).mapInArrow(look, "partition int, place int, row string").collect()
    return {row["row"]: (row["partition"], row["place"]) for row in rows}


def test_a_bucket_is_a_partition_and_does_not_depend_on_how_spark_is_set_up_or_which_others_are_wanted(spark):
    frame = spark.range(1000).selectExpr("id", "cast(id AS string) AS name")
    everything = places(frame, ["id"], list(range(16)))
    assert len(everything) == 1000
    assert all(partition == place for partition, place in everything.values())
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        assert places(frame.repartition(7), ["id"], list(range(16))) == everything
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
        spark.conf.unset("spark.sql.shuffle.partitions")
    some = places(frame, ["id"], [3, 11, 12])
    assert some == {row: (at, at) for row, (old, _) in everything.items() for at, bucket in enumerate([3, 11, 12]) if old == bucket}


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("cast(id % 100 AS tinyint)", "id % 100"),
        ("cast(id AS int)", "id"),
        ("cast(id / 4 AS float)", "id / 4"),
        ("cast(id AS decimal(9, 2))", "cast(id AS decimal(38, 2))"),
        ("cast(id AS string)", "cast(id AS string) COLLATE UTF8_LCASE"),
        ("if(id % 2 = 0, NULL, cast(id AS smallint))", "if(id % 2 = 0, NULL, id)"),
        ("if(id % 2 = 0, 0.0D, id)", "if(id % 2 = 0, -0.0D, id)"),
    ],
)
def test_an_id_that_becomes_wider_stays_in_its_bucket(spark, narrow, wide):
    found = [places(spark.range(200).selectExpr(f"{kind} AS `a.b`", "id"), ["a.b"], list(range(16))) for kind in (narrow, wide)]
    assert found[0] == found[1]
    assert len(set(found[0].values())) > 1


def test_rows_of_two_buckets_are_never_published_as_one(world):
    attempt = world.attempt(world.request(source=source_of(world)))
    plan = attempt.checkpoint.pin(source_of(world).plan({}))
    splits = dict(enumerate(plan.splits))
    task = FrameTask(attempt.begin("a test", 1), splits, ("id",), placed=True, keep_ids=False, assert_unique=False)
    batch = pq.read_table(world.input / "0.parquet").to_batches()[0]
    for there in ([1] * 99 + [0], [0] * 100):
        mixed = batch.add_column(0, PLACE, pa.array(there, pa.int32()))
        with pytest.raises(TerminalError, match=r"Spark put rows of the buckets 0 to \d into partition 1"):
            task.run(iter([mixed]), 1, "0")
    assert attempt.checkpoint.staged_ids() == set()
    assert world.files_on_disk() == set()


# -- what is refused --------------------------------------------------------------------------------------------------


def refused(spark: SparkSession, world: World, source: SparkDataFrame, **changes: Any) -> str:
    """What is said of it; no split is staged and no file written."""
    stage = prepare(spark, world, source, **changes)
    with pytest.raises(TerminalError) as caught:
        stage.stage()
    assert stage.attempt.checkpoint.staged_ids() == set()
    assert world.files_on_disk() == set()
    return str(caught.value)


def test_what_cannot_be_staged_is_refused_before_any_task_runs(spark, world):
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup())
    plain: dict[str, Any] = {"parameters": {}}
    said = refused(spark, world, source_of(world, lambda spark: spark.range(3), id_column=["order", "id"], **plain), key="a")
    assert "has no column order, which id_column names; it has id." in said
    said = refused(
        spark,
        world,
        source_of(world, lambda spark: spark.range(3).selectExpr("id", "array(id) AS a"), id_column="a", **plain),
        key="b",
    )
    assert "The id column 'a' of the DataFrame of" in said
    assert "is of the type array<bigint>" in said
    said = refused(
        spark, world, source_of(world, lambda spark: spark.range(3).selectExpr("id", "1 AS x", "2 AS x"), **plain), key="c"
    )
    assert "more than one column named x" in said
    said = refused(spark, world, source_of(world, lambda _: [1], **plain), key="d")
    assert "returned a list; it must return a Spark DataFrame" in said
    said = refused(
        spark, world, source_of(world, lambda spark: spark.readStream.format("rate").load(), id_column="value", **plain), key="e"
    )
    assert "returned a stream" in said
    said = refused(spark, world, source_of(world, lambda spark: spark.range(3).where("rand() < 2"), **plain), key="f")
    assert "rand() gives other values every time" in said
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup()) == jobs


def test_a_frame_that_is_vouched_for_is_not_refused(spark, world):
    stage = prepare(
        spark, world, source_of(world, lambda spark: spark.range(30).where("rand() < 2"), parameters={}, reproducible=True)
    )
    stage.stage()
    world.commit(stage.attempt)
    assert world.ids() == list(range(30))


def test_columns_that_do_not_fit_the_table_are_refused_before_any_task_runs(spark, world):
    source = source_of(world, lambda spark: spark.range(3).selectExpr("id", "1 AS price"), parameters={})
    attempt = world.attempt(world.request(source=source))
    stage = prepare(spark, world, source, attempt.check_fit)
    with pytest.raises(SchemaMismatchError, match="column 'price' is not in the table"):
        stage.stage()
    assert stage.attempt.checkpoint.staged_ids() == set()


def failing(spark: SparkSession) -> DataFrame:
    raise KeyError("no such day")


def test_an_error_in_build_names_the_function_and_the_users_own_line(spark, world):
    line = failing.__code__.co_firstlineno + 1
    place = rf"\(\S*test_frame_buckets.py, line {line}, in failing\)"
    expected = rf"The DataFrame of failing could not be made: KeyError: 'no such day' {place}"
    with pytest.raises(StageFailedError, match=expected):
        prepare(spark, world, source_of(world, failing, parameters={})).stage()
    source = source_of(world, lambda spark: spark.range(3).select("no_such_column"), parameters={})
    with pytest.raises(StageFailedError, match=r"AnalysisException: .*no_such_column.*in <lambda>"):
        prepare(spark, world, source, key="other").stage()


def test_an_id_that_occurs_twice_is_shown_and_its_bucket_not_staged(spark, world):
    pq.write_table(pq.read_table(world.input / "0.parquet").slice(7, 2), world.input / "again.parquet")
    source = source_of(world, assert_unique=True, buckets=2)
    stage = prepare(spark, world, source)
    with pytest.raises(
        InvalidInputError, match=r"assert_unique: . ids occur more than once in this bucket, for instance id=\d: 2 rows"
    ):
        stage.stage()
    assert len(stage.attempt.checkpoint.staged_ids()) < 2
    again = prepare(spark, world, source_of(world, buckets=2), key="doubles are allowed")
    again.stage()
    world.commit(again.attempt)
    assert world.ids() == sorted([*range(400), 7, 8])


def test_ids_that_are_equal_as_keys_are_not_unique():
    values = [-0.0, 0.0, 1.0, float("nan"), struct.unpack("<d", struct.pack("<q", 0x7FF8000000000001))[0], None, 2.0]
    batch = pa.record_batch({"a": pa.array(values), "b": pa.array([1] * len(values))})
    with pytest.raises(InvalidInputError, match=r"assert_unique: 2 ids .*a=-0.0, b=1: 2 rows; a=nan, b=1: 2 rows"):
        require_unique([batch])
    require_unique([batch.take([0, 2, 3, 5, 6])])


# -- stopping, and what is left ---------------------------------------------------------------------------------------


def test_a_cancel_stops_the_job_and_a_retry_completes(spark, world, tmp_path):
    gate = Gate(tmp_path / "gate")
    source = source_of(world, buckets=4)
    stage = prepare(spark, world, source, transform=gate.transform)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stage.stage)
        gate.wait_for(2)
        stage.run.cancel()
        with pytest.raises(StageFailedError, match="was stopped"):
            running.result(30)
    gate.wait_until_gone()
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    gate.open()
    retry = prepare(spark, world, source, transform=gate.transform)
    retry.stage()
    world.commit(retry.attempt)
    assert world.ids() == list(range(400))


def test_a_job_that_build_itself_starts_is_stopped_too(spark, world, tmp_path):
    began = tmp_path / "began"

    def slow(spark: SparkSession) -> DataFrame:
        began.touch()
        spark.range(4).repartition(4).mapInArrow(_sleep, "id long").collect()
        return spark.range(3)

    stage = prepare(spark, world, source_of(world, slow, parameters={}))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stage.stage)
        while not began.exists() or not list(spark.sparkContext.statusTracker().getActiveJobsIds()):
            threading.Event().wait(0.05)
        stage.run.cancel()
        with pytest.raises(StageFailedError, match="was stopped"):
            running.result(30)
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []


def _sleep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import time

    for batch in batches:
        time.sleep(60)
        yield batch


def test_the_session_has_the_settings_it_had_before(spark, world):
    names = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch")
    before = [spark.conf.get(name, None) for name in names]
    spark.conf.set(names[0], "7")
    try:
        prepare(spark, world, source_of(world, buckets=2)).stage()
        assert [spark.conf.get(name, None) for name in names] == ["7", before[1]]
    finally:
        spark.conf.unset(names[0])
