"""Which rows each mode leaves in the table, for every kind of partitioning, in one snapshot whose summary tells the truth."""

from __future__ import annotations

import pytest
from contract.table.scenes import BEFORE, MODES, NEW, PARTITIONS, SPECS, append, own_snapshots, put, rows, world_with
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform, IdentityTransform
from support.readers import assert_same_everywhere
from support.replacing import delete_positions

from airflow_ckpt_provider.exceptions import InvalidInputError, UnsupportedTableError

CASES = [(mode, name) for mode in MODES for name, spec in SPECS.items() if mode.fits(spec)]


def assert_summary_is_true(table):
    """Totals of the current snapshot are what its manifests hold."""
    snapshot = table.current_snapshot()
    files = [
        entry.data_file for manifest in snapshot.manifests(table.io) for entry in manifest.fetch_manifest_entry(table.io, True)
    ]
    data = [file for file in files if file.content == DataFileContent.DATA]
    deletes = [file for file in files if file.content != DataFileContent.DATA]
    found = {name: int(snapshot.summary[name]) for name in ("total-records", "total-data-files", "total-files-size")}
    assert found == {
        "total-records": sum(file.record_count for file in data),
        "total-data-files": len(data),
        "total-files-size": sum(file.file_size_in_bytes for file in files),
    }
    assert int(snapshot.summary["total-delete-files"]) == len(deletes)
    assert int(snapshot.summary["total-position-deletes"]) == sum(file.record_count for file in deletes)


@pytest.mark.parametrize(("mode", "spec"), CASES, ids=str)
def test_a_mode_leaves_exactly_its_rows_in_one_snapshot_that_deletes_and_adds(tmp_path, mode, spec):
    world = world_with(tmp_path, SPECS[spec])
    put(world, NEW[:2], NEW[2:])
    (settled,) = world.commit(world.stage(mode.request(world)))
    table, after = world.table(), mode.after(BEFORE, NEW, SPECS[spec])
    assert settled.landed_now
    assert_same_everywhere(table, after)
    (snapshot,) = own_snapshots(world)
    assert snapshot == table.current_snapshot()
    assert snapshot.summary.operation == (Operation.APPEND if len(after) == len(BEFORE) + len(NEW) else Operation.OVERWRITE)
    assert int(snapshot.summary["added-records"]) - int(snapshot.summary["deleted-records"] or 0) == len(after) - len(BEFORE)
    assert_summary_is_true(table)


@pytest.mark.parametrize(("mode", "spec"), [case for case in CASES if case[1] in {"unpartitioned", "several"}], ids=str)
def test_the_same_key_again_changes_nothing_and_another_key_writes_again(tmp_path, mode, spec):
    world = world_with(tmp_path, SPECS[spec])
    put(world, NEW[:2], NEW[2:])
    world.commit(world.stage(mode.request(world)))
    once = world.table().metadata_location
    (again,) = world.commit(world.stage(mode.request(world)))
    assert not again.landed_now
    assert world.table().metadata_location == once
    more = rows(20, 5)
    put(world, more)
    world.commit(world.stage(mode.request(world, "orders of the next day")))
    expected = mode.after(mode.after(BEFORE, NEW, SPECS[spec]), more, SPECS[spec])
    assert_same_everywhere(world.table(), expected)
    assert_summary_is_true(world.table())
    assert len(own_snapshots(world)) == 2


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode is not PARTITIONS], ids=str)
def test_files_of_an_older_partition_spec_are_written_over_too(tmp_path, mode):
    world = world_with(tmp_path, SPECS["several"])
    with world.table().update_spec() as update:
        update.remove_field("kind")
    append(world.table(), rows(200, 3))
    put(world, NEW)
    world.commit(world.stage(mode.request(world)))
    assert_same_everywhere(world.table(), mode.after(BEFORE + rows(200, 3), NEW, world.table().spec()))
    assert_summary_is_true(world.table())


def test_partitions_are_not_overwritten_where_files_of_another_spec_may_hold_rows_of_them(tmp_path):
    world = world_with(tmp_path, SPECS["identity"])
    with world.table().update_spec() as update:
        update.add_field("id", BucketTransform(2), "id_bucket")
    put(world, NEW)
    before = world.table().metadata_location
    attempt = world.stage(PARTITIONS.request(world))
    with pytest.raises(InvalidInputError, match="partition spec 0"):
        world.commit(attempt)
    assert world.table().metadata_location == before


