"""A stage on a local Spark: one task per missing split, progress, and the errors of tasks."""

from __future__ import annotations

import operator
import os
import re
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.panics import SAID, panic
from support.stages import Gate, prepare
from support.world import World

from airflow_ckpt_provider.checkpoint.documents import Split
from airflow_ckpt_provider.checkpoint.signing import ConnectionKeys
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import InvalidInputError, NullInRequiredColumnError, StageFailedError
from airflow_ckpt_provider.spark import stage as stage_module
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.spark.stage import splits_of_tasks
from airflow_ckpt_provider.transforms import Map
from airflow_ckpt_provider.write.pieces import SaveEvery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.write.rounds import Progress

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkTarget("local[2]"), "stages") as spark:
        yield spark


def tasks_run(spark: SparkSession, seen: set[int]) -> int:
    """Spark tasks of all jobs but those in ``seen``, which then holds them all."""
    tracker = spark.sparkContext.statusTracker()
    jobs = set(tracker.getJobIdsForGroup()) - seen
    seen |= jobs
    stages = [stage for job in jobs for stage in tracker.getJobInfo(job).stageIds]
    return sum(tracker.getStageInfo(stage).numTasks for stage in stages)


def jobs_before(spark: SparkSession) -> set[int]:
    return set(spark.sparkContext.statusTracker().getJobIdsForGroup())


def test_each_missing_split_is_one_spark_task_and_every_row_lands_once(spark, world):
    seen = jobs_before(spark)
    stage = prepare(spark, world)
    stage.stage()
    assert tasks_run(spark, seen) == len(stage.missing) == 4
    writers = {staged.writer for staged in stage.attempt.checkpoint.staged(stage.missing)}
    assert len(writers) == 4
    world.commit(stage.attempt)
    assert world.ids() == list(range(400))
    assert len(world.table().snapshots()) == 1


def test_a_retry_schedules_only_the_missing_splits_and_reads_only_their_input(spark, world):
    first = world.stage(splits=3)
    staged = first.checkpoint.staged_ids()
    for number in range(3):
        (world.input / f"{number}.parquet").unlink()
    seen = jobs_before(spark)
    stage = prepare(spark, world)
    assert not set(stage.missing) & staged
    stage.stage()
    assert tasks_run(spark, seen) == 1
    world.commit(stage.attempt)
    assert world.ids() == list(range(400))


def test_thousands_of_tiny_splits_share_tasks_in_their_order_and_large_ones_do_not():
    def of(*sizes):
        return [Split(id=f"{number:06d}", bytes=size, read={}) for number, size in enumerate(sizes)]

    assert [len(task) for task in splits_of_tasks(of(*[10] * 1024))] == [1] * 1024
    many = of(*[10] * 3000)
    assert {len(task) for task in splits_of_tasks(many)} == {3}
    assert [split for task in splits_of_tasks(many) for split in task] == many
    assert max(len(task) for task in splits_of_tasks(of(*[10] * 100_000))) == 32
    mixed = [len(task) for task in splits_of_tasks(of(*[10] * 5000, 9 << 20, 9 << 20, *[10] * 5000))]
    assert (mixed[500], mixed[501], sum(mixed)) == (1, 1, 10_002)
    assert splits_of_tasks([]) == []


