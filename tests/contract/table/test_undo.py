"""An undo takes out what a key has landed and puts back what that has replaced, in one commit, once; or changes nothing.

The rows are read back by the format's own library, as anybody else would.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import msgspec
import pytest
from contract.table.both import (
    ALL,
    BEFORE,
    FOREIGN,
    HALF,
    REPLACE,
    UPSERT,
    Iceberg,
    Lance,
    StableLance,
    StagedRows,
    marked,
    nothing,
    of,
    only_even,
)
from protocol.crash.maintenance import expire_all_but_the_head, forget_the_record
from support.foreign import delete_positions
from support.growing import grow, growing_table, run
from support.world import ORIGIN

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    RestartRefusedError,
    TableMovedError,
    UndoneError,
    UndoRefusedError,
)
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.write import commits
from airflow_ckpt_provider.write.cleanup import clean
from airflow_ckpt_provider.write.giving_up import give_up
from airflow_ckpt_provider.write.membership import group_of
from airflow_ckpt_provider.write.undoing import foresee, undo

KEY = IdempotenceKey("orders")

OVERWRITE = {"mode": "overwrite"}


@pytest.fixture(params=[Iceberg, Lance, StableLance], ids=["iceberg", "lance", "lance with stable row ids"])
def world(request, tmp_path):
    """A table with rows of somebody else, and four input files."""
    world = request.param(tmp_path)
    world.put_files()
    world.make()
    return world


def latest(world, key="orders"):
    return Checkpoint.latest(world.store, IdempotenceKey(key))


def take_out(world, key="orders", *, force=False):
    return undo(latest(world, key), world.as_table(), "ada", force=force)


def landed(world, key="orders", **changes):
    attempt = world.stage(world.request(key, **changes))
    world.commit(attempt)
    return attempt


def refused(world, match, key="orders", *, force=False):
    """Try it, and see that nothing was changed."""
    rows, commits, state = world.read(), world.commits(), state_of(latest(world, key))
    with pytest.raises(UndoRefusedError, match=match):
        foresee(latest(world, key), world.as_table(), force=force)
    with pytest.raises(UndoRefusedError, match=match):
        take_out(world, key, force=force)
    assert (world.read(), world.commits(), state_of(latest(world, key))) == (rows, commits, state)


# -- what is taken out, and what comes back --------------------------------------------------------------------------------


def test_an_append_is_taken_out_in_one_commit_and_the_rows_of_others_stay(world):
    landed(world)
    world.add()
    outcome = foresee(latest(world), world.as_table())
    assert (outcome.files, outcome.rows, outcome.files_back) == (4, 400, 0)
    commits = world.commits()
    done = take_out(world)
    assert done.landed_now
    assert world.read() == of(BEFORE, FOREIGN)
    assert world.commits() == commits + 1
    assert state_of(latest(world)) is State.UNDONE


def test_an_undo_that_is_asked_for_again_finds_that_it_is_done(world):
    landed(world)
    first = take_out(world)
    commits = world.commits()
    assert foresee(latest(world), world.as_table()) is None
    again = take_out(world, force=True)
    assert (again.landed_now, again.commit) == (False, first.commit)
    forget_the_record(world, first.undo)
    found = take_out(world)
    assert (found.landed_now, found.commit.commit_id) == (False, first.commit.commit_id)
    assert world.commits() == commits


def test_an_overwrite_gives_back_the_rows_that_it_has_replaced(world):
    landed(world, **OVERWRITE)
    assert world.read() == of(ALL)
    assert take_out(world).landed_now
    assert world.read() == of(BEFORE)


def test_an_upsert_gives_back_the_rows_that_it_has_updated(tmp_path):
    for kind in (Iceberg, Lance, StableLance):
        world = kind(tmp_path / kind.__name__)
        world.put_files()
        world.make(HALF)
        before = world.read()
        landed(world, transform=marked, **UPSERT)
        assert len(world.read()) == 600
        take_out(world)
        assert world.read() == before


def test_a_table_that_the_write_has_created_stays_and_is_empty(tmp_path):
    for kind in (Iceberg, Lance):
        world = kind(tmp_path / kind.__name__)
        world.put_files()
        landed(world, mode="create")
        take_out(world)
        assert world.there
        assert world.read() == []
        # What the stage writes then lands in it.
        landed(world, mode="create")
        assert world.read() == of(ALL)
        take_out(world)
        world.drop()
        landed(world, mode="create")
        assert world.read() == of(ALL)


def test_the_undo_of_a_replacement_brings_back_what_that_has_replaced(world):
    landed(world)
    landed(world, transform=only_even, **REPLACE)
    assert len(world.read()) == 200 + len(BEFORE)
    take_out(world)
    assert world.read() == of(ALL, BEFORE)


def test_writes_are_undone_one_after_the_other_the_latest_first(world):
    landed(world, "first", **OVERWRITE)
    landed(world, "second", transform=only_even, **OVERWRITE)
    refused(world, "was|were built on it|files of the table were removed|not in the table any more", "first")
    take_out(world, "second")
    assert world.read() == of(ALL)
    take_out(world, "first")
    assert world.read() == of(BEFORE)


def test_of_several_keys_that_have_landed_together_one_is_taken_out(world):
    attempts = []
    for index in range(2):
        source = Files(f"{world.input}/{index}.parquet", max_split_bytes=1)
        origin = msgspec.structs.replace(ORIGIN, map_index=index)
        attempts.append(world.stage(world.request(f"orders/{index}", source=source, origin=origin)))
    world.commit(*attempts)
    take_out(world, "orders/0")
    assert world.read() == of(range(100, 200), BEFORE)
    take_out(world, "orders/1")
    assert world.read() == of(BEFORE)


# -- what is refused -------------------------------------------------------------------------------------------------------


def test_what_others_have_compacted_is_not_taken_out(world):
    landed(world)
    world.compact()
    refused(world, "not in")
    assert not world.commit(world.stage())[0].landed_now


def test_an_overwrite_after_which_others_have_added_rows_is_undone_by_force_in_iceberg_only(world):
    landed(world, **OVERWRITE)
    world.add()
    refused(world, "cannot be undone: it has replaced rows, and since then 1 files were added|later versions were built on it")
    if isinstance(world, Iceberg):
        assert take_out(world, force=True).landed_now
        assert world.read() == of(BEFORE, FOREIGN)
    else:
        refused(world, "later versions were built on it", force=True)


def test_what_has_not_landed_is_not_undone(world):
    world.stage(splits=2)
    refused(world, "nothing of it has landed")
    world.stage()
    refused(world, "To give up what is staged, discard it")
    assert world.commit(world.stage())[0].landed_now


def test_a_write_that_had_nothing_to_write_is_not_undone(world):
    landed(world, transform=nothing)
    refused(world, "had nothing to write")


def test_what_was_replaced_and_deleted_since_does_not_come_back(world):
    landed(world, **OVERWRITE)
    if isinstance(world, Iceberg):
        kept = world.referenced_files()
        for path in (world.root / "warehouse").rglob("*.parquet"):
            if str(path) not in kept:
                path.unlink()
        refused(world, "1 of 1 files that it has replaced were deleted since")
    else:
        world.dataset.cleanup_old_versions(older_than=timedelta(0))
        with pytest.raises(UndoRefusedError, match="was cleaned up"):
            take_out(world)
        assert world.read() == of(ALL)


def test_rows_that_are_staged_for_another_task_are_not_undone(tmp_path):
    world = StagedRows(tmp_path)
    world.put_files()
    world.make()
    landed(world)
    refused(world, "rows of the format 'staged' are not committed")


def test_a_stage_cannot_have_the_mode(world):
    with pytest.raises(InvalidInputError, match="is no mode of a stage"):
        world.stage(world.request("other", mode="undo"))
    with pytest.raises(InvalidInputError, match=r"the modes are create, append, overwrite, .*upsert(, add_columns)?\.$"):
        world.stage(world.request("other", mode="typo"))


# -- what becomes of the key -----------------------------------------------------------------------------------------------


def test_the_commit_of_what_was_undone_is_refused_whether_the_store_remembers_it_or_not(world):
    attempt = landed(world)
    done = take_out(world)
    for checkpoint in (None, attempt.checkpoint, done.undo):
        if checkpoint is not None:
            forget_the_record(world, checkpoint)
        with pytest.raises(UndoneError, match=r"was undone at .*, by .*To write it anew: clear the task 'stage', then its commit"):
            world.commit(attempt)
    assert world.read() == of(BEFORE)


@pytest.mark.parametrize("changes", [{}, OVERWRITE], ids=["append", "overwrite"])
def test_a_stage_that_is_cleared_after_an_undo_writes_everything_anew_and_lands_it_once(world, changes):
    landed(world, **changes)
    take_out(world)
    again = world.stage(world.request(**changes))
    assert again.checkpoint.header.generation == 3
    assert world.read() == of(BEFORE)
    assert world.commit(again)[0].landed_now
    assert world.read() == (of(ALL) if changes else of(ALL, BEFORE))
    assert not world.commit(world.stage(world.request(**changes)))[0].landed_now
    # And that can be undone, too.
    take_out(world)
    assert world.read() == of(BEFORE)


def test_a_replacement_after_an_undo_replaces_nothing(world):
    landed(world)
    take_out(world)
    landed(world, transform=only_even, **REPLACE)
    assert len(world.read()) == 200 + len(BEFORE)


def begun(world):
    """An undo whose task was killed before it has bound its commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_ckpt_provider.write.undoing.put_seal", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take_out(world)


