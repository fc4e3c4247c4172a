"""What refuses a commit: the table, as it is now, is not what the staged files were made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.restart import how_to_restart, run_again
from airflow_ckpt_provider.exceptions import InvalidInputError, SchemaMismatchError, TableMovedError
from airflow_ckpt_provider.scan.data_files import PinnedSnapshot
from airflow_ckpt_provider.tables.iceberg.conflicts import changes_since, deletes_upon, touching
from airflow_ckpt_provider.tables.iceberg.manifest import live_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Header, Split
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.iceberg.removals import Removal


def require_whole(table: Table, header: Header, paths: frozenset[str]) -> None:
    """Refuse to replace files of which others deleted rows: an update does that, too, and its rows stand somewhere else now.

    :raises TableMovedError: naming a delete file.
    """
    from airflow_ckpt_provider.tables.iceberg.search import head_of

    delete = next(deletes_upon(table, head_of(table.metadata, header.table.branch), paths), None)
    if delete is not None:
        raise TableMovedError(
            f"Rows of those files were deleted or updated by others since, as in {delete}. To replace the files would double rows "
            "that were updated, and bring back rows that were deleted. Nothing was committed."
        )


def require_there(table: Table, header: Header, paths: frozenset[str]) -> None:
    """Refuse to replace files that are not in the table any more.

    :raises TableMovedError: naming one.
    """
    from pyiceberg.manifest import ManifestContent

    from airflow_ckpt_provider.tables.iceberg.search import head_of

    head = head_of(table.metadata, header.table.branch)
    listed = head.manifests(table.io) if head and paths else []
    data = [manifest for manifest in listed if manifest.content == ManifestContent.DATA]
    missing = paths - {entry.file["file_path"] for _, entry, _ in live_entries(table.io, data) if entry.file["file_path"] in paths}
    if missing:
        raise TableMovedError(f"{len(missing)} of {len(paths)} data files are not in the table any more, such as {min(missing)}.")


def require_one_spec(table: Table, header: Header) -> None:
    """Refuse to overwrite partitions of one spec where files of another may hold rows of them.

    :raises InvalidInputError: naming the other spec.
    """
    from airflow_ckpt_provider.tables.iceberg.search import head_of

    head = head_of(table.metadata, header.table.branch)
    listed = head.manifests(table.io) if head else []
    specs = {m.partition_spec_id for m in listed if m.has_added_files() or m.has_existing_files()} - {header.table.spec_id}
    if specs:
        raise InvalidInputError(
            f"{header.table.identifier} has files of the partition spec {min(specs)}, and the rows of the key {header.key!r} are "
            f"staged for spec {header.table.spec_id}: which of those files belong to the partitions to overwrite cannot be told. "
            "Nothing was committed. Rewrite the old files into the current spec (compaction), or use mode='overwrite' with "
            "overwrite_filter."
        )


def require_same_files(now_there: dict[str, Split], planned: dict[str, Split], header: Header) -> None:
    """Refuse to commit files that were computed from others than the table holds now.

    :raises TableMovedError: saying how many splits differ.
    """
    changed = now_there.keys() ^ planned.keys()
    if changed:
        raise TableMovedError(
            f"{header.table.identifier} was changed since the write of the key {header.key!r} was planned: files of "
            f"{len(changed)} of its splits were changed, removed or added. Nothing was committed, and what is staged stays staged. "
            f"{run_again(header)}: it stages what the change affects, and nothing else, before the commit "
            "runs again."
        )


def require_same_schema(table: Table, header: Header) -> None:
    """Refuse to rewrite files of the table with an older schema than it has: columns added since would be lost from them.

    :raises SchemaMismatchError: saying what to do.
    """
    if table.metadata.current_schema_id != header.table.schema_id:
        raise SchemaMismatchError(
            f"The schema of {header.table.identifier} changed since the write of the key {header.key!r} was begun. It rewrites "
            "files of the table, which would lose what was added. Nothing was committed. Redo the write: "
            f"{how_to_restart(header)}."
        )


def require_unread(table: Table, writes: Sequence[SealedWrite], removals: Sequence[Removal]) -> None:
    """Refuse to replace rows that were computed from the same table, if that changed where it is replaced since it was read.

    Rows that are read from elsewhere replace what is there at the commit. These are made of what was there when they were read:
    what others added since would be lost.

    :raises TableMovedError: naming the commit.
    """
    for write in writes if removals else ():
        read = PinnedSnapshot.of(write.plan)
        if read is None or read.table_uuid != write.header.table.uuid:
            continue
        changes = changes_since(table, write.header.table.branch, read.snapshot_id)
        touched = next(filter(None, (touching(changes, removal) for removal in removals)), None) if changes else None
        if changes is None or touched:
            raise TableMovedError(
                f"The rows of the key {write.header.key!r} were read from {write.header.table.identifier} itself at snapshot "
                f"{read.snapshot_id}, to replace rows of it, and it was changed since: "
                f"{touched or 'that snapshot is not in its history any more'}. Nothing was committed. Redo the write: "
                f"{how_to_restart(write.header)}."
            )
