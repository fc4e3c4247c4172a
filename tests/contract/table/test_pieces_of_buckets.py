"""A bucket of a DataFrame that takes long: each attempt computes its rows anew, and what is done of it counts by their ids."""

from __future__ import annotations

import os
import tempfile

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from contract.table.both import BEFORE, HALF, UPSERT
from contract.table.test_pieces import KINDS, ROWS, Few, Function, Killed, Twice, pieces, staged_files
from support import failing
from support.failing import batched, mapped
from support.forging import forge
from support.world import rows

from airflow_ckpt_provider.checkpoint.documents import READ
from airflow_ckpt_provider.checkpoint.pieces import input_id, pieces_of
from airflow_ckpt_provider.exceptions import InvalidInputError, StageFailedError
from airflow_ckpt_provider.sources import SparkDataFrame
from airflow_ckpt_provider.spark.frame.task import CHANGED, FrameTask
from airflow_ckpt_provider.write.pieces import SaveEvery
from airflow_ckpt_provider.write.rejecting import OnError

SAVE = 30


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def world(request, tmp_path):
    found = request.param(tmp_path)
    found.make()
    return found


@pytest.fixture(params=["iceberg", "lance"])
def modal(request, tmp_path):
    """The same of the formats with modes that do more than add rows."""
    found = KINDS[request.param](tmp_path)
    found.make(HALF)
    return found


class Attempt:
    """An attempt at a write of a DataFrame of one bucket, as a Spark task gets it.

    :param changes: of the request.
    """

    def __init__(self, world, function, save=SAVE, *, assert_unique=False, **changes):
        facts = {
            "source": SparkDataFrame(sql="SELECT * FROM rows", id_column="id", buckets=1),
            "save_every": SaveEvery(rows=save, seconds=None, buckets=True),
            "transform_version": "1",
        }
        self.world = world
        self.assert_unique = assert_unique
        self.attempt = world.attempt(world.request(transform=function, **(facts | changes)))
        self.round = self.attempt.next_round()
        self.work = self.attempt.begin("test", 1)

    def run(self, table, at_a_time=1000, name="0", *, repeated=False):
        """What a task does with a bucket.

        :param table: its rows, sorted by id.
        """
        (split,) = self.round.missing
        task = FrameTask(
            self.work, {0: split}, ("id",), placed=False, keep_ids=False, assert_unique=self.assert_unique, in_order=True
        )
        return task.run(iter(table.to_batches(max_chunksize=at_a_time)), 0, name, repeated=repeated)

    def land(self):
        while (found := self.attempt.next_round()) is not None:
            work = self.attempt.begin("test", 1)
            for split in found.missing:
                assert split.task != READ
                work.run(split, "0")
        self.attempt.seal()
        self.world.commit(self.attempt)

    def pieces(self):
        checkpoint = self.attempt.checkpoint
        return next(iter(pieces_of(checkpoint.store, checkpoint.paths, checkpoint.plan().splits).values()), [])


def die(world, table, at, function=Function, **changes):
    """An attempt whose task is killed before it has done the row ``at``; what the function saw."""
    with pytest.raises(Killed):
        Attempt(world, function := function(at), **changes).run(table)
    return function.seen


def done(world, table, function=Function, at_a_time=1000, **changes):
    """An attempt that ends the write; what the function saw, and what the task said."""
    attempt = Attempt(world, function := function(), **changes)
    result = attempt.run(table, at_a_time)
    attempt.land()
    return function.seen, result.message


def landed(world):
    return [row["id"] for row in world.read() if row["id"] < BEFORE.start]


@pytest.mark.parametrize("at_a_time", [1, 7, 29, 60, 1000])
def test_a_retry_calls_the_function_with_the_rows_behind_the_last_piece_only(world, at_a_time):
    table = rows(0, ROWS)
    assert die(world, table, 115) == [*range(90)]
    assert [piece.end for piece in Attempt(world, Function()).pieces()] == [30, 60, 90]
    assert done(world, table, at_a_time=at_a_time) == ([*range(90, ROWS)], None)
    assert landed(world) == [*range(ROWS)]
    assert len(staged_files(world)) == 1


