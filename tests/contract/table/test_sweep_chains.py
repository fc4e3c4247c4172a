"""Sweeps over a store that has rows for other tasks in it: who still reads them keeps them, and all who ask later are answered."""

from __future__ import annotations

import os

import pytest
from contract.table.both import Iceberg, Lance
from contract.table.test_chains import content, doubled, files_of, for_next, table_of, wanted, written
from contract.table.test_sweep import DAYS
from support.aging import grow_old
from support.chains import output, read

from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.write.cleanup import clean
from airflow_ckpt_provider.write.sweep import Sweep


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    found = request.param(tmp_path)
    found.make(range(0))
    found.put_files()
    return found


def swept(world, **how):
    """What a sweep did of each key, and how many objects it did not know."""
    sweep = Sweep(world.store, lambda one: table_of(world, one), older_than=DAYS, **how)
    return {one.key: one for one in sweep.run()} | {"foreign": sweep.counts.foreign}


@pytest.mark.parametrize("abandoned", ["keep", "discard"])
def test_rows_whose_readers_have_landed_are_freed_and_their_run_is_cleared_as_before(world, abandoned):
    first = for_next(world)
    before = output(first)
    written(world, read(world, first))
    grow_old(world)
    said = swept(world, dry_run=True, abandoned=abandoned)
    assert len(files_of(world)) == 4
    done = swept(world, abandoned=abandoned)
    assert done == said
    assert (done["parse"].files, done["parse"].kept, done["foreign"]) == (4, "", 0)
    assert files_of(world) == []
    for _ in range(2):
        again = for_next(world)
        assert again.state is State.FREED
        assert output(again) == before | {"state": "freed"}
        assert not written(world, read(world, again)).landed_now
        grow_old(world)
        swept(world, abandoned=abandoned)
    assert world.read() == wanted()


def test_rows_that_a_running_task_reads_stay_however_old_they_are(world):
    first = for_next(world)
    # Before it is read: a plan has the times of the files.
    grow_old(world)
    world.stage(world.request("write", source=read(world, first), transform=doubled), splits=2)
    for name in world.store.names(first.checkpoint.paths.root):
        os.utime(world.root / "store" / name, (0, 0))
    assert "'write' reads it" in swept(world, abandoned="discard")["parse"].kept
    assert written(world, read(world, first)).landed_now
    assert world.read() == wanted()


def test_rows_that_nobody_has_read_are_given_up_only_if_that_is_asked_for(world):
    for_next(world)
    grow_old(world)
    assert swept(world)["parse"].kept == "no task has read it yet"
    assert len(files_of(world)) == 4
    assert swept(world, abandoned="discard")["parse"].files == 4
    assert files_of(world) == []
    # Whoever clears the run has them computed again.
    again = for_next(world)
    assert again.checkpoint.header.generation == 2
    assert written(world, read(world, again)).landed_now
    assert world.read() == wanted()


def test_what_was_computed_for_any_run_goes_once_nobody_has_asked_for_it_in_a_while(world):
    first = content(world)
    key = first.checkpoint.key.value
    written(world, read(world, first))
    grow_old(world)
    written(world, read(world, first), "another run")
    assert key not in swept(world)
    grow_old(world)
    assert swept(world)[key].files == 4
    again = content(world)
    assert again.checkpoint.header.generation == 2
    assert written(world, read(world, again), "yet another").landed_now


def test_what_a_cleanup_has_freed_is_left_to_answer(world):
    first = for_next(world)
    written(world, read(world, first))
    list(clean(first.checkpoint, lambda one: table_of(world, one)))
    grow_old(world)
    swept(world, abandoned="discard")
    assert for_next(world).state is State.FREED
    assert output(for_next(world))["rows"] == 400


def test_what_was_begun_anew_leaves_no_rows_of_before(world):
    for_next(world)
    again = for_next(world, function=doubled, on_change="restart")
    grow_old(world)
    swept(world)
    assert [name.split("-")[2] for name in files_of(world)] == ["g2"] * 4
    assert again.checkpoint.sealed().rows == 400