def test_partitions_of_a_spec_that_lost_a_field_are_overwritten_by_what_is_left_of_it(tmp_path):
    world = world_with(tmp_path, SPECS["several"], before=[])
    with world.table().update_spec() as update:
        update.remove_field("kind")
    append(world.table(), BEFORE)
    put(world, NEW)
    world.commit(world.stage(PARTITIONS.request(world)))
    assert_same_everywhere(world.table(), PARTITIONS.after(BEFORE, NEW, world.table().spec()))


def test_a_table_without_partitions_has_none_to_overwrite(tmp_path):
    world = world_with(tmp_path)
    put(world, NEW)
    with pytest.raises(InvalidInputError, match="needs a partitioned table"):
        world.stage(PARTITIONS.request(world))
    assert list((world.root / "store").rglob("*.json")) == []


@pytest.mark.parametrize(("mode", "spec"), [(m, s) for m, s in CASES if s in {"unpartitioned", "identity"}], ids=str)
def test_rows_that_others_deleted_by_position_stay_deleted(tmp_path, mode, spec):
    world = world_with(tmp_path, SPECS[spec])
    gone = set()
    for task in world.table().scan().plan_files():
        ids = task.file.file_path
        gone |= set(_ids_in(world, ids)[:1])
        delete_positions(world.table(), ids, [0])
    put(world, NEW)
    live = [row for row in BEFORE if row["id"] not in gone]
    assert_same_everywhere(world.table(), live)
    world.commit(world.stage(mode.request(world)))
    assert_same_everywhere(world.table(), mode.after(live, NEW, SPECS[spec]))
    assert_summary_is_true(world.table())


def _ids_in(world, path):
    import pyarrow.parquet as pq

    return pq.read_table(path.removeprefix("file://"), columns=["id"])["id"].to_pylist()


EMPTY = {
    "append": lambda before: before,
    "overwrite": lambda _: [],
    "overwrite with a filter": lambda before: [row for row in before if not row["id"] < 104],
    "overwrite_partitions": lambda before: before,
    "upsert": lambda before: before,
}


@pytest.mark.parametrize("files", [[], [[]], [[], []]], ids=["no file", "a file without rows", "two files without rows"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_without_a_new_row_the_scope_of_an_overwrite_is_emptied_and_nothing_else_happens(tmp_path, mode, files):
    world = world_with(tmp_path, SPECS["identity"])
    put(world, *files)
    (settled,) = world.commit(world.stage(mode.request(world)))
    assert_same_everywhere(world.table(), EMPTY[mode.label](BEFORE))
    emptied = EMPTY[mode.label](BEFORE) != BEFORE
    assert len(own_snapshots(world)) == emptied
    assert (settled.commit.commit_id is not None) == emptied
    assert not world.commit(world.stage(mode.request(world)))[0].landed_now
    assert_summary_is_true(world.table())


def test_a_table_with_equality_deletes_is_not_rewritten_and_is_overwritten_as_a_whole(tmp_path):
    from support.foreign import delete_by_equality

    world = world_with(tmp_path)
    delete_by_equality(world.table(), "id", 105)
    put(world, NEW)
    where = next(mode for mode in MODES if "overwrite_filter" in mode.parameters)
    before = world.table().metadata_location
    with pytest.raises(UnsupportedTableError, match="equality deletes"):
        world.stage(where.request(world))
    assert world.table().metadata_location == before
    world.commit(world.stage(world.request("whole", mode="overwrite")))
    assert_same_everywhere(world.table(), NEW)


def test_null_partitions_are_overwritten_and_told_apart_from_others(tmp_path):
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind"))
    world = world_with(tmp_path, spec)
    new = [row | {"kind": None} for row in NEW]
    put(world, new)
    world.commit(world.stage(PARTITIONS.request(world)))
    assert_same_everywhere(world.table(), [row for row in BEFORE if row["kind"] is not None] + new)


def test_nan_and_null_are_partitions_of_their_own(tmp_path):
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "value"))
    world = world_with(tmp_path, spec, before=[])
    # By an append of ours: pyiceberg's own fails at a partition of NaN.
    put(world, BEFORE)
    world.commit(world.stage(world.request("before")))
    assert_same_everywhere(world.table(), BEFORE)
    new = [row | {"value": value} for row, value in zip(NEW, [float("nan"), None, float("nan"), 77.0], strict=True)]
    put(world, new)
    world.commit(world.stage(PARTITIONS.request(world)))
    assert_same_everywhere(world.table(), [row for row in BEFORE if row["value"] is not None and row["value"] >= 0] + new)
