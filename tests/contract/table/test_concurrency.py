"""Somebody else commits between stage and commit: it is as if they had come first, or nothing happens; never a mix."""

from __future__ import annotations

import pytest
from contract.table.scenes import (
    APPEND,
    BEFORE,
    FILTER,
    MODES,
    NEW,
    OVERWRITE,
    PARTITIONS,
    SPECS,
    WHERE,
    append,
    arrow,
    put,
    rows,
    world_with,
)
from pyiceberg.catalog.sql import SqlCatalog
from support.foreign import compact
from support.readers import assert_same_everywhere

from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.write import groups

MORE = rows(98, 12)


def appends(world):
    append(world.table(), MORE)
    return BEFORE + MORE


def deletes_files(world):
    world.table().delete("id >= 100")
    return []


def deletes_rows(world):
    world.table().delete("id in (101, 108)")
    return [row for row in BEFORE if row["id"] not in {101, 108}]


def overwrites(world):
    table = world.table()
    table.overwrite(arrow(MORE).cast(table.schema().as_arrow()))
    return MORE


def compacts(world):
    compact(world.table())
    return BEFORE


def overwrites_with_another_key(world):
    more = world.input.parent / "more"
    more.mkdir()
    import pyarrow.parquet as pq

    from airflow_ckpt_provider.sources import Files

    pq.write_table(arrow(MORE), more / "0.parquet")
    world.commit(world.stage(world.request("another", mode="overwrite", source=Files(f"{more}/*.parquet"))))
    return MORE


FOREIGN = [appends, deletes_files, deletes_rows, overwrites, compacts, overwrites_with_another_key]
NAMES = {one: one.__name__ for one in FOREIGN}


@pytest.mark.parametrize("foreign", FOREIGN, ids=NAMES.get)
@pytest.mark.parametrize("spec", ["unpartitioned", "several"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_others_did_meanwhile_came_first(tmp_path, mode, spec, foreign):
    if not mode.fits(SPECS[spec]):
        return
    world = world_with(tmp_path, SPECS[spec])
    put(world, NEW[:2], NEW[2:])
    attempt = world.stage(mode.request(world))
    there = foreign(world)
    before = world.table().metadata_location
    try:
        world.commit(attempt)
    except TableMovedError:
        assert mode is WHERE
        assert world.table().metadata_location == before
        world.commit(world.stage(mode.request(world)))
    assert_same_everywhere(world.table(), mode.after(there, NEW, SPECS[spec]))


class Interrupted(SqlCatalog):
    """Somebody else commits between our last look and our swap."""

    foreign = None

    def commit_table(self, table, requirements, updates):
        if self.foreign is not None:
            foreign, self.foreign = self.foreign, None
            foreign()
        return super().commit_table(table, requirements, updates)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_others_did_just_before_the_swap_came_first(tmp_path, mode):
    world = world_with(tmp_path, SPECS["several"])
    put(world, NEW[:2], NEW[2:])
    attempt = world.stage(mode.request(world))
    catalog = Interrupted("iceberg_default", **world.catalog.properties)
    catalog.foreign = lambda: appends(world)
    told = []
    try:
        groups.commit([attempt.checkpoint], world.as_table(catalog=catalog), tell_tries=told.append)
    except TableMovedError:
        assert mode is WHERE
        assert_same_everywhere(world.table(), BEFORE + MORE)
        world.commit(world.stage(mode.request(world)))
    assert [(taken.tries, taken.conflicts) for taken in told] == [(1 if mode is WHERE else 2, 1)]
    assert_same_everywhere(world.table(), mode.after(BEFORE + MORE, NEW, SPECS["several"]))


@pytest.mark.parametrize("mode", [OVERWRITE, PARTITIONS], ids=str)
def test_of_two_keys_that_overwrite_the_same_the_rows_of_one_are_there_and_not_of_both(tmp_path, mode):
    world = world_with(tmp_path, SPECS["identity"])
    put(world, NEW)
    first = world.stage(mode.request(world, "first"))
    other = [row | {"id": row["id"] + 50} for row in NEW]
    put(world, other)
    second = world.stage(mode.request(world, "second"))
    world.commit(second)
    world.commit(first)
    assert_same_everywhere(world.table(), mode.after(mode.after(BEFORE, other, SPECS["identity"]), NEW, SPECS["identity"]))
    # Each has landed, and nobody lands again.
    assert not any(one.landed_now for key in (first, second) for one in world.commit(key))


def test_a_commit_with_an_older_seal_lands_only_on_the_files_that_it_was_made_from(tmp_path):
    world = world_with(tmp_path)
    put(world, NEW)
    first = world.stage(WHERE.request(world))
    old = first.checkpoint.sealed()
    append(world.table(), MORE)
    second = world.stage(WHERE.request(world))
    assert old.provisional
    assert second.checkpoint.sealed().round > old.round
    (store,) = (world.root / "store" / second.checkpoint.paths.seal(1),)
    newest = world.root / "store" / second.checkpoint.paths.seal(2)
    kept = newest.read_bytes()
    # What a process sees that has read the seals before the second was put.
    newest.unlink()
    assert store.exists()
    before = world.table().metadata_location
    with pytest.raises(TableMovedError):
        world.commit(first)
    assert world.table().metadata_location == before
    newest.write_bytes(kept)
    world.commit(first)
    assert_same_everywhere(world.table(), WHERE.after(BEFORE + MORE, NEW, SPECS["unpartitioned"]))


def test_two_filters_at_once_that_share_a_file_do_not_undo_each_other(tmp_path):
    world = world_with(tmp_path)
    put(world, NEW)
    low = world.request("low", mode="overwrite", parameters={"overwrite_filter": FILTER})
    first = world.stage(low)
    put(world, [])
    high = world.request("high", mode="overwrite", parameters={"overwrite_filter": "id > 108"})
    world.commit(world.stage(high))
    with pytest.raises(TableMovedError):
        world.commit(first)
    put(world, NEW)
    world.commit(world.stage(low))
    assert_same_everywhere(world.table(), [row for row in BEFORE if 104 <= row["id"] <= 108] + NEW)


def test_the_table_is_found_as_it_is_by_an_append_whatever_its_partitioning_became(tmp_path):
    from pyiceberg.transforms import BucketTransform

    world = world_with(tmp_path, SPECS["identity"])
    put(world, NEW)
    attempt = world.stage(APPEND.request(world))
    with world.table().update_spec() as update:
        update.remove_field("kind")
        update.add_field("id", BucketTransform(2), "id_bucket")
    append(world.table(), MORE)
    world.commit(attempt)
    assert_same_everywhere(world.table(), BEFORE + MORE + NEW)
