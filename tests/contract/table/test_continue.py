"""A function is corrected while a write is under way: what is staged stays, and the new code goes on with the rest."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from contract.table.both import BEFORE, Iceberg, Lance
from contract.table.test_pieces import ROWS, SAVE, Function, Killed, asked, die, one_split, order_of
from support.world import rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.codes import codes, request_continuation
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import BindingMismatchError, InvalidInputError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.tables.summary import COMPUTED_BY
from airflow_ckpt_provider.write.pieces import SaveEvery


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    """A world with a table, and one input file of one split."""
    world = one_split(request.param, tmp_path)
    world.make()
    return world


def latest(world, key="orders"):
    return Checkpoint.latest(world.store, IdempotenceKey(key))


def corrected(world, function=None, version="2", **changes):
    return asked(world, function or Function(), transform_version=version, **changes)


def summary(world):
    """What the last commit says of itself."""
    if isinstance(world, Iceberg):
        return dict(world.table().current_snapshot().summary.additional_properties)
    return dict(world.dataset.read_transaction(world.dataset.version).transaction_properties)


def test_other_code_is_refused_and_the_error_says_how_to_go_on(world):
    die(world, at=65)
    with pytest.raises(BindingMismatchError) as error:
        world.stage(corrected(world))
    assert "transform_version: was '1', is now '2'" in str(error.value)
    assert 'set on_change="continue" on the stage, or run airflow checkpoints continue orders once' in str(error.value)
    assert "rerun_with_latest_version" in str(error.value)


def test_the_new_code_goes_on_at_the_row_where_the_old_one_failed(world):
    die(world, at=65)
    function = Function()
    world.commit(world.stage(corrected(world, function, on_change="continue")))
    assert function.seen == [*range(2 * SAVE, ROWS)]
    assert len(world.read()) == ROWS + len(BEFORE)
    assert order_of(world) == [*range(ROWS)]


def test_which_code_has_computed_which_split_stands_in_record_reference_and_commit(world):
    pq.write_table(rows(ROWS, 5), world.input / "1.parquet")
    pq.write_table(rows(ROWS + 5, 5), world.input / "2.parquet")
    request = {"source": Files(f"{world.input}/*.parquet", max_split_bytes=1), "save_every": SaveEvery(rows=100, seconds=None)}
    world.stage(asked(world, Function(), **request), splits=2)
    attempt = world.stage(corrected(world, on_change="continue", **request))
    header = attempt.checkpoint.header
    (accepted,) = codes(attempt.checkpoint)
    new = attempt.checkpoint.staged(["000002"])[0].computed_by
    assert (accepted.version, accepted.request) == ("2", None)
    assert len(new) == 1
    assert [record.computed_by for record in attempt.checkpoint.staged(["000000", "000001"])] == [(), ()]
    told = {header.code: 2, new[0]: 1}
    assert reference(attempt.checkpoint, attempt.checkpoint.sealed(), State.SEALED, recovered=2, written=1)["computed_by"] == told
    world.commit(attempt)
    assert all(f'"{code}":{count}' in summary(world)[COMPUTED_BY] for code, count in told.items())


def test_a_write_of_one_code_says_nothing_of_codes(world):
    attempt = world.stage(asked(world, Function()))
    assert "computed_by" not in reference(attempt.checkpoint, attempt.checkpoint.sealed(), State.SEALED, recovered=0, written=1)
    world.commit(attempt)
    assert COMPUTED_BY not in summary(world)


def test_a_request_is_taken_up_by_the_next_attempt_and_serves_once(world):
    die(world, at=65)
    number = request_continuation(latest(world), "ann")
    # Asking again before it was served is asking once.
    assert request_continuation(latest(world), "ann") == number
    with pytest.raises(Killed):
        world.stage(corrected(world, Function(at=125)))
    assert [code.request for code in codes(latest(world))] == [number]
    with pytest.raises(BindingMismatchError):
        world.stage(corrected(world, version="3"))
    # A retry with the code that was accepted, and one with the first code, need no other request.
    with pytest.raises(Killed):
        world.stage(corrected(world, Function(at=185)))
    world.commit(world.stage(asked(world, last := Function())))
    assert last.seen == [*range(180, ROWS)]
    assert len(world.read()) == ROWS + len(BEFORE)


def test_another_input_is_refused_though_the_write_may_go_on_with_other_code(world):
    die(world, at=65)
    with pytest.raises(BindingMismatchError, match="source: was"):
        world.stage(corrected(world, on_change="continue", source=Files(f"{world.input}/0.parquet")))


def test_a_transform_of_another_kind_does_not_go_on(world, monkeypatch):
    die(world, at=65)
    monkeypatch.setattr(Transform, "kind", "something else")
    with pytest.raises(BindingMismatchError, match="It was a function from batches to batches, and is something else now"):
        world.stage(corrected(world, on_change="continue"))


def test_what_is_sealed_is_handed_on_and_what_is_committed_is_reported_whatever_the_code_is_now(world):
    first = world.stage(asked(world, Function()))
    again = world.stage(corrected(world, function := Function(), on_change="continue"))
    assert function.seen == []
    assert again.checkpoint.sealed() == first.checkpoint.sealed()
    world.commit(again)
    assert world.attempt(corrected(world, version="3", on_change="continue")).commit is not None


@pytest.mark.parametrize("done", ["committed", "without a transform"])
def test_a_request_that_nothing_can_serve_is_refused(world, done):
    attempt = world.stage(asked(world, None if done == "without a transform" else Function(), transform_version=None))
    if done == "committed":
        world.commit(attempt)
    with pytest.raises(InvalidInputError, match=r"nothing left to go on with|has no transform"):
        request_continuation(latest(world), "ann")


def test_what_is_committed_is_replaced_as_a_whole_by_the_code_as_it_is_now(world):
    world.commit(world.stage(asked(world, Function())))
    request = corrected(world, function := Function(), on_change="continue", on_rerun="replace")
    attempt = world.stage(request)
    world.commit(attempt)
    assert attempt.checkpoint.header.generation == 2
    assert function.seen == [*range(ROWS)]
    assert "computed_by" not in reference(attempt.checkpoint, attempt.checkpoint.sealed(), State.SEALED, recovered=0, written=1)
    assert len(world.read()) == ROWS + len(BEFORE)