def test_a_stage_waits_for_an_undo_that_was_begun(world):
    landed(world)
    begun(world)
    with pytest.raises(UndoneError, match=r"was begun, and has not landed.*airflow checkpoints undo orders"):
        world.stage()
    assert world.read() == of(ALL, BEFORE)
    take_out(world)
    assert world.commit(world.stage())[0].landed_now
    assert world.read() == of(ALL, BEFORE)


def test_an_undo_that_was_given_up_leaves_everything_as_it_was(world):
    attempt = landed(world)
    begun(world)
    give_up(latest(world), world.as_table(), "ada changed her mind")
    assert not world.commit(attempt)[0].landed_now
    assert world.stage().commit is not None
    landed(world, transform=only_even, **REPLACE)
    assert len(world.read()) == 200 + len(BEFORE)
    assert latest(world).header.generation == 3
    take_out(world)
    assert world.read() == of(ALL, BEFORE)


def test_an_undo_that_has_landed_is_not_given_up(world):
    landed(world)
    take_out(world)
    with pytest.raises(RestartRefusedError, match="is committed to"):
        give_up(latest(world), world.as_table(), "ada changed her mind")


def test_a_commit_that_comes_in_between_leaves_no_undo_behind(world, monkeypatch):
    attempt = landed(world)
    real = Checkpoint.pin

    def meanwhile(self, *args):
        world.compact()
        return real(self, *args)

    monkeypatch.setattr(Checkpoint, "pin", meanwhile)
    with pytest.raises((UndoRefusedError, TableMovedError)):
        take_out(world)
    monkeypatch.undo()
    assert latest(world).header.generation == 1
    assert not world.commit(attempt)[0].landed_now
    assert world.read() == of(ALL, BEFORE)


