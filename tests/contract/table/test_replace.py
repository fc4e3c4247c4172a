"""``on_rerun="replace"``: the files of the earlier generation go, the new ones come, in one snapshot, and nothing else changes."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from contract.table.scenes import (
    BEFORE,
    MODES,
    NEW,
    OVERWRITE,
    SPECS,
    UPSERT,
    append,
    own_snapshots,
    partition_of,
    put,
    rows,
    world_with,
)
from protocol.crash.maintenance import expire_all_but_the_head, forget_the_record, roll_back_to
from pyiceberg.table.snapshots import Operation
from support.foreign import added_by, compact, delete_by_equality, delete_positions
from support.readers import assert_same_everywhere

from airflow_ckpt_provider.exceptions import BindingMismatchError, DiscardedError, RolledBackError, TableMovedError

SPEC = SPECS["several"]

#: Matches the filter of one of the modes, and partitions of the rows before.
FOREIGN = rows(96, 4)


@pytest.fixture(params=MODES, ids=str)
def mode(request):
    return request.param


@pytest.fixture
def world(tmp_path):
    world = world_with(tmp_path, SPEC)
    put(world, NEW[:2], NEW[2:])
    return world


def fewer(batch):
    return batch.slice(1)


FEWER = [NEW[1], NEW[3]]
REPLACE = {"on_rerun": "replace"}
CHANGED = {"on_rerun": "replace", "on_change": "restart", "transform": fewer}


def after(mode, new, foreign=()):
    return mode.after(BEFORE, NEW, SPEC)[: -len(NEW)] + list(foreign) + new


def test_the_rows_of_the_earlier_run_are_replaced_and_those_of_others_are_not(world, mode):
    world.commit(world.stage(mode.request(world)))
    append(world.table(), FOREIGN)
    (settled,) = world.commit(world.stage(mode.request(world, **CHANGED)))
    assert settled.landed_now
    assert settled.checkpoint.header.generation == 2
    assert_same_everywhere(world.table(), after(mode, FEWER, FOREIGN))
    _, second = own_snapshots(world)
    assert second.summary.operation == Operation.OVERWRITE
    assert int(second.summary["deleted-records"]) == len(NEW)
    assert int(second.summary["added-records"]) == len(FEWER)


def test_it_can_be_replaced_again_and_again(world, mode):
    world.commit(world.stage(mode.request(world)))
    for changes, new in ((CHANGED, FEWER), (REPLACE | {"on_change": "restart"}, NEW), (REPLACE, NEW)):
        world.commit(world.stage(mode.request(world, **changes)))
        assert_same_everywhere(world.table(), after(mode, new))
    assert len(own_snapshots(world)) == 4


def test_a_run_without_rows_takes_the_rows_of_the_earlier_away(world, mode):
    world.commit(world.stage(mode.request(world)))
    world.commit(world.stage(mode.request(world, on_rerun="replace", on_change="restart", transform=nothing)))
    assert_same_everywhere(world.table(), after(mode, []))
    world.commit(world.stage(mode.request(world, on_rerun="replace", on_change="restart")))
    assert_same_everywhere(world.table(), after(mode, NEW))


def nothing(batch):
    return batch.slice(0, 0)


def test_one_that_stopped_halfway_is_resumed_and_replaces_the_same_files(world, mode):
    world.commit(world.stage(mode.request(world)))
    begun = world.stage(mode.request(world, **CHANGED), splits=1)
    again = world.stage(mode.request(world, **CHANGED))
    assert again.checkpoint.header == begun.checkpoint.header
    world.commit(again)
    assert_same_everywhere(world.table(), after(mode, FEWER))


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "halfway"])
def test_one_that_is_restarted_replaces_what_the_given_up_one_was_to_replace(world, mode, sealed):
    world.commit(world.stage(mode.request(world)))
    given_up = world.stage(mode.request(world, **CHANGED), splits=None if sealed else 1)
    world.commit(world.stage(mode.request(world, **REPLACE, restart_token="now", transform=fewer)))
    assert_same_everywhere(world.table(), after(mode, FEWER))
    if sealed:
        with pytest.raises(DiscardedError):
            world.commit(given_up)


def test_a_restart_of_a_committed_write_replaces_it_where_it_may_be_replaced(world, mode):
    world.commit(world.stage(mode.request(world)))
    request = mode.request(world, **REPLACE, restart_token="now", transform=fewer)
    world.commit(world.stage(request))
    assert_same_everywhere(world.table(), after(mode, FEWER))
    assert own_snapshots(world)[-1].summary["airflow.checkpoint.generation"] == "2"


def test_a_replacement_whose_record_was_lost_is_found_and_not_made_twice(world, mode):
    world.commit(world.stage(mode.request(world)))
    second = world.stage(mode.request(world, **CHANGED))
    world.commit(second)
    forget_the_record(world, second.checkpoint)
    (found,) = world.commit(second)
    assert not found.landed_now
    forget_the_record(world, second.checkpoint)
    third = world.stage(mode.request(world, on_rerun="replace", on_change="restart"))
    assert third.checkpoint.header.replaces == 2
    world.commit(third)
    assert_same_everywhere(world.table(), after(mode, NEW))


def test_expired_history_does_not_hinder(world, mode):
    world.commit(world.stage(mode.request(world)))
    append(world.table(), FOREIGN)
    expire_all_but_the_head(world)
    world.commit(world.stage(mode.request(world, **CHANGED)))
    assert_same_everywhere(world.table(), after(mode, FEWER, FOREIGN))


def assert_refused(world, mode, message, *, change, staged):
    """The replacement is refused when it is committed, or before anything is read; the key stays what it is then."""
    attempt = world.stage(mode.request(world, **CHANGED)) if staged else None
    change()
    before = world.table().metadata_location
    with pytest.raises(TableMovedError, match=message):
        world.commit(attempt or world.stage(mode.request(world, **CHANGED)))
    assert world.table().metadata_location == before
    if attempt is None:
        again = world.stage(mode.request(world))
        assert again.commit is not None
        assert again.checkpoint.header.generation == 1


STAGED = pytest.mark.parametrize("staged", [False, True], ids=["before it is staged", "after it is staged"])


@STAGED
def test_after_compaction_it_is_refused_with_what_to_do(world, mode, staged):
    world.commit(world.stage(mode.request(world)))
    message = r"generation 1 .* under another idempotence key"
    assert_refused(world, mode, message, change=lambda: compact(world.table()), staged=staged)


def first_of(file):
    """The first row of a data file."""
    (row,) = pq.read_table(file.file_path.removeprefix("file://")).slice(0, 1).to_pylist()
    return row


def last_added(table):
    """A file of the last snapshot."""
    return next(file for file, added in added_by(table) if added == table.current_snapshot().snapshot_id)


def delete_by_position(table, file):
    """Delete the first row of a file, as an update does that writes its row elsewhere."""
    delete_positions(table, {file.file_path: [0]}, file.partition)


def delete_by_value(table, file):
    """The same, as streaming writers do it."""
    delete_by_equality(table, "id", first_of(file)["id"], file.partition)


@STAGED
@pytest.mark.parametrize("delete", [delete_by_position, delete_by_value])
@pytest.mark.parametrize("expired", [False, True], ids=["", "expired"])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != UPSERT], ids=str)
def test_rows_that_others_have_updated_since_are_not_doubled(world, mode, delete, expired, staged):
    """Where an updated row stands by now, no file tells; so it is not told from a deleted one either."""
    world.commit(world.stage(mode.request(world)))

    def change():
        delete(world.table(), last_added(world.table()))
        if expired:
            expire_all_but_the_head(world)

    message = r"deleted or updated by others .* under another idempotence key"
    assert_refused(world, mode, message, change=change, staged=staged)


def test_rows_that_others_have_updated_are_found_by_their_keys(world):
    world.commit(world.stage(UPSERT.request(world)))
    file = last_added(world.table())
    delete_by_position(world.table(), file)
    append(world.table(), [first_of(file) | {"value": 99.0}])
    world.commit(world.stage(UPSERT.request(world, **REPLACE)))
    assert_same_everywhere(world.table(), BEFORE + NEW)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != OVERWRITE], ids=str)
def test_deletes_in_files_of_others_do_not_hinder(world, mode):
    old = {file.file_path for file, _ in added_by(world.table())}
    world.commit(world.stage(mode.request(world)))
    new = {partition_of(SPEC)(row) for row in NEW}
    kept = [file for file, _ in added_by(world.table()) if file.file_path in old]
    file = next(file for file in kept if partition_of(SPEC)(first_of(file)) not in new)
    delete_by_position(world.table(), file)
    world.commit(world.stage(mode.request(world, **CHANGED)))
    assert_same_everywhere(world.table(), [row for row in after(mode, FEWER) if row["id"] != first_of(file)["id"]])


def test_after_a_roll_back_it_is_refused(world, mode):
    head = world.table().current_snapshot().snapshot_id
    world.commit(world.stage(mode.request(world)))
    staged = world.stage(mode.request(world, **CHANGED))
    roll_back_to(world, head)
    with pytest.raises(TableMovedError, match="generation 1"):
        world.commit(staged)
    assert_same_everywhere(world.table(), BEFORE)


def test_a_rolled_back_write_is_not_replaced(world, mode):
    head = world.table().current_snapshot().snapshot_id
    world.commit(world.stage(mode.request(world)))
    roll_back_to(world, head)
    with pytest.raises(RolledBackError):
        world.stage(mode.request(world, **CHANGED))
    assert_same_everywhere(world.table(), BEFORE)


def test_without_a_change_policy_another_transform_is_refused(world, mode):
    world.commit(world.stage(mode.request(world)))
    with pytest.raises(BindingMismatchError, match="transform"):
        world.stage(mode.request(world, on_rerun="replace", transform=fewer))


def test_a_write_in_another_mode_does_not_replace(world, mode):
    world.commit(world.stage(mode.request(world)))
    other = next(other for other in MODES if other.name != mode.name)
    with pytest.raises(BindingMismatchError, match="cannot be replaced one for one"):
        world.stage(other.request(world, on_rerun="replace", on_change="restart"))


def test_reuse_is_the_default_and_changes_nothing(world, mode):
    world.commit(world.stage(mode.request(world)))
    before = world.table().metadata_location
    attempt = world.stage(mode.request(world))
    assert attempt.commit is not None
    assert world.table().metadata_location == before
