"""Why conflicts are looked for here and not by ``pyiceberg.table.update.validate``: what that lets pass, and what it refuses.

Each test holds both against one history. Where pyiceberg answers otherwise one day, its line here fails: then it is worth asking
again whether ``tables/iceberg/conflicts.py`` may go, and its page has to be corrected.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import validate
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from support.foreign import added_by
from support.replacing import delete_positions, new_table, without

from airflow_ckpt_provider.tables.iceberg.conflicts import changes_since, deletes_upon, touching
from airflow_ckpt_provider.tables.iceberg.removals import RemoveAll, RemoveFiles, RemovePartitions, RemoveWhere

if TYPE_CHECKING:
    from pyiceberg.table import Table

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))
BY_KIND = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))
OF_A = EqualTo("kind", "a")


def rows(start: int, kind: str) -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + 5), pa.int64()), "kind": [kind] * 5})


@pytest.fixture
def table(tmp_path) -> Table:
    table = new_table(tmp_path, SCHEMA, BY_KIND)
    table.append(rows(0, "a"))
    table.append(rows(10, "b"))
    return table


def file_of(table: Table, kind: str) -> DataFile:
    (file,) = [file for file, _ in added_by(table) if file.partition[0] == kind]
    return file


def added_file(path: str, partition: Record) -> DataFile:
    """A file as another engine adds one; nobody reads it."""
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=5,
        file_size_in_bytes=500,
    )
    file.spec_id = 0
    return file


def expire(table: Table, *snapshot_ids: int) -> None:
    table.maintenance.expire_snapshots().by_ids(list(snapshot_ids)).commit()
    table.refresh()


def test_rows_that_were_deleted_before_another_commit_are_found_here_and_not_by_pyiceberg(table):
    base, file = table.current_snapshot(), file_of(table, "a")
    deletes = delete_positions(table, file.file_path, [0])
    with pytest.raises(ValidationException):
        validate._validate_no_new_deletes_for_data_files(table, table.current_snapshot(), None, {file}, base)
    table.append(rows(20, "c"))
    # It asks for deletes as young as the head of the branch: those of the commits before it count as older than the file.
    validate._validate_no_new_deletes_for_data_files(table, table.current_snapshot(), None, {file}, base)
    paths = frozenset([file.file_path])
    assert touching(changes_since(table, "main", base.snapshot_id), RemoveFiles(paths))
    assert list(deletes_upon(table, table.current_snapshot(), paths)) == [deletes]


def test_rows_added_under_another_partition_spec_are_found_here_and_not_by_pyiceberg(table):
    base = table.current_snapshot()
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(2), "part")
    table.append(rows(20, "a"))
    head = table.current_snapshot()
    assert list(validate._added_data_files(table, head, None, None, base))
    assert not list(validate._added_data_files(table, head, None, {0: {Record("a")}}, base))
    assert touching(changes_since(table, "main", base.snapshot_id), RemovePartitions(0, frozenset([("a",)])))


def test_rows_added_to_the_partition_of_nan_are_found_here_and_not_by_pyiceberg(tmp_path):
    table = new_table(
        tmp_path, Schema(NestedField(1, "x", DoubleType())), PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
    )
    table.append(pa.table({"x": [1.0]}))
    base = table.current_snapshot()
    without(table, operation=Operation.APPEND, added=[added_file("file:///nan.parquet", Record(math.nan))])
    head = table.current_snapshot()
    assert list(validate._added_data_files(table, head, None, None, base))
    assert not list(validate._added_data_files(table, head, None, {0: {Record(math.nan)}}, base))
    assert touching(changes_since(table, "main", base.snapshot_id), RemovePartitions(0, frozenset([(math.nan,)])))


def test_history_that_expired_is_unknown_here_and_nothing_happened_to_pyiceberg(table):
    base = table.current_snapshot().snapshot_id
    table.append(rows(20, "a"))
    gone = table.current_snapshot().snapshot_id
    table.append(rows(30, "b"))
    expire(table, base, gone)
    # The snapshot that the write was planned on is none any more, and None asks for all history: of that, "a" is gone.
    base_now = table.snapshot_by_id(base)
    validate._validate_added_data_files(table, table.current_snapshot(), OF_A, base_now)
    assert changes_since(table, "main", base) is None
    assert changes_since(table, "main", None) is None


def test_compaction_changes_no_row_here_and_is_a_conflict_to_pyiceberg(table):
    base = table.current_snapshot()
    old = file_of(table, "a")
    copy = added_file("file:///compacted.parquet", old.partition)
    without(table, RemoveFiles(frozenset([old.file_path])), operation=Operation.REPLACE, added=[copy])
    with pytest.raises(ValidationException, match="Deleted data files were found"):
        validate._validate_deleted_data_files(table, table.current_snapshot(), OF_A, base)
    changes = changes_since(table, "main", base.snapshot_id)
    assert touching(changes, RemoveWhere(OF_A)) is touching(changes, RemoveAll()) is None


def test_rows_deleted_from_another_partition_are_no_conflict_here_and_one_to_pyiceberg(table):
    base = table.current_snapshot()
    delete_positions(table, file_of(table, "b").file_path, [0])
    with pytest.raises(ValidationException, match="Found new conflicting delete files"):
        validate._validate_no_new_delete_files(table, table.current_snapshot(), OF_A, None, base)
    assert touching(changes_since(table, "main", base.snapshot_id), RemoveWhere(OF_A)) is None
