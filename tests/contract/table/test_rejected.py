"""Rows at which the transform fails: left out and kept beside the write, or run again, and none is lost or there twice."""

from __future__ import annotations

import os

import pyarrow.parquet as pq
import pytest
from contract.table.both import BEFORE, Iceberg, Lance, StableLance, StagedRows
from support.failing import Function, Killed, asked, batched, mapped, put, rejected, rejected_files, right, twice
from support.world import rows

from airflow_ckpt_provider.checkpoint.checkpoint import State
from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.exceptions import InvalidInputError, RowsToRetryError, TooManyErrorsError, TransformError

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