def test_what_several_attempts_have_done_before_they_failed_adds_up(world):
    table = rows(0, ROWS)
    seen = [die(world, table, at=at) for at in (35, 65, 125, 155)]
    assert seen == [[*range(30)], [*range(30, 60)], [*range(60, 120)], [*range(120, 150)]]
    assert done(world, table) == ([*range(150, ROWS)], None)
    assert landed(world) == [*range(ROWS)]


@pytest.mark.parametrize(("function", "ids"), [(Twice, sorted([*range(ROWS)] * 2)), (Few, [*range(15)])])
def test_rows_of_the_bucket_may_become_any_number_of_rows(world, function, ids):
    die(world, rows(0, ROWS), 115, function)
    assert done(world, rows(0, ROWS), function) == ([*range(90, ROWS)], None)
    assert landed(world) == ids


def test_a_task_that_was_killed_after_its_last_piece_does_not_call_the_function_again(world, monkeypatch):
    from airflow_ckpt_provider.write.work import SplitInPieces

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(SplitInPieces, "_rewritten", killed)
        die(world, rows(0, ROWS), None)
    assert done(world, rows(0, ROWS)) == ([], None)
    assert landed(world) == [*range(ROWS)]


#: What the bucket may be when it is computed again, and is not what pieces of its first 90 rows were saved of.
OTHERS = {
    "an id more": [*range(0, 80, 2), 41, *range(80, 400, 2)],
    "an id less": [*range(0, 40, 2), *range(42, 400, 2)],
    "another id": [*range(0, 40, 2), 41, *range(42, 400, 2)],
    "a row more of an id": sorted([*range(0, 400, 2), 40]),
    "a row more of the last id that is done": sorted([*range(0, 400, 2), 178]),
    "no rows behind": [*range(0, 100, 2)],
}


@pytest.mark.parametrize("ids", OTHERS.values(), ids=OTHERS)
def test_a_bucket_whose_ids_are_others_is_computed_anew_and_lands_as_it_is_now(world, ids):
    first = rows(0, 400).take(pa.array(range(0, 400, 2)))
    assert die(world, first, 230) == [*range(0, 180, 2)]
    assert done(world, rows(0, 400).take(pa.array(sorted(ids))), at_a_time=64) == (sorted(ids), CHANGED)
    assert landed(world) == sorted(ids)
    assert len(staged_files(world)) == 1


def test_a_bucket_that_has_no_rows_any_more_behind_those_that_are_done_is_done(world):
    die(world, rows(0, ROWS), 65)
    assert done(world, rows(0, 60)) == ([], None)
    assert landed(world) == [*range(60)]


def test_other_values_of_the_same_ids_are_done_as_those_of_a_staged_bucket_are(world):
    table = rows(0, ROWS)
    die(world, table, 115)
    later = table.set_column(1, "value", pc.add(table["value"], 0.5))
    assert done(world, later) == ([*range(90, ROWS)], None)
    assert [row["value"] for row in world.read() if row["id"] < BEFORE.start] == [
        *table["value"].to_pylist()[:90], *later["value"].to_pylist()[90:]
    ]  # fmt: skip


@pytest.mark.parametrize("at_a_time", [3, 64, 1000])
def test_a_piece_ends_between_two_ids_whatever_order_the_rows_of_an_id_have(world, at_a_time):
    of_id = 7
    ids = [number for number in range(40) for _ in range(of_id)]
    values = [float(number) for number in range(len(ids))]
    at = rows(0, len(ids))["at"]
    kinds = pa.array(["x"] * len(ids))

    def table(order):
        """The rows of each id in another order."""
        turned = [order(values[begin : begin + of_id]) for begin in range(0, len(ids), of_id)]
        return pa.table({"id": ids, "value": [value for part in turned for value in part], "kind": kinds, "at": at})

    def as_they_are(batch):
        if 33 in batch["id"].to_pylist():
            raise Killed
        return batch

    with pytest.raises(Killed):
        Attempt(world, as_they_are, save=10).run(table(list), at_a_time)
    ends = [piece.end for piece in Attempt(world, as_they_are, save=10).pieces()]
    assert len(ends) > 1
    assert all(end % of_id == 0 for end in ends)
    again = Attempt(world, seen := Function(), save=10)
    assert again.run(table(lambda part: part[::-1]), at_a_time).message is None
    again.land()
    assert seen.seen == ids[ends[-1] :]
    assert sorted(row["value"] for row in world.read() if row["id"] < BEFORE.start) == values


