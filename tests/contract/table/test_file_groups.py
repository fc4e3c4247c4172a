"""An upsert into a table of many small files: they share splits, and a change by others costs the groups that it is about."""

from __future__ import annotations

import msgspec
import pyarrow.parquet as pq
import pytest
from contract.table.both import UPSERT, Iceberg, kinds, marked
from pyiceberg.manifest import ManifestEntryStatus
from support.forging import forge_plan, forge_staged, refused
from support.replacing import delete_positions
from support.upserting import add_files
from support.world import rows

from airflow_ckpt_provider.checkpoint.documents import part_of
from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.tables.iceberg.modes.splits import group_split
from airflow_ckpt_provider.tables.iceberg.upsert.grouping import FileGroup
from airflow_ckpt_provider.write import groups

#: Ids of the rows in the table: five in a file.
THERE = range(200, 600, 5)

#: A split for about four of these files.
SMALL = {"read.split.target-size": "8000", "read.split.open-file-cost": "1"}


@pytest.fixture
def world(tmp_path):
    world = Iceberg(tmp_path)
    world.put_files()
    table = world.create_table()
    add_files(table, *(rows(start, 5).to_batches() for start in THERE))
    return world


def sizes(world):
    with world.table().transaction() as transaction:
        transaction.set_properties(SMALL)


def request(world):
    return world.request(**UPSERT, transform=marked)


def matches(checkpoint):
    """The splits that match files, and the files that each does."""
    splits = checkpoint.plans()[-1].splits
    return {split.id: part_of(split.read, FileGroup) for split in splits if split.task == "match"}


def removed(world):
    table = world.table()
    entries = [
        entry
        for manifest in table.current_snapshot().manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]
    return {entry.data_file.file_path for entry in entries if entry.status == ManifestEntryStatus.DELETED}


def test_eighty_small_files_are_three_splits_and_only_those_with_a_key_are_rewritten(world):
    attempt = world.stage(request(world))
    files = matches(attempt.checkpoint)
    # Those of 40 files whose bounds allow a key, at 32 of 4 MiB a split at most.
    assert 2 <= len(files) <= 4
    assert sum(len(group.names) for group in files.values()) == 40
    world.commit(attempt)
    assert kinds(world) == ({*range(400)}, {*range(400, 600)})
    assert len(removed(world)) == 40


@pytest.mark.parametrize("change", ["add", "delete a row"])
def test_what_others_change_costs_the_groups_that_it_is_about(world, change):
    sizes(world)
    attempt = world.stage(request(world))
    before = matches(attempt.checkpoint)
    assert len(before) > 4
    gone = set()
    if change == "add":
        world.add(range(-5, 1))
    else:
        changed = min(before.values(), key=lambda group: group.id).paths[0]
        gone = {pq.read_table(changed.removeprefix("file://"))["id"][0].as_py()}
        delete_positions(world.table(), changed, [0])
    with pytest.raises(TableMovedError, match="what is staged stays staged"):
        world.commit(attempt)
    again = world.stage(request(world))
    after = matches(again.checkpoint)
    assert len(before.keys() - after.keys()) <= 1
    assert {path for one in after.keys() - before.keys() for path in after[one].paths} >= {
        path for one in before.keys() - after.keys() for path in before[one].paths
    }
    # Of what was staged, a retry takes up all others.
    assert {*before} & {*after} <= again.checkpoint.staged_ids()
    world.commit(again)
    own, others = kinds(world)
    assert own == {*range(400)}
    assert others == {*range(400, 600), *(range(-5, 0) if change == "add" else ())}
    assert gone <= own


def test_a_killed_upsert_matches_no_group_twice(world):
    sizes(world)
    first = world.stage(request(world), splits=7)
    there = first.checkpoint.staged_ids()
    done = {split for split in there if split.startswith("match")}
    assert done
    records = {record.split: record.writer for record in first.checkpoint.staged(sorted(done))}
    world.commit(world.stage(request(world)))
    assert {record.split: record.writer for record in first.checkpoint.staged(sorted(done))} == records
    assert kinds(world) == ({*range(400)}, {*range(400, 600)})


# -- what the store says of them is not believed -----------------------------------------------------------------------------


@pytest.fixture
def staged(world):
    """A sealed upsert, and the record of a split that has rewritten some of its files, with its group."""
    sizes(world)
    forged = world.request(**UPSERT, transform=first_of_each_other_file)
    checkpoint = world.stage(forged).checkpoint
    for split_id, group in matches(checkpoint).items():
        (record,) = checkpoint.staged([split_id])
        kept = [path for path in group.paths if path not in record.replaces]
        if len(record.replaces) > 1 and kept:
            return world, checkpoint, record, group, kept
    raise AssertionError("No group has files of both kinds.")


def first_of_each_other_file(batch):
    return marked(batch.filter([n % 10 == 0 for n in batch["id"].to_pylist()]))


def test_what_was_not_touched_lands(staged):
    world, checkpoint, *_ = staged
    groups.commit([checkpoint], world.as_table())
    own, others = kinds(world)
    assert own == {*range(0, 400, 10)}
    assert others == {*range(200, 600)} - own


def test_a_file_of_the_group_that_was_not_rewritten_is_not_removed(staged):
    world, checkpoint, record, _, kept = staged
    forge_staged(checkpoint, record.split, replaces=(*record.replaces, kept[0]))
    refused(world, checkpoint, "not the file that it was to rewrite")


def test_a_rewritten_file_of_the_group_does_not_stay_beside_what_takes_its_place(staged):
    world, checkpoint, record, *_ = staged
    forge_staged(checkpoint, record.split, replaces=record.replaces[1:])
    refused(world, checkpoint, "does not take its place")


def test_a_file_of_the_group_does_not_go_in_the_place_of_another(staged):
    world, checkpoint, record, _, kept = staged
    forge_staged(checkpoint, record.split, replaces=(*record.replaces[1:], kept[0]))
    refused(world, checkpoint, "not the file that it was to rewrite")


def test_a_split_that_rewrote_nothing_removes_no_file(world):
    checkpoint = world.stage(world.request(**UPSERT)).checkpoint
    split_id, group = min(matches(checkpoint).items())
    (record,) = checkpoint.staged([split_id])
    assert record.counts == {"unchanged": sum(group.rows)}
    forge_staged(checkpoint, split_id, replaces=(group.paths[0],))
    refused(world, checkpoint, "not the file that it was to rewrite")


@pytest.mark.parametrize("forged", ["other order", "a file less", "the files of another", "a file of another too"])
def test_a_group_consists_of_the_files_that_its_split_is_named_after(staged, forged):
    world, checkpoint, record, group, _ = staged
    files = group.files()
    other = next(one for split_id, one in matches(checkpoint).items() if split_id != record.split)
    files = {
        "other order": files[::-1],
        "a file less": files[1:],
        "the files of another": other.files(),
        "a file of another too": [*files, other.files()[0]],
    }[forged]
    number = checkpoint.sealed().round
    splits = [
        msgspec.structs.replace(split, read=group_split("match", FileGroup.of(files)).read) if split.id == record.split else split
        for split in checkpoint.plan(number).splits
    ]
    forge_plan(checkpoint, number, splits=tuple(splits))
    refused(world, checkpoint, "not the files that it has its name from")
