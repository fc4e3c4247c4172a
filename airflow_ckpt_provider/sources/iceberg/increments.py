"""What was appended to a branch since a watermark: the data files that append snapshots in between have added.

A **watermark** is the table's UUID and a snapshot: the high-water mark that the last commit of a task carries. Whatever lies
between it and the head is either an append, which is read, or a rewrite that changes no row, which is skipped. Anything else, and
any gap, is an error: reading on would lose rows or have them twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InputChangedError
from airflow_ckpt_provider.scan.iceberg import plan_manifests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.scan.iceberg import Scanned
    from airflow_ckpt_provider.sources.iceberg.pinning import Pin

_ANEW = (
    "To begin anew, give the task another task_id: its first run reads the whole table, so write it with mode='overwrite' if the "
    "target holds rows of the old runs."
)


def watermark_of(table: Table, snapshot_id: int | None) -> JsonObject:
    """The watermark of a reading that went up to this snapshot."""
    return {"table_uuid": str(table.metadata.table_uuid), "snapshot_id": snapshot_id}


def appended_files(table: Table, since: int, pin: Pin, row_filter: BooleanExpression | None) -> Iterator[Scanned]:
    """Files that were appended after the snapshot ``since``, up to the pinned one. No deletes apply to them.

    :raises InputChangedError: if something else than appends happened in between.
    """
    from pyiceberg.manifest import ManifestEntryStatus

    snapshots = _appends(table, since, pin.snapshot_id)
    ids = {snapshot.snapshot_id for snapshot in snapshots}
    manifests = [manifest for snapshot in snapshots for manifest in _own_manifests(table, snapshot)]
    return plan_manifests(
        table,
        manifests,
        row_filter,
        pin.schema_id,
        keep=lambda entry: entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in ids,
    )


def only_rewritten(table: Table, head: int | None, since: object) -> bool:
    """Whether nothing but rewrites that change no row, such as compactions, lies between the snapshot ``since`` and ``head``."""
    from pyiceberg.table.snapshots import Operation

    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    while head != since:
        snapshot = None if head is None else snapshots.get(head)
        if snapshot is None or snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE:
            return False
        head = snapshot.parent_snapshot_id
    return True


def require_same_table(table: Table, watermark: JsonObject) -> None:
    """Refuse a watermark of another table.

    :raises InputChangedError: if the table was dropped and created anew.
    """
    if watermark["table_uuid"] != str(table.metadata.table_uuid):
        raise InputChangedError(
            f"The table {'.'.join(table.name())} was dropped and created anew since the last commit: it was "
            f"{watermark['table_uuid']} and is {table.metadata.table_uuid}. What was appended since cannot be told. {_ANEW}"
        )


def _appends(table: Table, since: int, head: int | None) -> list[Snapshot]:
    """Append snapshots after ``since``, up to ``head``, oldest first."""
    from pyiceberg.table.snapshots import Operation

    name = ".".join(table.name())
    appends: list[Snapshot] = []
    for snapshot in _lineage(table, since, head):
        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation == Operation.APPEND:
            appends.append(snapshot)
        elif operation != Operation.REPLACE:
            what = "an unknown operation" if operation is None else f"the operation {operation.value!r}"
            raise InputChangedError(
                f"Snapshot {snapshot.snapshot_id} of {name}, made since the last commit, is {what}: it changed or removed rows "
                f"that were read already, and since='last_commit' reads appends only. {_ANEW}"
            )
    return appends[::-1]


def _lineage(table: Table, since: int, head: int | None) -> Iterator[Snapshot]:
    """Snapshots from ``head`` back to, not including, ``since``."""
    name = ".".join(table.name())
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    watermark = snapshots.get(since)
    at = head
    # The snapshot of the watermark may be expired, as long as its child still names it as its parent.
    while at != since:
        snapshot = None if at is None else snapshots.get(at)
        if watermark is not None and (head is None or (snapshot is not None and _is_older(snapshot, watermark))):
            raise InputChangedError(
                f"Snapshot {since} of {name}, up to which the last commit has read, is not in the lineage of {head} any more: the "
                f"branch was rolled back or replaced. Rows that were read may not be in the table any more. {_ANEW}"
            )
        if snapshot is None:
            raise InputChangedError(
                f"Snapshots of {name} between {since}, up to which the last commit has read, and {head} were expired, or the "
                "branch was rolled back, so that what was appended in between cannot be told. Keep snapshots for longer than the "
                f"time between two runs. {_ANEW}"
            )
        yield snapshot
        at = snapshot.parent_snapshot_id


def _is_older(snapshot: Snapshot, watermark: Snapshot) -> bool:
    """Whether it was made before the watermark, or beside it; version 1 tables number nothing."""
    return bool(snapshot.sequence_number and watermark.sequence_number and snapshot.sequence_number <= watermark.sequence_number)


def _own_manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """Manifests of data files that this snapshot itself has added."""
    from pyiceberg.manifest import ManifestContent

    try:
        manifests = snapshot.manifests(table.io)
    except FileNotFoundError as error:
        raise InputChangedError(
            f"The manifest list of snapshot {snapshot.snapshot_id} of {'.'.join(table.name())} is gone, though the snapshot is "
            f"not expired. Something deletes files of the table; restore {snapshot.manifest_list}. {_ANEW}"
        ) from error
    return [m for m in manifests if m.content == ManifestContent.DATA and m.added_snapshot_id == snapshot.snapshot_id]
