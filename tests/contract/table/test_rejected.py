"""Rows at which the transform fails: left out and kept beside the write, or run again, and none is lost or there twice."""

from __future__ import annotations

import os

import msgspec
import pyarrow.parquet as pq
import pytest
from contract.table.both import BEFORE, Iceberg, Lance, StableLance, StagedRows
from support.failing import Function, Killed, asked, batched, mapped, put, rejected, rejected_files, right, twice
from support.forging import forge, forge_plan
from support.world import rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import AGAIN
from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.checkpoint.rejected import files_of
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import (
    CorruptObjectError,
    InvalidInputError,
    RowsToRetryError,
    TooManyErrorsError,
    TransformError,
)
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.transforms import Map
from airflow_ckpt_provider.write.rejecting import OnError

KINDS = {"iceberg": Iceberg, "lance": Lance, "lance with stable row ids": StableLance, "staged rows": StagedRows}

#: Ids of the two input files, and those at which the function fails.
FILES = (range(100), range(100, 150))
BAD = {3, 4, 40, 99, 120}
GOOD = [one for ids in FILES for one in ids if one not in BAD]


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def world(request, tmp_path):
    """A world with a table, and two input files of one split each."""
    found = request.param(tmp_path)
    found.make()
    put(found, *FILES)
    return found


def told(attempt):
    return reference(attempt.checkpoint, attempt.checkpoint.sealed(), State.SEALED, recovered=0, written=2).get("rejected", 0)


@pytest.mark.parametrize("save", [30, 1000], ids=["in pieces", "at once"])
@pytest.mark.parametrize(("kind", "times"), [(mapped, 1), (twice, 2), (batched, 1)], ids=["rows", "many rows", "batches"])
def test_rows_that_are_skipped_are_kept_with_their_errors_and_the_others_land(world, kind, times, save):
    attempt = world.stage(asked(world, Function(BAD), kind=kind, save=save))
    assert told(attempt) == len(BAD)
    found = rejected(attempt)
    assert [row["id"] for row in found] == sorted(BAD)
    inputs = {row["id"]: row for ids in FILES for row in rows(ids.start, len(ids)).to_pylist()}
    for row in found:
        assert {name: row[name] for name in inputs[0]} == inputs[row["id"]]
        assert row["_error"] == f"ValueError: {row['id']} is bad"
        assert "failing.py" in row["_traceback"]
        assert "airflow_ckpt_provider" not in row["_traceback"]
    assert {row["id"]: (row["_split"], row["_row"]) for row in found} == {
        one: ("000001", one - 100) if one in FILES[1] else ("000000", one) for one in BAD
    }
    world.commit(attempt)
    assert right(world, GOOD, times)
    assert len(world.read()) == len(GOOD) * times + len(BEFORE)


def test_a_write_at_none_of_whose_rows_the_transform_fails_says_nothing_of_rejected_rows(world):
    attempt = world.stage(asked(world, Function()))
    assert "rejected" not in reference(attempt.checkpoint, attempt.checkpoint.sealed(), State.SEALED, recovered=0, written=2)
    assert rejected_files(world) == []


def test_without_on_error_the_first_row_that_fails_fails_the_task(world):
    with pytest.raises(TransformError, match=r"at row 3 of the split's input \(id=3\): ValueError: 3 is bad"):
        world.stage(asked(world, Function(BAD), on_error="fail"))
    assert rejected_files(world) == []


def test_a_killed_attempt_leaves_what_it_has_rejected_and_the_next_runs_that_again_and_what_is_missing(world):
    with pytest.raises(Killed):
        world.stage(asked(world, Function(BAD, dies_at=70)))
    function = Function(BAD)
    attempt = world.stage(asked(world, function))
    # Behind the last piece; then the rows that the first attempt has rejected.
    assert function.seen == [*range(60, 150), 3, 4, 40]
    assert [row["id"] for row in rejected(attempt)] == sorted(BAD)
    world.commit(attempt)
    assert right(world, GOOD)


@pytest.mark.parametrize(("kind", "times"), [(mapped, 1), (twice, 2), (batched, 1)], ids=["rows", "many rows", "batches"])
def test_too_many_errors_fail_the_task_and_a_corrected_function_gets_only_the_rows_that_failed(world, kind, times):
    with pytest.raises(TooManyErrorsError) as error:
        world.stage(asked(world, Function(BAD), kind=kind, max_errors=4))
    assert "failed at 5 of 150 rows of the input" in str(error.value)
    assert "row 3: ValueError: 3 is bad; row 4: ValueError: 4 is bad; row 40" in str(error.value)
    assert 'on_change="continue"' in str(error.value)
    function = Function({40})
    attempt = world.stage(asked(world, function, kind=kind, max_errors=4, version="2", on_change="continue"))
    assert {*function.seen} == BAD
    assert [(row["id"], row["_split"], row["_row"]) for row in rejected(attempt)] == [(40, "000000", 40)]
    assert told(attempt) == 1
    world.commit(attempt)
    assert right(world, sorted({*GOOD} | BAD - {40}), times)


