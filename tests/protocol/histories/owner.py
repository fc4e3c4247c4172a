"""What a table's owner and other writers do to it, without a thought of checkpoints."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import write_manifest_list
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType
from support import foreign

from airflow_ckpt_provider.tables.iceberg.history import PROPERTY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.histories.model import Row
    from pyiceberg.table import Table

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("kind", pa.string())])
WITH_NOTE = SCHEMA.append(pa.field("note", pa.string()))


def arrow(rows: Iterable[Row], *, note: bool = False) -> pa.Table:
    """Rows as a file holds them."""
    schema = WITH_NOTE if note else SCHEMA
    return pa.Table.from_pylist([{name: getattr(row, name) for name in schema.names} for row in rows], schema=schema)


def row(row_id: int, value: float) -> Row:
    """A row of a history whose ids say in which partition it is."""
    from protocol.histories.model import Row

    return Row(row_id, value, f"k{row_id % 2}")


def append(table: Table, rows: Iterable[Row], branch: str) -> None:
    table.append(arrow(rows), branch=branch)


def delete(table: Table, text: str, branch: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Delete operation did not match any records")
        table.delete(text, branch=branch)


def overwrite(table: Table, rows: Iterable[Row], branch: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Delete operation did not match any records")
        table.overwrite(arrow(rows), branch=branch)


def compact(table: Table, branch: str) -> None:
    """Rewrite all files into one of each partition, and say so in the summary as engines do."""
    parent = table.snapshot_by_name(branch)
    # Under the names that the columns have by now, where the head of the branch is older than those.
    found = table.scan(snapshot_id=None if branch == "main" else parent.snapshot_id).to_arrow()
    if not found.num_rows:
        return
    files = list(_dataframe_to_data_files(table.metadata, found, table.io))
    manifest = foreign._manifest(table, files)
    snapshot_id, number = manifest.added_snapshot_id, table.metadata.next_sequence_number()
    path = f"{table.location()}/metadata/snap-{snapshot_id}.avro"
    with write_manifest_list(2, table.io.new_output(path), snapshot_id, parent.snapshot_id, number, "gzip") as writer:
        writer.add_manifests([manifest])
    totals = {"total-records": str(found.num_rows), "total-data-files": str(len(files))}
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent.snapshot_id,
        sequence_number=number,
        manifest_list=path,
        summary=Summary(operation=Operation.REPLACE, **totals),
        schema_id=table.metadata.current_schema_id,
    )
    table.catalog.commit_table(
        table,
        (AssertRefSnapshotId(ref=branch, snapshot_id=parent.snapshot_id),),
        (AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate(ref_name=branch, type="branch", snapshot_id=snapshot_id)),
    )


def add_column(table: Table, name: str) -> None:
    if name not in table.schema().column_names:
        with table.update_schema() as update:
            update.add_column(name, StringType())


def turn_buckets(table: Table) -> None:
    """Begin to partition by a bucket of the id, or end it."""
    names = [one.name for one in table.spec().fields]
    with table.update_spec() as update:
        if "by_id" in names:
            update.remove_field("by_id")
        else:
            update.add_field("id", BucketTransform(2), "by_id")


def expire(table: Table) -> bool:
    """All snapshots but the heads of branches; whether there were any."""
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id not in heads]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
    return bool(old)


def roll_back(table: Table, snapshot_id: int) -> None:
    table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


def forget(table: Table) -> bool:
    """Drop the properties that remember commits; whether there were any."""
    names = [name for name in table.properties if name.startswith(PROPERTY_PREFIX)]
    if names:
        with table.transaction() as transaction:
            transaction.remove_properties(*names)
    return bool(names)
