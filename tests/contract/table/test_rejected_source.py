"""Rejected rows read by another write: exactly those, once, and none that the store makes up."""

from __future__ import annotations

import msgspec
import pytest
from contract.table.both import BEFORE, HALF, Iceberg, Lance
from support.failing import Function, asked, put, rejected_files, right
from support.forging import forge, forge_plan

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.checkpoint.signing import ConnectionKeys
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    CorruptObjectError,
    DiscardedError,
    InvalidInputError,
    NotSealedError,
    TooManyErrorsError,
)
from airflow_ckpt_provider.sources import Files, Rejected
from airflow_ckpt_provider.write.cleanup import clean

BAD = {3, 4, 40, 99, 120}


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    found = request.param(tmp_path)
    found.make()
    put(found, range(100), range(100, 150))
    return found


def skipped(world, **changes):
    """A sealed write that leaves out some rows, and the reference to it."""
    attempt = world.stage(asked(world, Function(BAD), **changes))
    return attempt, told(attempt)


def told(attempt):
    return reference(attempt.checkpoint, attempt.checkpoint.sealed(), State.SEALED, recovered=0, written=2)


def reads(world, checkpoint, function, key="again", **changes):
    """The write of what another one has rejected."""
    source = (changes.pop("source", None) or Rejected(checkpoint)).opened(world.store)
    return asked(world, function, key=key, source=source, **changes)


@pytest.mark.parametrize("by", ["reference", "key"])
def test_a_corrected_function_appends_what_was_rejected_once(world, by):
    attempt, pointer = skipped(world)
    world.commit(attempt)
    for _ in range(2):
        again = world.stage(reads(world, pointer if by == "reference" else "orders", function := Function(), on_error="fail"))
        world.commit(again)
    # The second time it is committed already.
    assert function.seen == []
    assert right(world, range(150))
    assert len(world.read()) == 150 + len(BEFORE)


def test_what_fails_again_is_rejected_by_the_second_write_and_read_by_a_third(world):
    world.commit(attempt := skipped(world)[0])
    second = world.stage(reads(world, told(attempt), Function({40, 99})))
    world.commit(second)
    assert told(second)["rejected"] == 2
    world.commit(world.stage(reads(world, told(second), third := Function(), key="third")))
    assert third.seen == [40, 99]
    assert right(world, range(150))


def test_the_errors_are_columns_if_they_are_asked_for(world):
    _, pointer = skipped(world)
    source = Rejected(pointer, with_errors=True).opened(world.store)
    plan = source.plan({})
    reader = source.reader({})
    found = [row for split in plan.splits for batch in reader.read(split, None) for row in batch.to_pylist()]
    assert {row["id"]: row["_error"] for row in found} == {one: f"ValueError: {one} is bad" for one in BAD}
    assert source.schema(plan, {}).names[-4:] == ["_error", "_traceback", "_split", "_row"]


def test_a_write_that_has_rejected_nothing_is_an_empty_source(world):
    attempt = world.stage(asked(world, Function()))
    world.commit(attempt)
    world.commit(world.stage(reads(world, told(attempt), Function())))
    assert right(world, range(150))


def test_a_signed_store_is_read_with_its_keys_and_tasks_do_not_get_them(world):
    world.store = CheckpointStore(world.store.location, ConnectionKeys(["0f" * 16]))
    _, pointer = skipped(world)
    source = Rejected(pointer).opened(world.store)
    assert sum(split.bytes for split in source.plan({}).splits) > 0
    assert source.reader({})._store.signer is None


def forged_seal(attempt, **changes):
    """Put another seal in the place of that of a write."""
    name = attempt.checkpoint.paths.seal()
    forge(attempt.checkpoint.store, name, msgspec.structs.replace(attempt.checkpoint.sealed(), **changes))


def test_a_seal_that_its_reference_does_not_vouch_for_is_not_believed(world):
    attempt, pointer = skipped(world)
    forged_seal(attempt, rejected=attempt.checkpoint.sealed().rejected[:1])
    with pytest.raises(BindingMismatchError, match="is not what the reference of its stage says"):
        world.stage(reads(world, pointer, Function()))


@pytest.mark.parametrize("how", ["altered", "gone"])
def test_a_file_of_rejected_rows_that_was_altered_or_removed_is_noticed(world, how):
    _, pointer = skipped(world)
    path = next(world.root.glob("store/*/g1/rejected/*.parquet"))
    if how == "gone":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(CorruptObjectError, match="is gone" if how == "gone" else "does not match the checksum"):
        world.stage(reads(world, pointer, Function()))


def test_a_plan_that_reads_rejected_rows_twice_is_noticed(world):
    _, pointer = skipped(world)
    attempt = world.attempt(reads(world, pointer, Function()))
    attempt.next_round()
    (split,) = attempt.checkpoint.plan().splits
    forge_plan(attempt.checkpoint, splits=(split, msgspec.structs.replace(split, id="000001")))
    with pytest.raises(CorruptObjectError, match="twice"):
        world.attempt(reads(world, pointer, Function())).next_round()


