"""``create_if_missing``: the first write makes its table, in the commit of its rows; whoever finds one does what its mode says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from contract.table.both import FOREIGN, Iceberg, Lance, kinds, marked, nothing, of
from pyiceberg.transforms import DayTransform
from support.world import rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, now
from airflow_ckpt_provider.checkpoint.documents import Group
from airflow_ckpt_provider.checkpoint.group import bind
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    DiscardedError,
    DuplicateKeyError,
    EmptyInputError,
    InvalidInputError,
    RolledBackError,
    TableExistsError,
    TableMissingError,
)
from airflow_ckpt_provider.write.cleanup import clean
from airflow_ckpt_provider.write.membership import group_id_of
from airflow_ckpt_provider.write.undoing import undo

MISSING = {"create_if_missing": True}


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    world = request.param(tmp_path)
    world.put_files(files=4)
    return world


def request_of(world, key="orders", *, mode="append", parameters=None, **changes):
    return world.request(key, mode=mode, parameters=MISSING | (parameters or {}), **changes)


def generations(world, key="orders"):
    latest = Checkpoint.latest(world.store, IdempotenceKey(key))
    return [checkpoint.header for checkpoint in [*latest.earlier_generations(), latest]]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_the_first_write_makes_the_table_with_its_rows_and_not_before(world, mode):
    attempt = world.stage(request_of(world, mode=mode))
    assert not world.there
    assert world.commit(attempt)[0].landed_now
    assert world.read() == of(range(400))
    assert world.commits() == 1


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_the_next_write_does_what_its_mode_says(world, mode):
    world.commit(world.stage(request_of(world, "first", mode=mode)))
    world.commit(world.stage(request_of(world, "second", mode=mode)))
    twice = of(range(400)) if mode == "overwrite" else sorted(of(range(400)) * 2, key=lambda row: row["id"])
    assert world.read() == twice
    assert world.commits() == 2


def test_a_retry_goes_on_with_what_was_staged_for_the_table_to_be(world):
    world.stage(request_of(world), splits=2)
    attempt = world.stage(request_of(world))
    assert len(attempt.checkpoint.attempts()) == 2
    assert attempt.recovered(attempt.seal()) == 2
    world.commit(attempt)
    assert world.read() == of(range(400))
    assert len(generations(world)) == 1


def test_the_retry_of_a_commit_that_made_the_table_finds_it(world):
    attempt = world.stage(request_of(world))
    world.commit(attempt)
    (world.root / "store" / attempt.checkpoint.paths.commit).unlink()
    assert not world.commit(attempt)[0].landed_now
    (world.root / "store" / attempt.checkpoint.paths.commit).unlink()
    assert world.stage(request_of(world)).commit is not None
    assert world.read() == of(range(400))
    assert world.commits() == 1


def test_of_two_that_make_the_table_one_does_and_the_other_adds_its_rows_once_its_stage_was_cleared(world):
    first, second = world.stage(request_of(world, "first")), world.stage(request_of(world, "second"))
    world.commit(first)
    for _ in range(2):
        with pytest.raises(TableExistsError, match="With create_if_missing=True, clear the stage"):
            world.commit(second)
    cleared = world.stage(request_of(world, "second"))
    assert world.commit(cleared)[0].landed_now
    assert world.read() == sorted(of(range(400)) * 2, key=lambda row: row["id"])
    with pytest.raises((DiscardedError, TableExistsError)):
        world.commit(second)
    assert world.stage(request_of(world, "second")).commit is not None
    assert [header.table.creation is not None for header in generations(world, "second")] == [True, False]
    # Of the table that did not come into being, nothing is touched below the one that did.
    left = list(clean(cleared.checkpoint, lambda _: world.as_table()))
    assert [bool(generation.left) for generation in left] == [True, False]
    assert world.commits() == 2


def test_a_table_that_came_into_being_before_all_was_staged_is_written_into(world):
    world.stage(request_of(world), splits=2)
    world.make(FOREIGN)
    world.commit(world.stage(request_of(world)))
    assert world.read() == [*of(range(400)), *of(FOREIGN)]


def test_a_table_that_is_there_is_what_the_write_is_bound_to_and_the_option_is_not(world):
    world.make(FOREIGN)
    world.stage(world.request(), splits=2)
    attempt = world.stage(request_of(world))
    assert attempt.checkpoint.header.parameters == {}
    world.commit(attempt)
    assert world.read() == [*of(range(400)), *of(FOREIGN)]
    world.drop()
    # What was committed into a table that is gone is not written into another one in silence.
    with pytest.raises((TableMissingError, BindingMismatchError)):
        world.stage(request_of(world))


def test_a_table_that_was_made_and_dropped_since_is_not_made_again_by_the_same_write(world):
    world.commit(world.stage(request_of(world)))
    world.drop()
    with pytest.raises(RolledBackError):
        world.stage(request_of(world)).verify_commit()
    assert not world.there


def test_a_commit_that_was_begun_before_another_writer_made_the_table_is_given_up_and_its_rows_are_added(world):
    first, second = world.stage(request_of(world, "first")), world.stage(request_of(world, "second"))
    members = (second.checkpoint.member,)
    group = Group(id=group_id_of(members), members=members, stream=second.checkpoint.header.stream, bound_at=now(), horizon=0)
    bind(second.checkpoint, group)
    world.commit(first)
    with pytest.raises(TableExistsError):
        world.commit(second)
    world.commit(world.stage(request_of(world, "second")))
    with pytest.raises((DiscardedError, TableExistsError)):
        world.commit(second)
    assert world.read() == sorted(of(range(400)) * 2, key=lambda row: row["id"])


def test_a_replacement_of_the_write_that_made_the_table_replaces_its_rows(world):
    world.commit(world.stage(request_of(world)))
    shutil.rmtree(world.input)
    world.input.mkdir()
    world.put_files(files=1)
    replace = {"on_rerun": "replace", "on_change": "restart"}
    world.commit(world.stage(request_of(world, **replace)))
    assert world.read() == of(range(100))
    world.put_files(files=2)
    world.commit(world.stage(request_of(world, restart_token="again", **replace)))
    assert world.read() == of(range(200))


def test_a_write_that_made_the_table_can_be_undone_and_lands_in_it_when_it_is_run_again(world):
    attempt = world.stage(request_of(world))
    world.commit(attempt)
    undo(attempt.checkpoint, world.as_table(), "a test")
    assert world.there
    assert world.read() == []
    world.commit(world.stage(request_of(world)))
    assert world.read() == of(range(400))
    assert generations(world)[0].table.creation is not None
    assert generations(world)[-1].table.creation is None


def test_without_rows_nobody_can_tell_what_the_table_is_to_be(world):
    for file in world.input.glob("*"):
        file.unlink()
    with pytest.raises(EmptyInputError, match="cannot be told"):
        world.stage(request_of(world))
    assert list(Path(world.root / "store").rglob("*.json")) == []


def test_a_write_of_which_no_row_is_left_makes_the_table_without_rows(world):
    world.commit(world.stage(request_of(world, transform=nothing)))
    assert world.there
    assert world.read() == []


def test_without_the_option_the_error_names_it(world):
    with pytest.raises(TableMissingError, match="create_if_missing=True"):
        world.stage()


def test_a_schema_that_is_to_grow_is_that_of_the_rows_at_first(world):
    world.commit(world.stage(request_of(world, evolve_schema=True)))
    assert world.read() == of(range(400))


@pytest.fixture
def iceberg(tmp_path):
    world = Iceberg(tmp_path)
    world.put_files(files=4)
    return world


def test_an_upsert_makes_the_table_and_updates_it_from_then_on(iceberg):
    upsert = {"mode": "upsert", "parameters": {"upsert_keys": ["id"]}}
    first = iceberg.stage(request_of(iceberg, "first", **upsert))
    assert not iceberg.there
    iceberg.commit(first)
    assert iceberg.read() == of(range(400))
    iceberg.commit(iceberg.stage(request_of(iceberg, "second", transform=marked, **upsert)))
    assert kinds(iceberg) == (set(range(400)), set())


def test_keys_that_are_twice_in_the_first_source_of_an_upsert_are_refused(iceberg):
    (iceberg.input / "copy.parquet").write_bytes((iceberg.input / "0.parquet").read_bytes())
    with pytest.raises(DuplicateKeyError):
        iceberg.stage(request_of(iceberg, mode="upsert", parameters={"upsert_keys": ["id"]}))
    assert not iceberg.there


def test_keys_that_are_no_columns_of_the_rows_are_refused_before_anything_is_stored(iceberg):
    with pytest.raises(InvalidInputError, match="nosuch"):
        iceberg.stage(request_of(iceberg, mode="upsert", parameters={"upsert_keys": ["nosuch"]}))
    assert list((iceberg.root / "store").rglob("*.json")) == []


def test_partitions_are_overwritten_in_a_table_that_was_made_with_them(iceberg):
    overwrite = {"mode": "overwrite_partitions", "parameters": {"partition_by": ["day(at)"]}}
    iceberg.commit(iceberg.stage(request_of(iceberg, "first", **overwrite)))
    assert isinstance(iceberg.table().spec().fields[0].transform, DayTransform)
    iceberg.commit(iceberg.stage(request_of(iceberg, "second", **overwrite)))
    assert iceberg.read() == of(range(400))


def test_rows_of_a_filter_are_overwritten_in_a_table_that_was_made_with_them(iceberg):
    overwrite = {"mode": "overwrite", "parameters": {"overwrite_filter": "id < 400"}}
    iceberg.commit(iceberg.stage(request_of(iceberg, "first", **overwrite)))
    iceberg.table().append(rows(400, 5).cast(iceberg.table().schema().as_arrow()))
    iceberg.commit(iceberg.stage(request_of(iceberg, "second", **overwrite)))
    assert iceberg.read() == of(range(405))


def test_what_the_table_is_to_be_belongs_to_a_write_that_may_make_it(iceberg):
    for parameters in ({"partition_by": ["day(at)"]}, {"table_properties": {"a": "b"}}):
        with pytest.raises(InvalidInputError, match="belongs to mode='create', or to create_if_missing=True"):
            iceberg.stage(iceberg.request(parameters=parameters))
    with pytest.raises(InvalidInputError, match="needs partition_by"):
        iceberg.stage(request_of(iceberg, mode="overwrite_partitions"))


def test_two_stages_that_would_each_make_the_table_are_not_committed_together(world):
    staged = [world.stage(request_of(world, key)) for key in ("first", "second")]
    with pytest.raises(InvalidInputError, match="cannot create one table"):
        world.commit(*staged)
    assert not world.there