def test_of_many_that_undo_at_the_same_time_one_lands(world):
    landed(world)
    commits = world.commits()
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda _: take_out(world), range(6)))
    assert sum(one.landed_now for one in done) <= 1
    assert len({one.commit.commit_id for one in done}) == 1
    assert world.read() == of(BEFORE)
    assert world.commits() == commits + 1


# -- sources that are read increment by increment --------------------------------------------------------------------------


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def following(request, tmp_path):
    """A table that follows another one, which has two rows."""
    source = growing_table(tmp_path / "source")
    world = request.param(tmp_path / "target")
    world.make()
    return world, source


def ids(world):
    return [row["id"] for row in world.read()]


def test_the_watermark_goes_back_with_the_rows(following):
    world, source = following
    run(world, source, "first")
    grow(source, range(2, 4))
    run(world, source, "second")
    take_out(world, "second")
    assert ids(world) == [*range(2), *BEFORE]
    run(world, source, "second")
    assert ids(world) == [*range(4), *BEFORE]


def test_the_first_increment_is_read_from_the_beginning_again(following):
    world, source = following
    run(world, source, "first")
    take_out(world, "first")
    assert ids(world) == [*BEFORE]
    grow(source, range(2, 4))
    run(world, source, "second")
    assert ids(world) == [*range(4), *BEFORE]