def test_two_tasks_at_one_bucket_go_on_behind_the_one_that_is_further(world):
    slow = Attempt(world, function := Function(at=95))
    # Another attempt begins while that one is still there, and gets further.
    assert die(world, rows(0, ROWS), at=65) == [*range(60)]
    with pytest.raises(Killed):
        slow.run(rows(0, ROWS), at_a_time=50)
    # The slow task has computed its first piece for nothing, and then went on behind all those that were there.
    assert function.seen == [*range(30), *range(60, 90)]
    assert done(world, rows(0, ROWS)) == ([*range(90, ROWS)], None)
    assert landed(world) == [*range(ROWS)]
    assert len(staged_files(world)) == 1


def test_a_task_that_is_further_than_another_one_goes_back_behind_what_that_has_saved(world):
    slow = Attempt(world, function := Function(), save=100)
    die(world, rows(0, ROWS), at=65)
    slow.run(rows(0, ROWS), at_a_time=50)
    slow.land()
    assert function.seen == [*range(100), *range(60, ROWS)]
    # Behind the two pieces of the other task, it has saved its own.
    assert [piece.end for piece in slow.pieces()] == [30, 60, ROWS, ROWS]
    assert landed(world) == [*range(ROWS)]
    assert len(staged_files(world)) == 1


@pytest.mark.parametrize(
    ("first", "at_a_time"), [(0, 10), (5, 10), (5, 50)], ids=["too far back", "of other rows, far back", "of other rows"]
)
def test_a_task_that_cannot_use_what_another_one_has_saved_goes_on_alone(world, first, at_a_time):
    slow = Attempt(world, function := Function(), save=100)
    die(world, rows(0, ROWS), at=65)
    result = slow.run(rows(first, ROWS), at_a_time)
    slow.land()
    assert result.message is None
    assert function.seen == landed(world) == [*range(first, first + ROWS)]
    assert [piece.end for piece in slow.pieces()] == [30, 60]
    assert len(staged_files(world)) == 1


def test_a_task_that_is_alone_and_late_leaves_nothing_beside_what_another_one_has_staged(world):
    """The last to publish is not the first to know."""

    class Late(Function):
        def changed(self, batch):
            if 150 in batch["id"].to_pylist():
                other = Attempt(world, Function())
                other.run(rows(0, ROWS))
            return super().changed(batch)

    slow = Attempt(world, Late(), save=100)
    die(world, rows(0, ROWS), at=65)
    slow.run(rows(0, ROWS), at_a_time=10)
    slow.land()
    assert landed(world) == [*range(ROWS)]
    assert len(staged_files(world)) == 1


def test_a_task_that_spark_runs_again_goes_on_behind_the_pieces_of_its_first_try(world):
    attempt = Attempt(world, function := Function(at=95))
    for again in (False, True):
        with pytest.raises(Killed):
            attempt.run(rows(0, ROWS), name=str(again), repeated=again)
    assert function.seen == [*range(90)]


@pytest.mark.parametrize("at_a_time", [1, 7, 60, 1000])
def test_ids_that_occur_twice_are_told_and_the_corrected_rows_go_on_behind_what_was_saved(world, at_a_time):
    die(world, rows(0, ROWS), 115, assert_unique=True)
    for twice in ([20], [90], [150, 160]):
        table = rows(0, ROWS).take(pa.array(sorted([*range(ROWS), *twice])))
        named = f"{len(twice)} ids occur more than once in this bucket, for instance id={twice[0]}: 2 rows"
        attempt = Attempt(world, function := Function(), assert_unique=True)
        with pytest.raises(InvalidInputError, match=rf"{named}.*what is staged stays"):
            attempt.run(table, at_a_time)
        # The function has not seen the id a second time, nor what was saved.
        assert function.seen == [*range(90, 90 + len(function.seen))]
        assert 90 + len(function.seen) <= max(90, twice[0] + 1)
    saved = Attempt(world, Function(), assert_unique=True).pieces()[-1].end
    # A batch that has an id twice, or ends before one that has, is not saved.
    assert saved == {1: 150, 7: 126}.get(at_a_time, 90)
    assert done(world, rows(0, ROWS), at_a_time=at_a_time, assert_unique=True) == ([*range(saved, ROWS)], None)
    assert landed(world) == [*range(ROWS)]
    assert len(staged_files(world)) == 1


