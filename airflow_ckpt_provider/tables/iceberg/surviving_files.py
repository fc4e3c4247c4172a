"""Whether files that a commit has added are in the table now: what tells a commit that expired from one that was rolled back.

Their names say whose they are (I4). They are looked for only where the snapshot of a remembered commit is expired, and the
checkpoint store has no record of the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
from airflow_ckpt_provider.tables.iceberg.manifest import live_entries
from airflow_ckpt_provider.tables.iceberg.orphans import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from airflow_ckpt_provider.checkpoint.documents import Member


def has_surviving_files(table: Table, head: Snapshot | None, members: Iterable[Member]) -> bool:
    """Whether a snapshot has any file that these generations have staged. Reads its manifests at worst."""
    if head is None:
        return False
    starts = tuple(CheckpointPaths(IdempotenceKey(member.key).hash, member.generation).files for member in members)
    manifests = [manifest for manifest in head.manifests(table.io) if manifest.has_added_files() or manifest.has_existing_files()]
    if any(name_of(manifest.manifest_path).startswith(starts) for manifest in manifests):
        return True
    return any(name_of(entry.file["file_path"]).startswith(starts) for _, entry, _ in live_entries(table.io, manifests))