def test_an_increment_after_which_another_was_read_is_not_undone(following):
    world, source = following
    run(world, source, "first")
    grow(source, range(2, 4))
    run(world, source, "second")
    with pytest.raises(UndoRefusedError, match=r"Undo those( increments)? first"):
        take_out(world, "first")
    assert ids(world) == [*range(4), *BEFORE]
    take_out(world, "second")
    take_out(world, "first")
    assert ids(world) == [*BEFORE]
    run(world, source, "third")
    assert ids(world) == [*range(4), *BEFORE]


# -- what comes back is what was there, deletes included -------------------------------------------------------------------


def test_rows_that_others_had_deleted_before_stay_deleted(tmp_path):
    for kind in (Iceberg, Lance, StableLance):
        world = kind(tmp_path / kind.__name__)
        world.put_files()
        world.make()
        world.add()
        delete_some(world)
        before = world.read()
        assert len(before) == len(BEFORE) + len(FOREIGN) - 2
        landed(world, **OVERWRITE)
        if not isinstance(world, Iceberg):
            refused(world, "had rows deleted in 2 fragments, and Lance lands no such fragments again")
            continue
        take_out(world)
        assert world.read() == before
        # A delete of what came back applies to it as to any other rows.
        world.add(range(3_000_000, 3_000_001))
        assert len(world.read()) == len(before) + 1


def delete_some(world):
    """Another writer deletes one row of each file, without rewriting it."""
    if isinstance(world, Iceberg):
        delete_positions(world.table(), {path: [0] for path in sorted(data_files(world))})
    else:
        world.dataset.delete(f"id IN ({BEFORE.start}, {FOREIGN.start})")


def data_files(world):
    return [task.file.file_path for task in world.table().scan().plan_files()]


# -- what is told when history is gone, or the store was altered -----------------------------------------------------------


def test_what_an_iceberg_write_has_replaced_and_was_expired_does_not_come_back_and_is_not_lost_silently(tmp_path):
    """Some libraries say of a snapshot whose parent is expired that it has none."""
    for changes in (OVERWRITE, UPSERT | {"transform": marked}, {}):
        world = Iceberg(tmp_path / str(len(changes)))
        world.put_files()
        world.make(HALF)
        landed(world, **changes)
        expire_all_but_the_head(world)
        if changes:
            refused(world, "is expired")
        else:
            # Nothing is to come back.
            take_out(world)
            assert world.read() == of(HALF)


def test_an_iceberg_write_is_written_anew_after_the_snapshots_of_its_undo_were_expired(tmp_path):
    world = Iceberg(tmp_path)
    world.put_files()
    world.make()
    landed(world)
    done = take_out(world)
    world.add()
    expire_all_but_the_head(world)
    with pytest.raises(UndoneError):
        commits.require_not_undone(Checkpoint.at(world.store, KEY, 1), world.as_table())
    landed(world)
    assert world.read() == of(ALL, BEFORE, FOREIGN)
    assert latest(world).header.generation == done.undo.header.generation + 1


def test_an_undo_that_only_the_store_knows_of_lands_no_rows_twice(world):
    attempt = landed(world)
    begun(world)
    forged = latest(world)
    group = group_of(attempt.checkpoint)
    forged.record(msgspec.structs.replace(attempt.checkpoint.committed(), group=group.id))
    with pytest.raises(RestartRefusedError, match=r"would double its rows|has landed"):
        world.stage()
    assert world.read() == of(ALL, BEFORE)


def test_a_clean_up_after_an_undo_removes_no_file_of_the_table(world):
    landed(world)
    take_out(world)
    landed(world, transform=only_even, on_change="restart")
    before = world.read()
    for _ in range(2):
        assert all(not one.left for one in clean(latest(world), lambda _: world.as_table()))
        assert world.read() == before
