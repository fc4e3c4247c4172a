"""Many mapped tasks, one snapshot: for modes that remove rows, all together or not at all."""

from __future__ import annotations

import pytest
from contract.table.scenes import (
    BEFORE,
    MODES,
    OVERWRITE,
    PARTITIONS,
    SPECS,
    WHERE,
    append,
    mapped,
    own_snapshots,
    put,
    rows,
    world_with,
)
from protocol.crash.maintenance import forget_the_record
from pyiceberg.transforms import BucketTransform
from support.readers import assert_same_everywhere

from airflow_ckpt_provider.exceptions import InvalidInputError

PARTS = [rows(0, 3), rows(3, 3), rows(6, 3)]
ALL = rows(0, 9)
TOGETHER = [mode for mode in MODES if mode.together]
REPLACING = [OVERWRITE, PARTITIONS]
SPEC = SPECS["identity"]


@pytest.fixture
def world(tmp_path):
    world = world_with(tmp_path, SPEC)
    put(world, *PARTS)
    return world


def staged(world, mode):
    return [world.stage(mapped(world, mode, index)) for index in range(len(PARTS))]


@pytest.mark.parametrize("mode", TOGETHER, ids=str)
def test_all_land_in_one_snapshot(world, mode):
    found = world.commit(*staged(world, mode))
    assert len({one.commit.commit_id for one in found}) == 1
    assert_same_everywhere(world.table(), mode.after(BEFORE, ALL, SPEC))
    assert len(own_snapshots(world)) == 1
    assert not any(one.landed_now for one in world.commit(*staged(world, mode)))


@pytest.mark.parametrize("mode", TOGETHER, ids=str)
def test_one_without_rows_lands_with_the_others(world, mode):
    put(world, PARTS[0], [], PARTS[2])
    world.commit(*staged(world, mode))
    assert_same_everywhere(world.table(), mode.after(BEFORE, PARTS[0] + PARTS[2], SPEC))


def test_rewriting_by_a_filter_is_refused_for_more_than_one(world):
    put(world, rows(0, 2), rows(2, 2), [])
    attempts = staged(world, WHERE)
    with pytest.raises(InvalidInputError, match="cannot land in one commit"):
        world.commit(*attempts)
    assert_same_everywhere(world.table(), BEFORE)


def test_tasks_that_each_create_the_table_are_refused(world):
    world.catalog.drop_table("shop.orders")
    attempts = [
        world.stage(mapped(world, MODES[0], index).__class__(**(vars(mapped(world, MODES[0], index)) | {"mode": "create"})))
        for index in range(2)
    ]
    with pytest.raises(InvalidInputError, match="one table"):
        world.commit(*attempts)
    assert not world.catalog.table_exists("shop.orders")


@pytest.mark.parametrize("mode", REPLACING, ids=str)
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "record lost"])
def test_a_task_that_joins_a_commit_late_does_not_remove_the_rows_of_the_others(world, mode, recorded):
    first, *others = staged(world, mode)
    world.commit(first)
    if not recorded:
        forget_the_record(world, first.checkpoint)
    with pytest.raises(InvalidInputError, match=r"have to land in one commit, but a commit of the key 'orders/0' was begun"):
        world.commit(first, *others)
    assert_same_everywhere(world.table(), mode.after(BEFORE, PARTS[0], SPEC))


@pytest.mark.parametrize("mode", TOGETHER, ids=str)
def test_one_that_is_replaced_leaves_the_rows_of_the_others_and_of_other_writers(world, mode):
    attempts = staged(world, mode)
    world.commit(*attempts)
    foreign = rows(300, 5)
    append(world.table(), foreign)
    put(world, PARTS[0], PARTS[1][:1], PARTS[2])
    again = world.stage(mapped(world, mode, 1, on_rerun="replace", on_change="restart", transform=only_the_first))
    world.commit(attempts[0], again, attempts[2])
    mine = PARTS[0] + PARTS[1][:1] + PARTS[2]
    assert_same_everywhere(world.table(), mode.after(BEFORE, ALL, SPEC)[: -len(ALL)] + foreign + mine)


def only_the_first(batch):
    return batch.slice(0, 1)


def test_partitions_of_every_task_are_told_by_its_own_spec(tmp_path):
    world = world_with(tmp_path, SPEC)
    put(world, [row | {"kind": "north"} for row in PARTS[0]], [row | {"kind": "south"} for row in PARTS[1]])
    first = world.stage(mapped(world, PARTITIONS, 0))
    with world.table().update_spec() as update:
        update.add_field("id", BucketTransform(2), "id_bucket")
    second = world.stage(mapped(world, PARTITIONS, 1))
    with pytest.raises(InvalidInputError, match="partition spec 0"):
        world.commit(first, second)
    assert_same_everywhere(world.table(), BEFORE)
