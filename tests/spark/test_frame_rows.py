"""Recovery by rows on a local Spark: rows that are staged are not computed again, rows that arrive later are picked up."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from support.appending import seal
from support.frames import orders, prepare, retry_of, unfolded, wait_for_tasks
from support.world import World, rows

from airflow_ckpt_provider.checkpoint.documents import Staged
from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError, StageFailedError
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.frame_plans import recovered_splits
from airflow_ckpt_provider.spark.frame.buckets import canonical
from airflow_ckpt_provider.spark.frame.ids import StagedIds, staged_ids, without_staged
from airflow_ckpt_provider.spark.frame.run import FrameRun
from airflow_ckpt_provider.spark.session import SparkTarget, quiet, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from support.frames import FrameStage

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkTarget("local[2]"), "rows of frames") as spark:
        yield spark


def source_of(world: World, **changes: Any) -> SparkDataFrame:
    facts = {"id_column": "id", "buckets": 4, "parameters": {"path": str(world.input)}, "recover": "rows"}
    return SparkDataFrame(orders, **(facts | changes))


def broken(spark: SparkSession, world: World, source: SparkDataFrame, **changes: Any) -> FrameStage:
    """An attempt that fails after it has staged some of its splits."""
    stage = prepare(spark, world, source, **changes)
    with pytest.raises(StageFailedError, match="RuntimeError: not yet"):
        stage.run_only()
    wait_for_tasks(spark)
    assert 0 < len(stage.attempt.checkpoint.staged_ids() & set(stage.missing)) < len(stage.missing)
    return stage


def go_on(spark: SparkSession, slow: FrameStage, source: SparkDataFrame) -> None:
    """An attempt that was thought dead stages the rest of its own round."""
    checkpoint = slow.attempt.checkpoint
    left = [split for split in slow.plan.splits if split.id not in checkpoint.staged_ids()]
    FrameRun(spark, checkpoint, slow.run._work, source, slow.plan, left).run(lambda _: None)


def staged_rows(stage: FrameStage) -> int:
    checkpoint = stage.attempt.checkpoint
    return sum(one.rows for one in checkpoint.staged(sorted(checkpoint.staged_ids())))


class Switch:
    """A transform that fails at one id until it is switched off, and notes the ids that came to it."""

    def __init__(self, folder: Path, at: int) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.function = partial(noted, folder=str(folder), at=at)

    def off(self) -> None:
        (self.folder / "off").touch()

    def seen(self) -> set[int]:
        """Ids since the last look."""
        marks = [mark for mark in self.folder.iterdir() if mark.name != "off"]
        found = {int(word) for mark in marks for word in mark.read_text().split()}
        for mark in marks:
            mark.unlink()
        return found


def noted(batch: pa.RecordBatch, folder: str, at: int) -> pa.RecordBatch:
    import uuid

    ids = batch["id"].to_pylist()
    if at in ids and not Path(folder, "off").exists():
        raise RuntimeError("not yet")
    Path(folder, uuid.uuid4().hex).write_text(" ".join(map(str, ids)))
    return batch


def test_a_retry_evaluates_nothing_for_each_row_that_depends_on_no_column(spark, world):
    retry = retry_of(spark, world, source_of(world), 2)
    assert len(recovered_splits(retry.plan)) == 2
    frame: Any = retry.run._missing_rows()[0]
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert "LeftAnti" in plan
    assert unfolded(plan) == []


def test_a_retry_picks_up_rows_that_arrived_and_does_not_touch_rows_that_are_staged(spark, world, tmp_path):
    switch = Switch(tmp_path / "switch", at=300)
    first = broken(spark, world, source_of(world), transform=switch.function)
    done = staged_rows(first)
    switch.seen()
    pq.write_table(rows(400, 60), world.input / "late.parquet")
    switch.off()
    retry = prepare(spark, world, source_of(world), transform=switch.function)
    assert {split.id for split in recovered_splits(retry.plan)} == first.attempt.checkpoint.staged_ids()
    reports = retry.stage()
    seen = switch.seen()
    assert len(seen) == 460 - done
    assert set(range(400, 460)) <= seen
    assert reports[-1].recovered == len(recovered_splits(retry.plan))
    world.commit(retry.attempt)
    assert world.ids() == list(range(460))


def test_what_a_slow_attempt_publishes_after_the_next_round_was_opened_is_ignored(spark, world, tmp_path):
    switch = Switch(tmp_path / "switch", at=300)
    slow = broken(spark, world, source_of(world), transform=switch.function)
    retry = prepare(spark, world, source_of(world), transform=switch.function)
    switch.off()
    go_on(spark, slow, source_of(world))
    assert set(slow.missing) <= slow.attempt.checkpoint.staged_ids()
    retry.stage()
    world.commit(retry.attempt)
    assert world.ids() == list(range(400))
    # The slow attempt comes to its end, too, and finds the seal of the newer round.
    sealed = seal(slow.attempt.checkpoint, slow.plan, slow.number)
    assert sealed == retry.attempt.checkpoint.sealed()


def test_the_older_of_two_whole_rounds_may_win_the_seal(spark, world, tmp_path):
    switch = Switch(tmp_path / "switch", at=300)
    slow = broken(spark, world, source_of(world), transform=switch.function)
    retry = prepare(spark, world, source_of(world), transform=switch.function)
    switch.off()
    retry.run_only()
    go_on(spark, slow, source_of(world))
    seal(slow.attempt.checkpoint, slow.plan, slow.number)
    seal(retry.attempt.checkpoint, retry.plan, retry.number)
    world.commit(retry.attempt)
    assert world.ids() == list(range(400))


def thinned(batch: pa.RecordBatch, folder: str, at: int) -> Iterator[pa.RecordBatch]:
    """Without odd ids, ids that divide by 8 twice, and the id column renamed: nothing of the output tells what was read."""
    batch = noted(batch, folder, at)
    even = batch.filter(pc.equal(pc.bit_wise_and(batch["id"], 1), 0))
    for part in (even, even.filter(pc.equal(pc.bit_wise_and(even["id"], 7), 0))):
        yield pa.RecordBatch.from_arrays([part["id"]], ["number"])


def test_rows_that_the_transform_drops_or_explodes_count_as_done(spark, tmp_path):
    world = World(tmp_path / "world")
    world.create_table(schema=Schema(NestedField(1, "number", LongType())))
    world.put_files()
    switch = Switch(tmp_path / "switch", at=300)
    transform = partial(thinned, **switch.function.keywords)
    source = source_of(world)
    first = broken(spark, world, source, transform=transform)
    checkpoint = first.attempt.checkpoint
    before = switch.seen()
    switch.off()
    retry = prepare(spark, world, source, transform=transform)
    retry.stage()
    again = switch.seen()
    done = {
        one.as_py()
        for name in staged_ids(checkpoint, [s.id for s in recovered_splits(retry.plan)]).names
        for one in ids_in(world, name)
    }
    assert done
    assert done <= before
    assert again == set(range(400)) - done
    world.commit(retry.attempt)
    found = sorted(world.table().scan().to_arrow()["number"].to_pylist())
    assert found == sorted([*range(0, 400, 2), *range(0, 400, 8)])


def ids_in(world: World, name: str) -> pa.ChunkedArray:
    return pq.read_table(world.root / "store" / name)["id"]


def test_ids_of_several_columns_are_compared_with_their_nulls_and_may_become_wider(spark, tmp_path):
    world = World(tmp_path / "world")
    world.create_table(
        schema=Schema(NestedField(1, "id", LongType()), NestedField(2, "line", StringType()), NestedField(3, "n", LongType()))
    )
    pairs = [(None, None), (None, "a"), (0, None), (0, "a"), *((n, "b") for n in range(1, 30))]

    def write(kind: pa.DataType, more: list[tuple[Any, Any]] | tuple[()] = ()) -> None:
        every = [*pairs, *more]
        columns = {"id": pa.array([pair[0] for pair in every], kind), "line": [pair[1] for pair in every], "n": range(len(every))}
        pq.write_table(pa.table(columns), world.input / "pairs.parquet")

    write(pa.int32())
    source = source_of(world, id_column=["id", "line"])
    switch = Switch(tmp_path / "switch", at=29)
    first = broken(spark, world, source, transform=partial(nullable, **switch.function.keywords))
    assert staged_rows(first)
    write(pa.int64(), [(None, "late"), (1 << 40, None)])
    switch.off()
    retry = prepare(spark, world, source, transform=partial(nullable, **switch.function.keywords))
    done = staged_rows(first)
    assert retry.stage()[-1].rows == len(pairs) + 2 - done
    world.commit(retry.attempt)
    found = world.table().scan().to_arrow().to_pylist()
    key = repr
    assert sorted(((row["id"], row["line"]) for row in found), key=key) == sorted(
        [*pairs, (None, "late"), (1 << 40, None)], key=key
    )


def nullable(batch: pa.RecordBatch, folder: str, at: int) -> pa.RecordBatch:
    noted(batch.set_column(0, "id", pc.fill_null(batch["id"], -1)), folder, at)
    return batch


@pytest.mark.parametrize(("staged_rows", "join"), [(3, "ShuffledHashJoin"), (1 << 40, "SortMergeJoin")])
def test_an_id_with_nulls_is_left_out_like_any_other_and_no_id_is_broadcast(spark, world, tmp_path, staged_rows, join):
    """An equality that is not null-safe would take rows with nulls for new ones. Ids are held in memory where they are few."""
    quiet()
    store, names = world.store, ["ids/one.parquet"]
    table = pa.table({"id": pa.array([None, 1, 2], pa.int32()), "line": ["x", None, "x"]})
    (tmp_path / "store" / "ids").mkdir(parents=True)
    pq.write_table(table, tmp_path / "store" / names[0])
    frame = spark.createDataFrame([(None, "x"), (1, None), (2, "x"), (None, None), (1, "x"), (2, None)], "id long, line string")
    kinds = canonical(frame.schema, ["id", "line"], "a test")
    left = without_staged(spark, frame, store, StagedIds(names, staged_rows), ["id", "line"], kinds)
    assert {tuple(row) for row in left.collect()} == {(None, None), (1, "x"), (2, None)}
    # A broadcast would carry all ids through the driver, and Spark takes them for few.
    plan = left._jdf.queryExecution().executedPlan().toString()
    assert join in plan
    assert "Broadcast" not in plan


def test_an_id_file_that_is_gone_or_damaged_is_not_taken_for_empty(spark, world, tmp_path):
    switch = Switch(tmp_path / "switch", at=300)
    first = broken(spark, world, source_of(world), transform=switch.function)
    switch.off()
    folder = world.root / "store" / first.attempt.checkpoint.paths.ids_folder
    kept = [
        folder / f"{one.split}-{one.writer}.parquet"
        for one in first.attempt.checkpoint.staged(sorted(first.attempt.checkpoint.staged_ids()))
    ]
    whole = kept[0].read_bytes()
    kept[0].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptObjectError, match=rf"Object \S*{kept[0].name} .* is damaged"):
        prepare(spark, world, source_of(world), transform=switch.function).run_only()
    kept[0].unlink()
    with pytest.raises(CorruptObjectError, match=rf"{kept[0].name} is gone from the checkpoint store"):
        prepare(spark, world, source_of(world), transform=switch.function).run_only()
    kept[0].write_bytes(whole)
    last = prepare(spark, world, source_of(world), transform=switch.function)
    last.stage()
    world.commit(last.attempt)
    assert world.ids() == list(range(400))


def test_a_task_that_loses_the_race_for_its_split_takes_its_ids_back(spark, world):
    source = source_of(world, buckets=1)
    stage = prepare(spark, world, source, transform=partial(overtaken, store=world.store, split="r0001p000000"))
    stage.run_only()
    checkpoint = stage.attempt.checkpoint
    assert [one.writer for one in checkpoint.staged(["r0001p000000"])] == ["another.0"]
    assert checkpoint.store.names(checkpoint.paths.ids_folder) == []
    assert world.files_on_disk() == set()


def overtaken(batch: pa.RecordBatch, store: Any, split: str) -> pa.RecordBatch:
    """Somebody else publishes the split while it is being written."""
    from airflow_ckpt_provider.checkpoint.checkpoint import now

    name = next(name for name in store.names("") if "/plan" in name).rpartition("/")[0] + f"/staged/{split}.json"
    theirs = Staged(split=split, writer="another.0", published_at=now(), rows=0, bytes=0, files=(), manifest=None)
    store.create(name, theirs)
    return batch


def test_an_id_column_that_build_drops_is_missed_before_any_task_runs(spark, world):
    with pytest.raises(InvalidInputError, match="no column order_id, which id_column names; it has id, value, kind, at"):
        prepare(spark, world, source_of(world, id_column="order_id")).stage()
    assert world.files_on_disk() == set()