def test_splits_that_share_a_task_are_published_one_by_one(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("airflow_ckpt_provider.spark.stage._MANY_SPLITS", 4)
    world = World(tmp_path)
    world.create_table()
    world.put_files(files=12, rows_each=5)
    stage = prepare(spark, world)
    stage.stage()
    assert len(stage.attempt.checkpoint.staged_ids()) == 12
    world.commit(stage.attempt)
    assert world.ids() == list(range(60))


def test_spark_shows_which_write_a_job_is_of(spark, world, monkeypatch):
    described = []
    described_before = type(spark.sparkContext).setJobDescription

    def describe(context, text):
        described.append(text)
        described_before(context, text)

    monkeypatch.setattr(type(spark.sparkContext), "setJobDescription", describe)
    prepare(spark, world).stage()
    assert described == ["checkpoint orders: 4 splits"]
    # The property is that of the job's own thread.
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


def test_more_splits_than_cores_are_still_one_task_each(spark, tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files(files=1, rows_each=120, row_group=5)
    seen = jobs_before(spark)
    stage = prepare(spark, world)
    stage.stage()
    assert tasks_run(spark, seen) == len(stage.missing) == 24


def test_what_travels_with_each_task_does_not_grow_with_the_number_of_splits(spark, tmp_path):
    def payload(name: str, rows: int) -> int:
        world = World(tmp_path / name)
        world.create_table()
        world.put_files(files=1, rows_each=rows, row_group=1)
        return len(prepare(spark, world).run._payload())

    assert abs(payload("few", 2) - payload("lot", 400)) < 64


def test_progress_only_grows_and_is_complete_at_the_end(spark, world, tmp_path, monkeypatch):
    monkeypatch.setattr(stage_module, "REPORT_EVERY_S", 0.05)
    gate = Gate(tmp_path / "gate", below=100)
    threading.Thread(target=lambda: (gate.wait_for(1), gate.open())).start()
    stage = prepare(spark, world, world.request(transform=gate.transform))
    reports = stage.stage()
    assert len(reports) > 2
    for earlier, later in pairwise(reports):
        assert earlier.done <= later.done
        assert earlier.rows <= later.rows
        assert earlier.input_bytes <= later.input_bytes
        assert earlier.seconds <= later.seconds
    last = reports[-1]
    size = sum(split.bytes for split in stage.attempt.checkpoint.plan().splits)
    assert (last.done, last.total, last.recovered, last.rows) == (4, 4, 0, 400)
    assert (last.input_bytes, last.input_bytes_left, last.eta_s) == (size, 0, 0.0)
    assert last.mb_per_s == pytest.approx(size / 1e6 / last.seconds)


def test_progress_of_a_retry_counts_what_was_recovered(spark, world):
    world.stage(splits=3)
    last = prepare(spark, world).stage()[-1]
    assert (last.done, last.total, last.recovered, last.rows) == (4, 4, 3, 100)
    assert str(last).startswith("4/4 splits staged (3 recovered), 100 rows written (")


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that takes its time."""
    time.sleep(0.01 * batch.num_rows)
    return batch


def slow_until(batch: pa.RecordBatch, at: int) -> pa.RecordBatch:
    """The same, which does not get over a row."""
    if at in batch["id"].to_pylist():
        raise ValueError("no luck today")
    return slow(batch)


def test_progress_tells_what_is_saved_of_splits_under_way_and_a_retry_goes_on_behind_it(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(stage_module, "REPORT_EVERY_S", 0.05)
    world = World(tmp_path)
    world.create_table()
    world.put_files(files=1, rows_each=200)
    every = SaveEvery(rows=20, seconds=None)
    reports: list[Progress] = []
    stage = prepare(spark, world, world.request(transform=partial(slow_until, at=150), transform_version="1", save_every=every))
    with pytest.raises(StageFailedError, match="no luck today"):
        stage.run.run(reports.append)
    assert max(report.saved for report in reports) > 20
    assert "input rows of splits under way are saved" in str(max(reports, key=lambda report: report.saved))
    again = prepare(spark, world, world.request(transform=slow, transform_version="1", save_every=every))
    assert again.attempt.saved == (1, 140)
    again.stage()
    world.commit(again.attempt)
    assert world.ids() == list(range(200))


def test_what_a_function_of_rows_sets_up_is_set_up_once_in_each_worker_process(spark, world, tmp_path):
    log = tmp_path / "set up"

    def load():
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return 10

    def changed(id, kind, at, state):  # noqa: A002 - a column
        return {"id": id, "value": id / state, "kind": kind, "at": at}

    transform = Map(changed, output={"id": int, "value": float, "kind": str, "at": pa.timestamp("us")}, setup=load)
    stage = prepare(spark, world, world.request(transform=transform))
    stage.stage()
    processes = log.read_text().split()
    assert len(stage.missing) == 4
    assert len(processes) == len(set(processes)) <= 2
    world.commit(stage.attempt)
    written = world.table().scan().to_arrow()
    assert written["value"].to_pylist() == [n / 10 for n in written["id"].to_pylist()]


def test_an_error_of_a_function_of_rows_names_the_row_and_the_users_own_line(spark, world):
    def fails(id):  # noqa: A002 - a column
        return 1 // (id - 7)

    stage = prepare(spark, world, world.request(transform=Map(fails, output={"id": int})))
    said = r"at row 7 of the split's input \(id=7\): ZeroDivisionError.*test_stage\.py, line \d+, in fails"
    with pytest.raises(StageFailedError, match=said):
        stage.stage()


def with_null(batch: pa.RecordBatch, at: int) -> pa.RecordBatch:
    return batch.set_column(0, "id", pc.if_else(pc.equal(batch["id"], at), None, batch["id"]))


def test_a_null_in_a_required_column_fails_its_split_after_all_others_are_staged(spark, world):
    seen = jobs_before(spark)
    stage = prepare(spark, world, world.request(transform=partial(with_null, at=207)))
    with pytest.raises(NullInRequiredColumnError, match=r"(?s)Split \S+ of the key 'orders'.*\bid\b.*\b7\b"):
        stage.stage()
    assert len(stage.attempt.checkpoint.staged_ids()) == 3
    assert tasks_run(spark, seen) == 4


def test_the_error_of_several_hopeless_splits_says_how_many_there_are(spark, world):
    stage = prepare(spark, world, world.request(transform=nothing_of_the_kind))
    with pytest.raises(InvalidInputError, match=r"\(3 more splits failed too\).*returned a int"):
        stage.stage()


def nothing_of_the_kind(batch: pa.RecordBatch) -> int:
    return batch.num_rows


def clean(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch["id"][0].as_py() == 300:
        try:
            return batch.append_column("price", batch["no_such_price"])
        except KeyError as error:
            raise ValueError("no price in\nthis batch") from error
    return batch


def test_an_error_of_the_users_transform_names_it_and_the_users_own_line(spark, world):
    stage = prepare(spark, world, world.request(transform=clean))
    with pytest.raises(StageFailedError) as caught:
        stage.stage()
    line = clean.__code__.co_firstlineno + 5
    where = rf"\(in split 000003: \S+/3\.parquet \(row group 0\)\) \(\S*test_stage.py, line {line}, in clean\)"
    expected = rf"'orders': ValueError: no price in this batch {where}\nAt least (\d) of 4 splits are"
    found = re.search(expected, str(caught.value))
    assert found, str(caught.value)
    # A task that was running when the job failed may publish its split after the message was written.
    assert len(stage.attempt.checkpoint.staged_ids()) >= int(found[1])


def test_an_error_without_a_message_is_named_too(spark, world):
    stage = prepare(spark, world, world.request(transform=operator.attrgetter("no_such_attribute")))
    with pytest.raises(StageFailedError, match=r"AttributeError: .*no_such_attribute"):
        stage.stage()
    stage = prepare(spark, world, world.request(transform=refuse, on_change="restart"))
    with pytest.raises(
        StageFailedError, match=r"'orders': AssertionError \(in split .*\) \(\S*test_stage.py, line \d+, in refuse\)"
    ):
        stage.stage()


def refuse(_: pa.RecordBatch) -> pa.RecordBatch:
    raise AssertionError


def test_splits_staged_before_an_error_stay_and_the_retry_writes_only_the_others(spark, world, tmp_path):
    request = world.request(transform=partial(fail_until, fixed=str(tmp_path / "fixed")))
    stage = prepare(spark, world, request)
    with pytest.raises(StageFailedError, match="RuntimeError: not yet"):
        stage.stage()
    staged = stage.attempt.checkpoint.staged_ids()
    (tmp_path / "fixed").touch()
    retry = prepare(spark, world, request)
    assert set(retry.missing) == set(stage.missing) - staged
    retry.stage()
    world.commit(retry.attempt)
    assert world.ids() == list(range(400))


def fail_until(batch: pa.RecordBatch, fixed: str) -> pa.RecordBatch:
    if batch["id"][0].as_py() == 300 and not Path(fixed).exists():
        raise RuntimeError("not yet")
    return batch


def test_a_transform_that_holds_a_lock_is_refused_before_any_task_runs(spark, world):
    seen = jobs_before(spark)
    stage = prepare(spark, world, world.request(transform=partial(under, lock=threading.Lock())))
    with pytest.raises(InvalidInputError, match=r"transform partial\(under\) of the key 'orders' cannot be sent.*lock"):
        stage.stage()
    assert tasks_run(spark, seen) == 0


def under(batch: pa.RecordBatch, lock: threading.Lock) -> pa.RecordBatch:
    with lock:
        return batch


def test_the_session_has_the_settings_it_had_before(spark, world):
    name = "spark.sql.leafNodeDefaultParallelism"
    prepare(spark, world).stage()
    assert spark.conf.get(name, None) is None
    spark.conf.set(name, "7")
    prepare(spark, world, world.request(key="again")).stage()
    assert spark.conf.get(name) == "7"
    spark.conf.unset(name)


def test_a_panic_of_native_code_in_a_task_is_an_error_with_its_text(spark, world):
    stage = prepare(spark, world, world.request(transform=panic))
    with pytest.raises(StageFailedError, match=rf"NativePanicError: .*while split 00000\d was staged: .*{SAID}"):
        stage.stage()
    assert stage.attempt.checkpoint.staged_ids() == set()


def test_tasks_of_a_signed_store_sign_what_they_publish(spark, world):
    world.store = CheckpointStore(world.store.location, ConnectionKeys(["5e" * 16]))
    stage = prepare(spark, world)
    stage.stage()
    world.commit(stage.attempt)
    assert world.ids() == list(range(400))
    assert all(b"hmac_sha256" in path.read_bytes() for path in (world.root / "store").rglob("staged/*.json"))