def test_a_split_with_more_errors_than_all_may_have_stops_at_once_and_goes_on_once_the_function_is_right(world):
    with pytest.raises(TooManyErrorsError, match="failed at 3 of the first 50 rows that were done of the split 000000"):
        world.stage(asked(world, Function(BAD), max_errors=2, save=10))
    function = Function()
    world.commit(world.stage(asked(world, function, max_errors=2, save=10, version="2", on_change="continue")))
    assert function.seen == [*range(40, 150), 3, 4]
    assert right(world, range(150))


def test_a_share_of_the_rows_may_fail_and_no_more(world):
    with pytest.raises(TooManyErrorsError, match=r"on_error='skip' and max_errors=0\.03"):
        world.stage(asked(world, Function(BAD), max_errors=0.03))
    attempt = world.stage(asked(world, Function(BAD), max_errors=0.04))
    assert told(attempt) == 5
    world.commit(attempt)
    assert right(world, GOOD)


def test_rows_to_retry_fail_the_try_and_the_next_one_runs_them_again_with_the_same_code(world):
    with pytest.raises(RowsToRetryError, match="The next try runs those 5 again, and only those"):
        world.stage(asked(world, Function(BAD), on_error="retry"))
    # A service was down for three of them; then for one.
    with pytest.raises(RowsToRetryError, match="failed at 1 of 150 rows"):
        world.stage(asked(world, second := Function({40}), on_error="retry"))
    assert {*second.seen} == BAD
    attempt = world.stage(asked(world, third := Function(), on_error="retry"))
    assert third.seen == [40]
    assert told(attempt) == 0
    world.commit(attempt)
    assert right(world, range(150))


def test_a_retry_may_leave_out_so_many_at_last(world):
    attempt = world.stage(asked(world, Function(BAD), on_error="retry", max_errors=5))
    assert told(attempt) == 5


def test_an_attempt_that_may_leave_out_none_fails_at_what_an_earlier_one_has_rejected(world):
    with pytest.raises(Killed):
        world.stage(asked(world, Function(BAD, dies_at=110)))
    with pytest.raises(TransformError, match="3 is bad"):
        world.stage(asked(world, Function({3}), on_error="fail"))
    world.commit(world.stage(asked(world, Function(), on_error="fail")))
    assert right(world, range(150))


def test_what_is_sealed_is_handed_on_with_what_it_leaves_out(world):
    first = world.stage(asked(world, Function(BAD)))
    again = world.stage(asked(world, function := Function()))
    assert function.seen == []
    assert again.checkpoint.sealed() == first.checkpoint.sealed()


@pytest.mark.parametrize("lost", ["a split", "rows that came right later"])
def test_files_that_are_lost_are_staged_once_more_with_their_rejected_rows_and_no_row_is_there_twice(world, lost):
    with pytest.raises(RowsToRetryError):
        world.stage(asked(world, Function(BAD), on_error="retry"))
    before = {path for path in world.files_on_disk() if path.endswith((".parquet", ".lance"))}
    with pytest.raises(RowsToRetryError):
        world.stage(asked(world, Function({3}), on_error="retry"))
    after = {path for path in world.files_on_disk() if path.endswith((".parquet", ".lance"))} - before
    gone = min(path for path in (before if lost == "a split" else after) if "s000000" in path)
    os.unlink(gone)
    world.commit(world.stage(asked(world, Function(), on_error="retry")))
    assert right(world, range(150))


def test_rows_are_not_rejected_where_nobody_can_tell_which_they_are(world):
    with pytest.raises(InvalidInputError, match="is no Map or FlatMap"):
        world.stage(asked(world, Function(BAD), kind=lambda _: lambda batch: batch))


def test_an_input_with_a_column_of_the_name_of_ours_is_refused(world):
    pq.write_table(rows(0, 10).append_column("_error", [["x"] * 10]), world.input / "0.parquet")
    with pytest.raises(InvalidInputError, match="they have the column _error"):
        world.stage(asked(world, Function(BAD)))


def test_running_out_of_memory_is_no_rows_fault(world):
    def function(id):  # noqa: A002 - the column
        raise MemoryError(f"at {id}")

    with pytest.raises(TransformError, match="MemoryError"):
        world.stage(asked(world, function))
    assert rejected_files(world) == []


def test_columns_that_the_function_needs_and_the_rows_lack_are_no_rows_fault(world):
    with pytest.raises(InvalidInputError, match="needs the columns nope"):
        world.stage(asked(world, lambda nope: nope))


def rejecting_twice(world):
    """A write that has rejected rows in its first round, and run some of them again in its second."""
    for bad in (BAD, {40}):
        with pytest.raises(RowsToRetryError):
            world.stage(asked(world, Function(bad), on_error="retry"))
    return Checkpoint.latest(world.store, world.request("orders").key)