def test_a_write_that_is_not_sealed_or_given_up_has_rejected_nothing_yet(world):
    with pytest.raises(TooManyErrorsError):
        world.stage(asked(world, Function(BAD), max_errors=4))
    with pytest.raises(NotSealedError):
        world.stage(reads(world, "orders", Function()))
    attempt = world.stage(asked(world, Function(BAD), max_errors=5))
    attempt.checkpoint.discard("a test")
    with pytest.raises(DiscardedError):
        world.stage(reads(world, told(attempt), Function()))


def test_what_several_writes_have_rejected_is_read_once_each_in_splits_of_their_own(world):
    pointers = []
    for number, part in enumerate((range(100), range(100, 150))):
        attempt, pointer = skipped(world, key=f"orders/{number}", source=Files(f"{world.input}/{number}.parquet"))
        world.commit(attempt)
        pointers.append(pointer if number else attempt.checkpoint.key.value)
        assert pointer["rejected"] == len(BAD & {*part})
    again = world.stage(reads(world, pointers, function := Function()))
    world.commit(again)
    assert sorted(function.seen) == sorted(BAD)
    assert again.checkpoint.sealed().splits == 2
    assert right(world, range(150))


def test_a_key_that_is_given_twice_and_a_mapped_stage_that_is_not_whole_are_refused(world):
    _, pointer = skipped(world)
    with pytest.raises(InvalidInputError, match="'orders' is given twice"):
        Rejected([pointer, "orders"]).opened(world.store)
    with pytest.raises(InvalidInputError, match="returned no reference for 1 of its 2 instances"):
        Rejected([pointer | {"map_index": 1}]).opened(world.store)
    with pytest.raises(InvalidInputError, match=r"pass what a stage returns \(stage\.output\)"):
        Rejected(None)
    with pytest.raises(InvalidInputError, match="read what is in one store at a time"):
        Rejected([pointer, pointer | {"idempotence_key": "other", "checkpoint_conn_id": "elsewhere"}]).store_conn_id()


def cleaned(world, **how):
    return list(clean(Checkpoint.latest(world.store, world.request("orders").key), lambda _: world.as_table(), **how))


def test_a_clean_up_leaves_what_a_committed_write_has_left_out_and_removes_what_no_seal_names(world):
    with pytest.raises(TooManyErrorsError):
        world.stage(asked(world, Function(BAD), max_errors=4))
    attempt = world.stage(asked(world, Function({40}), max_errors=4))
    named = {f"{file.split}-{file.writer}.parquet" for file in attempt.checkpoint.sealed().rejected}
    assert cleaned(world)[0].files == 0
    world.commit(attempt)
    assert {*rejected_files(world)} > named
    assert cleaned(world)[0].files > 0
    assert {*rejected_files(world)} == named
    world.commit(world.stage(reads(world, told(attempt), Function())))
    assert right(world, range(150))


def test_a_clean_up_of_a_write_that_was_given_up_leaves_none_of_its_rejected_rows(world):
    skipped(world)
    cleaned(world, discard_unfinished=True)
    assert rejected_files(world) == []


MODES = {"overwrite": {"mode": "overwrite"}, "upsert": {"mode": "upsert", "parameters": {"upsert_keys": ["id"]}}}


@pytest.mark.parametrize("mode", MODES)
def test_modes_that_take_rows_away_leave_out_what_fails_and_run_it_again(world, mode):
    world.drop()
    world.make(HALF)
    with pytest.raises(TooManyErrorsError):
        world.stage(asked(world, Function(BAD), max_errors=4, **MODES[mode]))
    attempt = world.stage(asked(world, function := Function({40, 99}), max_errors=4, **MODES[mode]))
    assert {*function.seen} == BAD
    world.commit(attempt)
    made = {row["id"] for row in world.read() if row["kind"].startswith("made")}
    assert made == {*range(150)} - {40, 99}
    assert len(world.read()) == (148 if mode == "overwrite" else 148 + len(HALF))
    world.commit(world.stage(reads(world, told(attempt), Function(), **(MODES["upsert"] if mode == "upsert" else {}))))
    assert {row["id"] for row in world.read() if row["kind"].startswith("made")} == {*range(150)}


def test_rows_that_an_upsert_may_not_leave_out_any_more_run_again_with_their_split_once_the_table_was_looked_at(world):
    upsert = MODES["upsert"]
    # Killed after the first table split.
    world.stage(asked(world, Function(BAD), **upsert), splits=3)
    function = Function()
    attempt = world.stage(asked(world, function, on_error="retry", **upsert))
    assert {*function.seen} == {*range(150)}
    assert "rejected" not in told(attempt)
    world.commit(attempt)
    assert right(world, range(150))
