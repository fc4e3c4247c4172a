"""Rows that one task stages for the next: what a reader of them gets, whenever either of the two dies, and when they are freed."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from contract.table.both import Iceberg, Lance
from contract.table.test_pieces import Function, Killed
from support import chains
from support.chains import output, read
from support.forging import forge
from support.world import rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Connections, Member
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.readers import read_by, readers_of
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    CorruptObjectError,
    DiscardedError,
    InputChangedError,
    InvalidInputError,
    OutputError,
    StagedFileMissingError,
)
from airflow_ckpt_provider.sources import Files, SparkDataFrame, Staged
from airflow_ckpt_provider.sources.frame_transform import opened
from airflow_ckpt_provider.sources.grouped import GroupedRows
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.tables.staged.format import RowsTable
from airflow_ckpt_provider.transforms import Aggregate, Map
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.cleanup import clean
from airflow_ckpt_provider.write.content import content_key
from airflow_ckpt_provider.write.pieces import SaveEvery
from airflow_ckpt_provider.write.rejecting import OnError

ROWS = 400


def marked(batch):
    return batch.set_column(2, "kind", pa.array(["marked"] * batch.num_rows))


def doubled(batch):
    return batch.set_column(1, "value", pc.multiply(batch["value"], 2))


def kept(kind):
    return {"kind": kind}


def wanted(ids=range(ROWS)):
    """What comes out of both functions, for these ids."""
    made = pa.RecordBatch.from_pylist(rows(ids.start, len(ids)).to_pylist(), schema=rows(0, 0).schema)
    return doubled(marked(made)).to_pylist()


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    """A world with input and an empty table, in which ``for_next`` stages rows for a next task."""
    found = request.param(tmp_path)
    found.make(range(0))
    found.put_files()
    return found


def for_next(world, key="parse", function=marked, splits=None, **changes):
    """Stage rows for the next task; with ``splits``, die after so many."""
    return chains.for_next(world, key, function, splits, **changes)


def written(world, source, key="write", function=doubled, **changes):
    """Write a source into the table, and commit it."""
    attempt = world.stage(world.request(key, source=source, transform=function, **changes))
    return world.commit(attempt)[0]


def test_the_next_task_reads_what_was_staged_and_only_the_last_one_lands(world):
    before = world.commits()
    first = for_next(world)
    assert (world.read(), world.commits()) == ([], before)
    assert written(world, read(world, first)).landed_now
    assert (world.read(), world.commits()) == (wanted(), before + 1)


def test_each_split_of_the_stage_before_is_one_of_the_next(world):
    """As many tasks work on the next stage, however small the rows have become."""
    first = for_next(world, function=lambda batch: batch.select(["id"]))
    plan = read(world, first).plan({})
    assert [split.id for split in plan.splits] == ["000000", "000001", "000002", "000003"]


def test_a_stage_that_died_is_gone_on_with_and_read_once(world):
    for_next(world, splits=2)
    again = for_next(world)
    assert len(again.checkpoint.attempts()) == 2
    assert written(world, read(world, again)).landed_now
    assert world.read() == wanted()


def test_a_reader_that_died_goes_on_and_reads_nothing_of_what_it_has(world):
    first = for_next(world)
    world.stage(world.request("write", source=read(world, first), transform=doubled), splits=3)
    attempt = world.attempt(world.request("write", source=read(world, first), transform=doubled))
    assert len(attempt.next_round().missing) == 1
    assert written(world, read(world, first)).landed_now
    assert world.read() == wanted()


def test_three_in_a_row(world):
    first = for_next(world, "parse")
    second = for_next(world, "embed", doubled, source=read(world, first))
    assert written(world, read(world, second), function=None).landed_now
    assert world.read() == wanted()


def test_rows_of_two_stages_are_read_together(world):
    """Two parents, each with rows of its own."""
    one = for_next(world, "one", source=Files(f"{world.input}/[01].parquet", max_split_bytes=1))
    other = for_next(world, "other", source=Files(f"{world.input}/[23].parquet", max_split_bytes=1))
    assert written(world, read(world, one, other)).landed_now
    assert world.read() == wanted()


def test_no_rows_are_read_as_no_rows(world):
    none = for_next(world, source=Files(f"{world.input}/none-*.parquet"))
    assert written(world, read(world, none), function=None).commit.commit_id is None
    assert world.read() == []
    empty = for_next(world, "empty", lambda batch: batch.slice(0, 0))
    assert written(world, read(world, empty), "write empty", None).commit.commit_id is None
    assert world.read() == []


def test_once_there_is_input_an_empty_stage_has_its_columns(world):
    source = {"source": Files(f"{world.input}/late-*.parquet", max_split_bytes=1)}
    for_next(world, **source)
    pq.write_table(rows(0, ROWS), world.input / "late-0.parquet")
    late = for_next(world, **source)
    assert late.checkpoint.header.generation == 2
    assert written(world, read(world, late)).landed_now
    assert world.read() == wanted()


def test_a_map_says_its_columns_and_is_not_called_for_them(world):
    calls = []

    def kind(id):  # noqa: A002 - the name of a column
        calls.append(id)
        return {"kind": "marked"}

    for_next(world, function=Map(kind, output={"kind": pa.string()}, keep=["id", "value", "at"]), splits=0)
    assert calls == []


def test_rows_for_the_next_task_are_not_committed(world):
    first = for_next(world)
    with pytest.raises(InvalidInputError, match="staged for the next task to read, and no commit lands them"):
        groups.commit([first.checkpoint], RowsTable(first.checkpoint.header.table.identifier))


def test_a_task_reads_what_its_reference_says_and_nothing_else(world):
    first = output(for_next(world))
    with pytest.raises(InvalidInputError, match="not for another task"):
        _ = Staged(output(world.stage(world.request("table")))).references
    with pytest.raises(InvalidInputError, match="A reference says what is sealed"):
        _ = Staged([first, "parse"]).references
    with pytest.raises(InvalidInputError, match="which says what was staged"):
        Staged("parse")
    other = first | {"sealed": "0" * 64}
    with pytest.raises(BindingMismatchError, match="is not what the reference of its stage says"):
        Staged(other).opened(world.store).plan({})


def test_other_rows_under_the_same_key_are_another_source(world):
    """The stage before was begun anew after its reader had begun: what the reader has is not mixed with other rows."""
    first = for_next(world)
    world.stage(world.request("write", source=read(world, first), transform=doubled), splits=2)
    second = for_next(world, function=doubled, on_change="restart")
    with pytest.raises(BindingMismatchError, match="source: was"):
        world.stage(world.request("write", source=read(world, second), transform=doubled))
    assert written(world, read(world, second), function=marked, on_change="restart").landed_now
    assert world.read() == wanted()


def test_files_that_are_gone_are_named_and_staged_anew_by_their_stage(world):
    first = for_next(world)
    record = first.checkpoint.staged(["000001"])[0]
    os.unlink(record.files[0].path.removeprefix("file://"))
    with pytest.raises(StagedFileMissingError, match=r"'parse' is gone or damaged.*Clear the stage of that key"):
        world.stage(world.request("write", source=read(world, first), transform=doubled))
    again = for_next(world)
    assert written(world, read(world, again)).landed_now
    assert world.read() == wanted()


def test_rows_that_are_given_twice_are_not_read_twice(world):
    first = output(for_next(world))
    with pytest.raises(InvalidInputError, match="The rows of the key 'parse' are given twice"):
        _ = Staged([first, first]).references


@pytest.mark.parametrize("name", ["a[1]", "a*b?", "a b%20ü"])
def test_a_store_in_a_folder_of_any_name_is_read(world, name):
    world.store = CheckpointStore.at(str(world.root / name))
    first = for_next(world, "one", source=Files(f"{world.input}/[01].parquet", max_split_bytes=1))
    second = for_next(world, "two", doubled, source=read(world, first))
    other = for_next(world, "other", lambda batch: doubled(marked(batch)), source=Files(f"{world.input}/[23].parquet"))
    assert written(world, read(world, second, other), function=None).landed_now
    assert world.read() == wanted()


@pytest.mark.parametrize("kind", [pa.struct([]), pa.month_day_nano_interval()], ids=str)
def test_columns_that_cannot_be_staged_are_named(world, kind):
    def strange(batch):
        return pa.table({"c": pa.nulls(batch.num_rows, kind)})

    with pytest.raises(InvalidInputError, match="cannot hold the column 'c'"):
        for_next(world, function=strange, transform_version="1")


def test_rows_without_columns_are_refused(world):
    """A file without columns has no rows, and the next task would read none."""
    with pytest.raises(OutputError, match="100 rows without any column"):
        for_next(world, function=lambda batch: batch.select([]))


def test_a_plan_that_leaves_out_a_staged_file_is_refused(world):
    first = for_next(world)
    attempt = world.stage(world.request("write", source=read(world, first), transform=doubled), splits=1)
    plan = attempt.checkpoint.plan()
    forge(world.store, attempt.checkpoint.paths.plan(), plan, splits=plan.splits[:3])
    with pytest.raises(CorruptObjectError, match="reads 3 files"):
        world.stage(world.request("write", source=read(world, first), transform=doubled))


def test_who_reads_is_known_before_anything_is_planned(world):
    first = for_next(world)
    source = read(world, first)
    attempt = world.attempt(world.request("write", source=source, transform=doubled))
    source.begin_reading(attempt.checkpoint.header)
    assert [record.reader for record in readers_of(first.checkpoint)] == [Member(key="write", generation=1)]
    assert attempt.checkpoint.plan() is None


def test_a_reader_has_the_store_of_the_rows(world):
    """In which alone it can be told whether somebody still needs them."""
    source = read(world, for_next(world))
    connections = Connections(table="iceberg_default", spark="spark_default", checkpoint="another")
    with pytest.raises(InvalidInputError, match="Give both the same one"):
        world.stage(world.request("write", source=source, transform=doubled, connections=connections))


def test_rows_that_were_freed_are_not_read_and_not_computed_again(world):
    first = for_next(world)
    before = output(first)
    written(world, read(world, first))
    first.checkpoint.discard("all who read it were done", freed=True)
    again = for_next(world, function=marked)
    assert again.state is State.FREED
    assert output(again)["sealed"] == before["sealed"]
    # Who has landed finds that it has; a new reader is told.
    assert written(world, read(world, again)).landed_now is False
    with pytest.raises(DiscardedError, match=r"'parse'.*all who read it were done.*computed again"):
        world.stage(world.request("another", source=read(world, again), transform=doubled))
    assert world.read() == wanted()


def test_freed_rows_are_computed_again_where_that_is_asked_for(world):
    first = for_next(world)
    first.checkpoint.discard("all who read it were done", freed=True)
    again = for_next(world, restart_token="run 2")
    assert again.checkpoint.header.generation == 2
    assert written(world, read(world, again)).landed_now
    assert world.read() == wanted()


def content(world, function=marked, source=None):
    """Stage under a key that stands for what is computed."""
    source = source or Files(f"{world.input}/*.parquet", max_split_bytes=1)
    key = content_key(source, {}, Transform(function), None).value
    return for_next(world, key, function, source=source, parameters={"reuse": "content"})


def test_what_was_computed_is_not_computed_again_in_another_run(world):
    first = content(world)
    again = content(world)
    assert again.checkpoint.key == first.checkpoint.key
    assert len(again.checkpoint.attempts()) == 1
    # The next stage of the chain is known by its key, too.
    second = content(world, doubled, read(world, first))
    assert content(world, doubled, read(world, again)).checkpoint.key == second.checkpoint.key
    assert written(world, read(world, second), function=None).landed_now
    assert world.read() == wanted()


def test_other_code_and_other_input_are_other_content(world):
    first = content(world)
    assert content(world, doubled).checkpoint.key != first.checkpoint.key
    pq.write_table(rows(ROWS, 10), world.input / "more.parquet")
    assert content(world).checkpoint.key != first.checkpoint.key


def test_a_version_stands_for_the_code_of_one_name(world):
    """Every function begins at version 1: those of two tasks over one input are not taken for each other."""
    source = Files(f"{world.input}/*.parquet")
    versions = {content_key(source, {}, Transform(made), "1").value for made in (marked, doubled, Map(kept, output={"kind": str}))}
    assert len(versions) == 3
    assert content_key(source, {}, Transform(marked), "1").value in versions
    assert content_key(source, {}, Transform(marked), "2").value not in versions


def test_rows_with_some_left_out_are_other_content(world):
    """Who wants all rows, or an error, is not given what another task has with ``on_error='skip'``."""
    source, transform = Files(f"{world.input}/*.parquet"), Transform(Map(kept, output={"kind": str}))
    keys = [content_key(source, {}, transform, None, on_error) for on_error in (OnError(), OnError("skip"), OnError("skip", 5))]
    assert len({key.value for key in keys}) == 3


def test_a_plan_has_the_key_of_the_input_that_it_reads(world):
    """By it a task sees that its input changed between the look that made its key, and the one that made its plan."""
    source = Files(f"{world.input}/*.parquet", max_split_bytes=1)
    key, planned = content_key(source, {}, Transform(marked), None), content(world).checkpoint.plan()
    pq.write_table(rows(ROWS, 10), world.input / "more.parquet")
    assert content_key(source, {}, Transform(marked), None, planned=planned.splits) == key
    assert content_key(source, {}, Transform(marked), None) != key


def test_a_plan_of_a_table_has_the_key_of_its_snapshot(world):
    world.add(range(5))
    source, options = world.as_source, world.source_options
    key = content_key(source, options, Transform(marked), None)
    attempt = for_next(world, key.value, source=source, options=options, parameters={"reuse": "content"})
    assert content_key(source, options, Transform(marked), None, planned=attempt.checkpoint.plan().splits) == key
    world.add(range(5, 10))
    assert content_key(source, options, Transform(marked), None) != key


def test_content_that_was_computed_once_more_is_not_read_by_the_plan_of_what_was_before(world):
    first = content(world)
    world.stage(world.request("write", source=read(world, first), transform=doubled), splits=2)
    source, key = Files(f"{world.input}/*.parquet", max_split_bytes=1), first.checkpoint.key.value
    again = for_next(world, key, source=source, parameters={"reuse": "content"}, restart_token="run 2")
    with pytest.raises(InputChangedError, match="reads generation 1 of them, and was given generation 2"):
        written(world, read(world, again))
    assert written(world, read(world, again), restart_token="run 2").landed_now
    assert world.read() == wanted()


def test_content_that_was_freed_is_computed_again(world):
    """Another run needs the rows, whatever became of the tasks that have read them."""
    first = content(world)
    first.checkpoint.discard("nobody has asked for it in a while", freed=True)
    again = content(world)
    assert again.checkpoint.header.generation == 2
    assert written(world, read(world, again)).landed_now
    assert world.read() == wanted()


def test_a_kill_in_the_middle_of_a_split_costs_what_was_not_saved(world):
    """Pieces of a split are those of any write: the stage goes on behind them."""
    source = Files(f"{world.input}/*.parquet")
    settings = {"source": source, "save_every": SaveEvery(rows=30, seconds=None), "transform_version": "1"}
    with pytest.raises(Killed):
        for_next(world, function=Function(at=250), **settings)
    again = Function()
    first = for_next(world, function=again, **settings)
    # The batch that it died in began at the row 230, and what was before that is saved.
    assert again.seen == list(range(230, ROWS))
    written(world, read(world, first), function=None)
    assert [row["kind"] for row in world.read()] == [str(number + 1) for number in range(ROWS)]


def cleaned(world, key, **settings):
    """What a clean-up removes of a key, and of what it reads."""
    latest = Checkpoint.latest(world.store, IdempotenceKey(key))
    return list(clean(latest, lambda one: table_of(world, one), **settings))


def table_of(world, checkpoint):
    return world.as_table() if mode_type(checkpoint.header).lands else chains.rows_of(checkpoint)


def files_of(world):
    """All files of rows for next tasks."""
    return sorted(path.name for path in (world.root / "store").rglob("rows/data/*"))


def test_rows_are_freed_once_their_only_reader_has_landed(world):
    first = for_next(world)
    assert cleaned(world, "parse")[0].left == "no task has read it yet"
    attempt = world.stage(world.request("write", source=read(world, first), transform=doubled))
    assert "the key 'write' reads it, and is not committed" in cleaned(world, "parse")[0].left
    world.commit(attempt)
    (freed,) = cleaned(world, "parse")
    assert (freed.files, freed.left, freed.state) == (4, "", State.FREED)
    assert files_of(world) == []
    assert world.read() == wanted()


def test_rows_that_another_task_is_to_read_stay(world):
    """Two tasks read the same rows, and one of them is done before the other has begun."""
    first = for_next(world)
    written(world, read(world, first))
    waiting = {"not_begun": lambda read: ["other"] if len(readers_of(read)) < 2 else []}
    assert cleaned(world, "parse", **waiting)[0].left == "the task 'other' is to read it, and has not begun"
    second = for_next(world, "other", doubled, source=read(world, first))
    assert "'other' reads it" in cleaned(world, "parse", **waiting)[0].left
    assert len(files_of(world)) == 8
    assert second.checkpoint.sealed().rows == ROWS


def test_rows_whose_only_reader_was_given_up_are_computed_again_when_their_run_is_cleared(world):
    first = for_next(world)
    world.stage(world.request("write", source=read(world, first), transform=doubled), splits=2)
    cleaned(world, "write", discard_unfinished=True)
    assert cleaned(world, "parse")[0].files == 4
    again = for_next(world)
    assert again.checkpoint.header.generation == 2
    assert written(world, read(world, again)).landed_now
    assert world.read() == wanted()


def test_a_chain_is_freed_from_its_end(world):
    first = for_next(world, "parse")
    second = for_next(world, "embed", doubled, source=read(world, first))
    written(world, read(world, second), function=None)
    assert cleaned(world, "parse")[0].left.startswith("the key 'embed' reads it")
    assert [entry.files for entry in cleaned(world, "embed")] == [4]
    assert [entry.files for entry in cleaned(world, "parse")] == [4]
    assert world.read() == wanted()


def test_rows_whose_key_stands_for_what_was_computed_stay_for_other_runs(world):
    first = content(world)
    written(world, read(world, first))
    key = first.checkpoint.key.value
    assert cleaned(world, key)[0].left == "its key stands for what was computed, and other runs may ask for it"
    assert cleaned(world, key, discard_unfinished=True)[0].files == 4


def test_an_aggregate_tells_whose_rows_it_groups(world):
    """So that a clean-up of what it has written frees them."""
    first = for_next(world)
    aggregate = Aggregate(lambda value: {"value": sum(value)}, by="kind", output={"value": float})
    source = GroupedRows(read(world, first), {}, aggregate)
    attempt = world.attempt(world.request("totals", source=source, transform=aggregate))
    source.begin_reading(attempt.checkpoint.header)
    assert [one.member for one in read_by(attempt.checkpoint)] == [first.checkpoint.member]
    assert [record.reader.key for record in readers_of(first.checkpoint)] == ["totals"]


@pytest.mark.parametrize("grouped", [False, True], ids=["as it is", "grouped"])
def test_a_frame_transform_tells_whose_rows_it_is_made_of(world, grouped):
    first = for_next(world)
    aggregate = Aggregate(lambda value: {"value": sum(value)}, by="kind", output={"value": float})
    given = read(world, first)
    source = opened(SparkDataFrame(source=given, dataframe=same, id_column="id"), given, {})
    changes = {"source": GroupedRows(source, {}, aggregate), "transform": aggregate} if grouped else {"source": source}
    attempt = world.attempt(world.request("joined", **changes))
    changes["source"].begin_reading(attempt.checkpoint.header)
    assert [one.member for one in read_by(attempt.checkpoint)] == [first.checkpoint.member]
    assert [record.reader.key for record in readers_of(first.checkpoint)] == ["joined"]


def same(df):
    return df


def test_rows_that_are_being_read_are_not_given_up(world):
    first = for_next(world)
    world.stage(world.request("write", source=read(world, first), transform=doubled), splits=2)
    assert "'write' reads it" in cleaned(world, "parse", discard_unfinished=True)[0].left
    assert len(files_of(world)) == 4


def test_a_reader_that_begins_while_rows_are_freed_loses_nothing(world):
    """It has said that it reads before the tombstone was put, and is told; the rows stay."""
    first = for_next(world)
    written(world, read(world, first))
    source = read(world, first)
    late = world.attempt(world.request("late", source=source, transform=doubled))
    first.checkpoint.discard("all tasks that read it were done", freed=True)
    with pytest.raises(DiscardedError, match="'parse'"):
        source.begin_reading(late.checkpoint.header)
    assert "'late' had begun to read it" in cleaned(world, "parse")[0].left
    assert len(files_of(world)) == 4
