"""What others committed since a snapshot, and whether it touches what is about to be removed."""

from __future__ import annotations

import copy
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, GreaterThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from support import foreign
from support.foreign import added_by, delete_by_equality
from support.replacing import delete_positions, new_table, without

from airflow_ckpt_provider.tables.iceberg.conflicts import changes_since, deletes_upon, touching
from airflow_ckpt_provider.tables.iceberg.removals import RemoveAll, RemoveFiles, RemovePartitions, RemoveWhere

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))
BY_KIND = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))


def rows(start: int, count: int, kind: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + count), pa.int64()), "kind": [kind] * count})


def head(table) -> int:
    return table.current_snapshot().snapshot_id


def paths(table) -> dict[str, str]:
    """The path of the only file of each kind."""
    return {task.file.partition[0]: task.file.file_path for task in table.scan().plan_files()}


@pytest.fixture
def table(tmp_path):
    table = new_table(tmp_path, SCHEMA, BY_KIND)
    table.append(rows(0, 5, "a"))
    table.append(rows(10, 5, "b"))
    return table


def test_each_commit_since_the_base_is_a_change_with_its_files(table):
    base, old = head(table), paths(table)
    table.append(rows(20, 5, "c"))
    without(table, RemoveFiles(frozenset([old["a"]])))
    deletes = delete_positions(table, old["b"], [0])
    added, removed, deleted = changes_since(table, "main", base)
    assert [file.partition[0] for file in added.added()] == ["c"]
    assert [file.file_path for file in removed.removed()] == [old["a"]]
    assert [file.file_path for file in deleted.added_deletes()] == [deletes]
    assert [change.operation for change in (added, removed, deleted)] == ["append", "delete", "delete"]
    assert not [*added.removed(), *added.added_deletes(), *removed.added(), *deleted.added(), *deleted.removed()]


def test_nothing_changed_since_the_head(table):
    assert changes_since(table, "main", head(table)) == []


def test_a_base_that_was_rolled_back_or_expired_tells_nothing(table):
    first, second = [snapshot.snapshot_id for snapshot in table.snapshots()]
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    table.refresh()
    assert changes_since(table, "main", second) is None
    table.append(rows(20, 5))
    table.maintenance.expire_snapshots().by_id(first).commit()
    table.refresh()
    assert changes_since(table, "main", first) is None


def test_a_base_without_snapshots_sees_all_history_or_tells_nothing(table):
    assert len(changes_since(table, "main", None)) == 2
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    table.refresh()
    assert changes_since(table, "main", None) is None


@pytest.mark.parametrize(
    ("removal", "kind", "touches"),
    [
        (RemoveAll(), "c", True),
        (RemovePartitions(0, frozenset([("a",)])), "a", True),
        (RemovePartitions(0, frozenset([("a",)])), "b", False),
        (RemovePartitions(9, frozenset([("a",)])), "b", True),  # another spec: it cannot be told
        (RemoveWhere(EqualTo("kind", "a")), "a", True),
        (RemoveWhere(EqualTo("kind", "a")), "b", False),
        (RemoveWhere(GreaterThan("id", 100)), "a", False),
        (RemoveFiles(frozenset(["x"])), "a", False),
    ],
)
def test_added_rows_touch_what_would_cover_them(table, removal, kind, touches):
    base = head(table)
    table.append(rows(20, 5, kind))
    assert (touching(changes_since(table, "main", base), removal) is not None) == touches


@pytest.mark.parametrize("change", ["rows deleted", "file removed"])
def test_removed_and_deleted_rows_touch_what_covers_them(table, change):
    base, old = head(table), paths(table)
    if change == "rows deleted":
        delete_positions(table, old["a"], [1])
    else:
        without(table, RemoveFiles(frozenset([old["a"]])))
    since = changes_since(table, "main", base)
    for kind in "ab":
        for removal in (
            RemoveFiles(frozenset([old[kind]])),
            RemovePartitions(0, frozenset([(kind,)])),
            RemoveWhere(EqualTo("kind", kind)),
        ):
            assert (touching(since, removal) is not None) == (kind == "a"), removal
    assert touching(since, RemoveAll())