@pytest.mark.parametrize("how", ["twice", "of another file"])
def test_a_plan_that_reads_rejected_rows_twice_or_such_as_no_record_names_is_not_believed(world, how):
    checkpoint = rejecting_twice(world)
    plan = checkpoint.plan(2)
    again = next(split for split in plan.splits if split.task == AGAIN)
    if how == "twice":
        forged = msgspec.structs.replace(again, id="000000e9")
        forge_plan(checkpoint, 2, splits=(*plan.splits, forged))
    else:
        (file, *others) = files_of(again)
        other = msgspec.structs.replace(file, sha256="0" * 64)
        read = {"files": msgspec.to_builtins([other, *others])}
        changed = msgspec.structs.replace(again, read=read)
        forge_plan(checkpoint, 2, splits=tuple(changed if split is again else split for split in plan.splits))
    with pytest.raises(CorruptObjectError, match="rejected rows of the split 000000 that its record does not name"):
        world.stage(asked(world, Function(), on_error="retry"))


def test_a_seal_that_leaves_out_what_was_rejected_is_not_believed(world):
    attempt = world.stage(asked(world, Function(BAD)))
    forge(world.store, attempt.checkpoint.paths.seal(), attempt.checkpoint.sealed(), rejected=[])
    with pytest.raises(CorruptObjectError, match="says that 0 rows of the input were rejected"):
        world.stage(asked(world, Function(BAD)))


def test_a_record_that_names_rejected_rows_of_another_split_is_not_believed(world):
    attempt = world.stage(asked(world, Function(BAD)), splits=1)
    (record,) = attempt.checkpoint.staged(["000000"])
    file = msgspec.structs.replace(record.rejected[0], split="000001")
    forge(world.store, attempt.checkpoint.paths.staged("000000"), record, rejected=[msgspec.to_builtins(file)])
    with pytest.raises(CorruptObjectError, match="as no task writes it"):
        world.stage(asked(world, Function(BAD)))


class Overtaken(Function):
    """While it runs, another attempt stages the write.

    :param overtake: stages it, at the row 50.
    """

    def __init__(self, overtake):
        super().__init__(BAD)
        self.overtake = overtake

    def __call__(self, id):  # noqa: A002 - the column
        if id == 50 and self.overtake is not None:
            overtake, self.overtake = self.overtake, None
            overtake()
        return super().__call__(id)


@pytest.mark.parametrize("save", [20, 1000], ids=["in pieces", "at once"])
def test_a_task_that_is_overtaken_takes_back_what_it_has_rejected(world, save):
    slow = world.attempt(asked(world, Overtaken(lambda: world.stage(asked(world, Function(BAD), save=save))), save=save))
    found = slow.next_round()
    work = slow.begin("a test", 1)
    for split in sorted(found.missing, key=lambda split: split.id):
        assert not work.run(split, "0")
    sealed = slow.checkpoint.sealed()
    records = slow.checkpoint.staged(sorted(slow.checkpoint.staged_ids()))
    named = [f"{file.split}-{file.writer}.parquet" for record in records for file in record.rejected]
    assert rejected_files(world) == sorted(named)
    assert sealed.rejected_rows == len(BAD)
    world.commit(slow)
    assert right(world, GOOD)


def test_rows_of_other_columns_are_rejected_beside_each_other(world):
    """Files of one split may have columns that others lack."""
    pq.write_table(rows(0, 10).append_column("more", [[1] * 10]), world.input / "0.parquet")
    pq.write_table(rows(10, 10), world.input / "1.parquet")
    source = Files(f"{world.input}/*.parquet")
    attempt = world.stage(asked(world, Function({3, 13}), source=source, save=1000))
    assert [row["id"] for row in rejected(attempt)] == [3, 13]
    with pytest.raises(RowsToRetryError):
        world.stage(asked(world, Function({3, 13}), source=source, key="again", on_error="retry"))
    function = Function()
    world.stage(asked(world, function, source=source, key="again", on_error="retry"))
    assert {*function.seen} == {3, 13}


def test_a_sample_of_rows_that_fail_makes_no_table_of_its_own(tmp_path):
    """The columns of a table that is to be created are told from the first rows that come out."""
    world = Iceberg(tmp_path)
    (world.input / "0.csv").write_text("id,kind\n" + "".join(f"{n},x\n" for n in range(20)))

    def fails_first(id):  # noqa: A002 - the column
        if id < 3:
            raise ValueError("too early")
        return "made"

    transform = Map(fails_first, output={"made": str}, keep=True)
    attempt = world.stage(
        world.request(
            source=Files(f"{world.input}/*.csv", format="csv"), transform=transform, mode="create", on_error=OnError("skip")
        )
    )
    world.catalog.create_namespace_if_not_exists("shop")
    world.commit(attempt)
    assert sorted(row["id"] for row in world.read()) == [*range(3, 20)]


def test_what_was_rejected_before_and_after_a_kill_runs_again_in_one_round(world):
    with pytest.raises(Killed):
        world.stage(asked(world, Function({3, 4}, dies_at=40)))
    # Rows of the first attempt fail again, and others fail for the first time.
    with pytest.raises(TooManyErrorsError):
        world.stage(asked(world, Function({3, 50}), max_errors=1))
    function = Function()
    world.commit(world.stage(asked(world, function, max_errors=1)))
    assert sorted(function.seen) == [3, 50]
    assert right(world, range(150))
