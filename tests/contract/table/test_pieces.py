"""A split that takes long: what of it is done when its task dies stays done, and the split lands as if nothing had happened."""

from __future__ import annotations

import os

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from contract.table.both import BEFORE, HALF, UPSERT, Iceberg, Lance, StableLance, StagedRows, of
from support.forging import forge
from support.world import rows

from airflow_ckpt_provider.checkpoint.documents import Piece
from airflow_ckpt_provider.checkpoint.pieces import input_id
from airflow_ckpt_provider.exceptions import CorruptObjectError, TransformError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.transforms import FlatMap, Map
from airflow_ckpt_provider.write.pieces import SaveEvery

#: Rows of the only split, and of the input between two pieces.
ROWS, SAVE = 200, 30

KINDS = {"iceberg": Iceberg, "lance": Lance, "lance with stable row ids": StableLance, "staged rows": StagedRows}


class Killed(BaseException):
    """The process of the task is gone. No error handler of ours sees that."""


class Function:
    """A transform that knows what it was called with, and may be killed.

    :param at: the id of the first row that it does not live to see.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.seen: list[int] = []

    def __call__(self, batch):
        ids = batch["id"].to_pylist()
        if self.at is not None and self.at in ids:
            raise Killed
        self.seen += ids
        return self.changed(batch)

    def changed(self, batch):
        return batch.set_column(2, "kind", pc.cast(pc.add(batch["id"], 1), pa.string()))


class Twice(Function):
    """One row becomes two."""

    def changed(self, batch):
        return batch.take(pa.array([index for index in range(batch.num_rows) for _ in range(2)]))


class Few(Function):
    """Only few rows yield anything."""

    def changed(self, batch):
        return batch.filter(pc.less(batch["id"], 15))


def one_split(kind, root):
    world = kind(root)
    pq.write_table(rows(0, ROWS), world.input / "0.parquet")
    return world


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def world(request, tmp_path):
    """A world with a table, and one input file of one split."""
    found = one_split(request.param, tmp_path)
    found.make()
    return found


@pytest.fixture(params=[Iceberg, Lance, StableLance], ids=["iceberg", "lance", "lance with stable row ids"])
def modal(request, tmp_path):
    """The same of the formats with modes that do more than add rows."""
    found = one_split(request.param, tmp_path)
    found.make(HALF)
    return found


def asked(world, function=None, save=SAVE, **changes):
    """The write of all input files, of which a piece is saved every so many rows."""
    facts = {
        "source": Files(f"{world.input}/*.parquet"),
        "save_every": SaveEvery(rows=save, seconds=None),
        "transform_version": "1",
    }
    return world.request(transform=function, **(facts | changes))


def staged_files(world):
    """Data files of this provider, whether any commit refers to them or not."""
    return sorted(path for path in world.files_on_disk() if path.endswith((".parquet", ".lance")))


def die(world, at, function=Function, **changes):
    """An attempt whose task is killed before it has done the row ``at``; what the function saw of the input."""
    function = function(at)
    with pytest.raises(Killed):
        world.stage(asked(world, function, **changes))
    return function.seen


def pieces(world, key="orders"):
    return sorted(path.name for path in world.root.glob("store/*/g1/pieces/*"))


def as_without_a_crash(world, kind, root, function, **changes):
    """The rows of a table into which the same was written at once."""
    other = one_split(kind, root / "other")
    other.make(*changes.pop("made", ()))
    other.commit(other.stage(asked(other, function(), save=None, **changes)))
    return other


def test_a_retry_calls_the_function_with_the_rows_behind_the_last_piece_only(world):
    assert die(world, at=115) == [*range(90)]
    assert [name.split(".")[2] for name in pieces(world)] == ["0", "1", "2"]
    function = Function()
    world.commit(world.stage(asked(world, function)))
    assert function.seen == [*range(90, ROWS)]
    assert [row for row in world.read() if row["id"] < ROWS] == [row | {"kind": str(row["id"] + 1)} for row in of(range(ROWS))]
    assert len(world.read()) == ROWS + len(BEFORE)


def test_what_several_attempts_have_done_before_they_failed_adds_up(world):
    seen = [die(world, at=at) for at in (35, 65, 125, 155)]
    assert seen == [[*range(30)], [*range(30, 60)], [*range(60, 120)], [*range(120, 150)]]
    world.commit(world.stage(asked(world, last := Function())))
    assert last.seen == [*range(150, ROWS)]
    assert [row["id"] for row in world.read() if row["id"] < ROWS] == [*range(ROWS)]


@pytest.mark.parametrize("function", [Function, Twice, Few])
def test_the_rows_are_those_of_a_write_without_a_crash_in_the_same_order_and_one_file(world, tmp_path, function):
    die(world, 65, function)
    die(world, 125, function)
    world.commit(world.stage(asked(world, function())))
    other = as_without_a_crash(world, type(world), tmp_path, function)
    assert world.read() == other.read()
    # One file of the split, and those of the pieces are removed.
    assert len(staged_files(world)) == len(staged_files(other)) == 1
    assert order_of(world) == order_of(other)


def order_of(world):
    """Ids in the order in which the staged file has them."""
    (path,) = staged_files(world)
    if path.endswith(".lance"):
        from lance.file import LanceFileReader

        return LanceFileReader(path).read_all().to_table()["id"].to_pylist()
    return pq.read_table(path)["id"].to_pylist()


def test_a_fast_split_leaves_no_pieces(world):
    world.stage(asked(world, Function(), save_every=SaveEvery()))
    assert pieces(world) == []


def test_rows_of_the_input_that_yield_nothing_are_done_all_the_same(world):
    die(world, at=155, function=Few)
    function = Few()
    world.commit(world.stage(asked(world, function)))
    assert function.seen == [*range(150, ROWS)]
    assert [row["id"] for row in world.read() if row["id"] < ROWS] == [*range(15)]


def test_a_task_that_was_killed_after_its_last_piece_does_not_call_the_function_again(world, monkeypatch):
    from airflow_ckpt_provider.write.work import SplitInPieces

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(SplitInPieces, "_rewritten", killed)
        with pytest.raises(Killed):
            world.stage(asked(world, Function()))
    function = Function()
    world.commit(world.stage(asked(world, function)))
    assert function.seen == []
    assert len(world.read()) == ROWS + len(BEFORE)


def test_a_piece_whose_file_is_gone_is_computed_again_with_all_of_its_split(world):
    die(world, at=115)
    os.unlink(staged_files(world)[0])
    function = Function()
    world.commit(world.stage(asked(world, function)))
    assert function.seen == [*range(ROWS)]
    assert [row["id"] for row in world.read() if row["id"] < ROWS] == [*range(ROWS)]


@pytest.mark.parametrize("mode", ["overwrite", "upsert"])
def test_modes_that_take_rows_away_go_on_behind_the_last_piece(modal, tmp_path, mode):
    changes = UPSERT if mode == "upsert" else {"mode": mode}
    die(modal, 65, **changes)
    function = Function()
    modal.commit(modal.stage(asked(modal, function, **changes)))
    assert function.seen == [*range(60, ROWS)]
    other = as_without_a_crash(modal, type(modal), tmp_path, Function, made=(HALF,), **changes)
    assert modal.read() == other.read()


def test_two_tasks_on_one_split_go_on_from_whichever_piece_was_first(world):
    slow = world.attempt(asked(world, function := Function(at=95)))
    (split,) = slow.next_round().missing
    work = slow.begin("test", 1)
    # Another attempt begins while that one is still there, and gets further.
    assert die(world, at=65) == [*range(60)]
    with pytest.raises(Killed):
        work.run(split, "0")
    # The slow task has computed its first piece for nothing, and then went on behind all those that were there.
    assert function.seen == [*range(30), *range(60, 90)]
    world.commit(world.stage(asked(world, last := Function())))
    assert last.seen == [*range(90, ROWS)]
    assert [row["id"] for row in world.read() if row["id"] < ROWS] == [*range(ROWS)]


def test_a_task_that_the_engine_runs_again_goes_on_behind_the_pieces_of_its_first_try(world):
    attempt = world.attempt(asked(world, function := Function(at=95)))
    (split,) = attempt.next_round().missing
    work = attempt.begin("test", 1)
    for again in (False, True):
        with pytest.raises(Killed):
            work.run(split, str(again), repeated=again)
    assert function.seen == [*range(90)]


@pytest.mark.parametrize("kind", [Map, FlatMap])
def test_a_function_of_rows_goes_on_at_the_row_where_it_failed(world, kind):
    """A piece may end after any row, and all rows that one row has become are there or none."""
    calls = []

    def changed(broken):
        def function(id, value, at):  # noqa: A002 - a column
            calls.append(id)
            if broken and id == 117:
                raise ValueError("no luck today")
            made = [{"id": id, "value": value, "kind": f"made {part}", "at": at} for part in range(1 + (kind is FlatMap))]
            return made if kind is FlatMap else made[0]

        return kind(function, output={"id": pa.int64(), "value": float, "kind": str, "at": pa.timestamp("us")})

    with pytest.raises(TransformError, match=r"at row 117 of the split's input \(id=117\): ValueError: no luck today"):
        world.stage(asked(world, changed(broken=True), save=25))
    calls.clear()
    world.commit(world.stage(asked(world, changed(broken=False), save=25)))
    assert calls == [*range(100, ROWS)]
    made = [row["id"] for row in world.read() if row["id"] < ROWS]
    assert made == sorted([*range(ROWS)] * (1 + (kind is FlatMap)))


def test_a_task_whose_split_another_stages_at_once_stops_and_takes_its_pieces_with_it(world):
    """The other one asked for larger pieces, so that it has left none, and knows of none."""
    function, others = Function(), []

    def overtaken(batch):
        if function.seen[-1:] == [59]:
            (work, split) = others.pop()
            assert work.run(split, "0")
        return function(batch)

    slow = world.attempt(asked(world, overtaken))
    (split,) = slow.next_round().missing
    work = slow.begin("test", 1)
    fast = world.attempt(asked(world, Function(), save=None))
    (same,) = fast.next_round().missing
    others.append((fast.begin("test", 1), same))
    assert not work.run(split, "0")
    assert function.seen == [*range(90)]
    assert len(staged_files(world)) == 1
    world.commit(world.stage(asked(world, Function())))
    assert [row["id"] for row in world.read() if row["id"] < ROWS] == [*range(ROWS)]


def test_a_piece_that_names_a_file_of_another_writer_is_refused(world):
    die(world, at=65)
    checkpoint = world.attempt(asked(world, Function())).checkpoint
    name = checkpoint.paths.piece(input_id(checkpoint.plan().splits[0]), 1)
    piece = checkpoint.store.read(name, Piece)
    foreign = tuple(msgspec.structs.replace(file, path=file.path.replace("-s", "-sx")) for file in piece.files)
    forge(checkpoint.store, name, piece, files=foreign)
    with pytest.raises(CorruptObjectError, match="Nothing was changed"):
        world.stage(asked(world, Function()))


def test_pieces_that_leave_rows_out_are_refused(world):
    die(world, at=65)
    checkpoint = world.attempt(asked(world, Function())).checkpoint
    name = checkpoint.paths.piece(input_id(checkpoint.plan().splits[0]), 1)
    forge(checkpoint.store, name, checkpoint.store.read(name, Piece), begin=40)
    with pytest.raises(CorruptObjectError, match="the piece before it ends at 30"):
        world.stage(asked(world, Function()))