def test_a_delete_file_counts_for_a_filter_on_other_columns_than_it_is_about(table):
    base = head(table)
    delete_positions(table, paths(table)["a"], [1])
    # Its metrics are about paths and positions; nothing tells which ids it deletes.
    assert touching(changes_since(table, "main", base), RemoveWhere(EqualTo("id", 1)))


def test_compaction_touches_only_its_own_files(table):
    base, old = head(table), paths(table)
    compact(table)
    since = changes_since(table, "main", base)
    assert [change.operation for change in since] == ["replace"]
    for removal in (
        RemoveAll(),
        RemovePartitions(0, frozenset([("a",)])),
        RemoveWhere(EqualTo("kind", "a")),
        RemoveFiles(frozenset([old["b"]])),
    ):
        assert touching(since, removal) is None
    assert touching(since, RemoveFiles(frozenset([old["a"]])))


def test_the_description_names_snapshot_operation_time_and_file(table):
    base = head(table)
    table.append(rows(20, 5, "c"))
    (change,) = changes_since(table, "main", base)
    (added,) = change.added()
    time = datetime.fromtimestamp(change.snapshot.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert touching([change], RemoveAll()) == f"snapshot {head(table)} (append, {time} UTC) added {added.file_path}"


def compact(table) -> None:
    """A compaction of the partition "a": its file replaced by a copy."""
    (file,) = [task.file for task in table.scan().plan_files() if task.file.partition[0] == "a"]
    old, copied = file.file_path, copy.copy(file)
    copied._data = [value.replace(".parquet", "-compacted.parquet") if value == old else value for value in file._data]
    copied.spec_id = file.spec_id
    with table.io.new_input(old).open() as source, table.io.new_output(copied.file_path).create() as target:
        target.write(source.read())
    without(table, RemoveFiles(frozenset([old])), operation=Operation.REPLACE, added=[copied])


def upon(table, *files) -> list[str]:
    return list(deletes_upon(table, table.current_snapshot(), frozenset(files)))


def test_deletes_by_position_apply_to_their_files(table):
    old = paths(table)
    assert upon(table, *old.values()) == []
    deletes = delete_positions(table, old["a"], [1])
    assert upon(table, old["a"]) == upon(table, *old.values()) == [deletes]
    assert upon(table, old["b"]) == upon(table, "file:///elsewhere") == []


def test_deletes_by_value_apply_to_earlier_files_of_their_partition(table):
    old = paths(table)
    (file,) = [file for file, _ in added_by(table) if file.file_path == old["a"]]
    delete_by_equality(table, "id", 1, file.partition)
    assert len(upon(table, old["a"])) == 1
    assert upon(table, old["b"]) == []
    table.append(rows(20, 5, "a"))
    later = next(file.file_path for file, added in added_by(table) if added == head(table))
    assert upon(table, later) == []


def test_deletes_by_value_without_a_partition_apply_to_all_earlier_files(table):
    with table.update_spec() as update:
        update.remove_field("kind")
    old = paths(table)
    delete_by_equality(table, "id", 1)
    assert len(upon(table, old["a"])) == len(upon(table, old["b"])) == 1
    table.append(rows(20, 5, "a"))
    assert upon(table, next(file.file_path for file, added in added_by(table) if added == head(table))) == []


def test_deletes_without_bounds_apply_to_the_files_that_they_name(table):
    old = paths(table)
    table.append(rows(20, 5, "a"))
    first, other = [file for file, _ in added_by(table) if file.partition[0] == "a"]
    foreign.delete_positions(table, {first.file_path: [0]}, first.partition)
    assert len(upon(table, first.file_path)) == len(upon(table, first.file_path, other.file_path)) == 1
    assert upon(table, other.file_path) == upon(table, old["b"]) == []


def test_deletes_that_were_applied_and_removed_apply_no_more(table):
    old = paths(table)
    delete_positions(table, old["a"], [1])
    without(table, RemovePartitions(0, frozenset([("a",)])))
    assert upon(table, *old.values()) == []


def test_a_table_without_a_snapshot_has_no_deletes(table):
    assert list(deletes_upon(table, None, frozenset(["file:///elsewhere"]))) == []
