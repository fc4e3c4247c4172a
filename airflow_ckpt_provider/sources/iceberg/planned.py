"""Whether what a plan reads of a table is there still, and is the table's at all: looked at before Spark starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, InputChangedError
from airflow_ckpt_provider.scan.iceberg import scan_files
from airflow_ckpt_provider.scan.places import folders_of, is_below
from airflow_ckpt_provider.scan.sizes import file_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table import Table

    from airflow_ckpt_provider.scan.data_files import ScanFile
    from airflow_ckpt_provider.sources.iceberg.reader import IcebergSplit


def require_planned_table(table: Table, uuid: str) -> None:
    """Refuse a table that has the name, but is not the one that was planned.

    :raises InputChangedError: if so.
    """
    if str(table.metadata.table_uuid) != uuid:
        raise InputChangedError(
            f"The table {'.'.join(table.name())} was dropped and created anew since this write was planned: it was {uuid} and is "
            f"{table.metadata.table_uuid}. Redo the write: {how_to_restart()}."
        )


def require_unchanged(table: Table, name: str, reads: Sequence[IcebergSplit]) -> None:
    """Refuse to read files that are gone, or have another size than when they were planned.

    :param name: of the source, for messages.
    :raises InputChangedError: naming one of them.
    """
    files = [file for read in reads for file in read.files]
    wanted = {file.path: file.bytes for file in files} | {delete.path: delete.bytes for file in files for delete in file.deletes}
    sizes = file_sizes(table.io, list(wanted))
    bad = [path for (path, size), current in zip(wanted.items(), sizes, strict=True) if current != size]
    if not bad:
        return
    snapshot_id = reads[0].snapshot_id
    expired = snapshot_id is None or table.metadata.snapshot_by_id(snapshot_id) is None
    why = (
        f"Snapshot {snapshot_id}, which this write reads, was expired, and its files were deleted with it"
        if expired
        else f"Snapshot {snapshot_id}, which this write reads, is still there: files of older snapshots were deleted after a "
        "compaction, or something else deletes files of the table"
    )
    raise InputChangedError(
        f"{len(bad)} of {len(wanted)} files of {name} that this write has still to read are gone or changed, for instance "
        f"{bad[0]}. {why}. To redo the write on the table as it is now: {how_to_restart()}. Keep snapshots for longer than a "
        "write may take."
    )


def require_listed(table: Table, name: str, reads: Sequence[IcebergSplit], snapshot_id: int | None, *, incremental: bool) -> None:
    """Refuse a plan from the store whose splits read files that the table does not list (I15).

    The pinned snapshot is looked at again. Where that is expired, and for what was appended since, files of the table's own folders
    are taken, and others only if a snapshot has them.

    :param name: of the source, for messages.
    :param snapshot_id: the snapshot that the source is told to read, if it is told one.
    :raises CorruptObjectError: naming one.
    """
    wanted = {file.path for read in reads for file in read.files}
    wanted |= {delete.path for read in reads for file in read.files for delete in file.deletes}
    pinned, folders = {read.snapshot_id for read in reads}, folders_of(table.metadata)
    snapshot = table.metadata.snapshot_by_id(reads[0].snapshot_id) if reads[0].snapshot_id is not None else None
    exactly = snapshot is not None and not incremental
    left = wanted if exactly else {path for path in wanted if not is_below(path, folders)}
    for shown in [snapshot] if exactly else table.metadata.snapshots:
        if left and shown is not None:
            left -= {path for scanned in scan_files(table, shown.snapshot_id) for path in _paths_of(scanned.file)}
    told = pinned if snapshot_id is None else {snapshot_id}
    if left or len(pinned) > 1 or pinned != told:
        raise CorruptObjectError(
            f"The plan in the checkpoint store reads {min(left, default='another snapshot')}, which the snapshot "
            f"{reads[0].snapshot_id} of {name} does not have. The store was altered; nothing was read. Redo the "
            f"write: {how_to_restart()}."
        )


def _paths_of(file: ScanFile) -> list[str]:
    return [file.path, *(delete.path for delete in file.deletes)]