@pytest.mark.parametrize("mode", ["overwrite", "upsert"])
def test_modes_that_take_rows_away_go_on_behind_the_last_piece(modal, mode):
    changes = UPSERT if mode == "upsert" else {"mode": mode}
    before = [row["id"] for row in modal.read()] if mode == "upsert" else []
    die(modal, rows(0, ROWS), 65, **changes)
    assert done(modal, rows(0, ROWS), **changes) == ([*range(60, ROWS)], None)
    assert [row["id"] for row in modal.read()] == sorted({*before, *range(ROWS)})


@pytest.mark.parametrize("kind", [mapped, batched])
def test_rows_that_fail_are_kept_once_with_what_is_done(world, kind):
    skip = {"on_error": OnError("skip")}
    function = failing.Function(fails_at=[3, 50, 150], dies_at=115)
    with pytest.raises(failing.Killed):
        Attempt(world, kind(function), **skip).run(rows(0, ROWS))
    last = Attempt(world, kind(again := failing.Function(fails_at=[3, 50, 150])), **skip)
    last.run(rows(0, ROWS))
    (record,) = last.attempt.checkpoint.staged([split.id for split in last.round.missing])
    assert again.seen[0] == 90
    assert (record.rows, record.input_rows, sum(file.rows for file in record.rejected)) == (ROWS - 3, ROWS, 3)


def test_rows_that_are_left_out_need_room_on_the_disk_and_an_error_says_where(world, monkeypatch, tmp_path):
    die(world, rows(0, ROWS), 65)
    attempt = Attempt(world, Function())
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
        with pytest.raises(StageFailedError, match=r"kept in the temporary folder .*full .*TMPDIR"):
            attempt.run(rows(0, ROWS))
    assert done(world, rows(0, ROWS)) == ([*range(60, ROWS)], None)


def test_a_write_that_saves_no_buckets_any_more_stages_the_whole_one_and_removes_what_was_saved(world):
    die(world, rows(0, ROWS), 65)
    attempt = Attempt(world, function := Function())
    (split,) = attempt.round.missing
    FrameTask(attempt.work, {0: split}, ("id",), placed=False, keep_ids=False, assert_unique=False).run(
        iter(rows(0, ROWS).to_batches()), 0, "0"
    )
    attempt.land()
    assert function.seen == [*range(ROWS)]
    assert landed(world) == [*range(ROWS)]
    assert len(staged_files(world)) == 1


def test_a_bucket_that_is_done_before_its_first_piece_leaves_none(world):
    assert done(world, rows(0, 20)) == ([*range(20)], None)
    assert pieces(world) == []


def test_a_piece_whose_file_is_gone_is_computed_again_with_all_of_its_bucket(world):
    die(world, rows(0, ROWS), 115)
    os.unlink(staged_files(world)[0])
    assert done(world, rows(0, ROWS)) == ([*range(ROWS)], None)
    assert landed(world) == [*range(ROWS)]


def test_a_piece_of_a_bucket_that_does_not_say_which_ids_are_done_counts_for_none(world):
    """As of another version, or of an altered store."""
    die(world, rows(0, ROWS), 115)
    attempt = Attempt(world, Function())
    checkpoint, (split,) = attempt.attempt.checkpoint, attempt.round.missing
    forge(checkpoint.store, checkpoint.paths.piece(input_id(split), 2), attempt.pieces()[2], ids=None)
    assert done(world, rows(0, ROWS)) == ([*range(ROWS)], CHANGED)
    assert landed(world) == [*range(ROWS)]
    assert len(staged_files(world)) == 1
