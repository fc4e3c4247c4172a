"""What takes a commit out of an Iceberg table: the files that it has added go, and those that it has removed come back.

What a commit did, its snapshot and, if it has removed anything, the one before it say, not the checkpoint store. It can be undone
as long as these are there, no file that it removed was deleted since, and nothing was built on it:

- what it has added is in the table as it was added;
- if it has removed anything, the table holds what it held after the commit. Rows that others have added since may be keys that
  come back, or partitions that were replaced: they stay beside what comes back only if the user says so. Commits that move no row,
  and those that were themselves undone, leave no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.exceptions import UndoRefusedError
from airflow_ckpt_provider.tables.iceberg.conflicts import changes_since
from airflow_ckpt_provider.tables.iceberg.manifest import ADDED, DELETED, FACTS, entries_of, live_entries, restore_manifest
from airflow_ckpt_provider.tables.iceberg.manifest_rewrite import Tally, partition_paths
from airflow_ckpt_provider.tables.iceberg.orphans import name_of
from airflow_ckpt_provider.tables.iceberg.search import head_of
from airflow_ckpt_provider.tables.summary import IDENTITY, traces_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from airflow_ckpt_provider.checkpoint.layout import OwnedNames

#: Commits, and files, that a message names.
_SHOWN = 5


class Restored(NamedTuple):
    """Files that come back.

    :param sources: manifests of the earlier snapshot, each with the paths of the files in it that come back.
    :param files: all of them.
    """

    sources: Sequence[tuple[ManifestFile, frozenset[str]]] = ()
    files: Sequence[StagedFile] = ()
    tally: Tally = Tally()

    @property
    def rows(self) -> int:
        """Rows in its data files, those that are deleted included."""
        return self.tally.rows[0]

    @property
    def facts(self) -> dict[str, int]:
        """Its part of a snapshot summary."""
        (data, by_position, by_value), (rows, positions, values) = self.tally.files, self.tally.rows
        return {
            "added-data-files": data,
            "added-records": rows,
            "added-files-size": self.tally.bytes,
            "added-delete-files": by_position + by_value,
            "added-position-delete-files": by_position,
            "added-position-deletes": positions,
            "added-equality-delete-files": by_value,
            "added-equality-deletes": values,
        }

    def partitions(self, table: Table) -> frozenset[str]:
        """Paths of the partitions that get files back."""
        return frozenset(partition_paths(table.metadata, self.tally.partitions))

    def manifests(self, table: Table, snapshot_id: int, new_path: Callable[[], str]) -> list[ManifestFile]:
        """Write the manifests that list them.

        :param snapshot_id: of the snapshot that adds them again.
        """
        return [restore_manifest(table.io, new_path(), source, snapshot_id, paths) for source, paths in self.sources]


class Undoing(NamedTuple):
    """What undoes a commit.

    :param added: data files that go.
    :param rows: in these.
    """

    added: frozenset[str]
    rows: int
    restored: Restored


def undoing(table: Table, branch: str, commit_id: int, names: OwnedNames, *, beside: bool) -> Undoing:
    """What takes a write out of the table.

    :param names: of the files of the write, which may have landed with those of others.
    :param beside: whether rows that others have added since stay beside what comes back.
    :raises UndoRefusedError: saying what was built on it, or what is gone.
    """
    name, metadata = ".".join(table.name()), table.metadata
    snapshot = metadata.snapshot_by_id(commit_id)
    if snapshot is None:
        raise _expired(name, commit_id)
    made = [manifest for manifest in snapshot.manifests(table.io) if manifest.added_snapshot_id == commit_id]
    entries = [entry for manifest in made for entry, _ in entries_of(table.io, manifest) if entry.snapshot_id == commit_id]
    added = {
        entry.file["file_path"]: entry.file["record_count"]
        for entry in entries
        if entry.status == ADDED and not entry.file.get("content")
    }
    removed = frozenset(entry.file["file_path"] for entry in entries if entry.status == DELETED)
    # Of a snapshot whose parent is expired, some libraries say that it has none.
    before = metadata.snapshot_by_id(snapshot.parent_snapshot_id or -1)
    if removed and before is None:
        raise _expired(name, commit_id)
    identity = (snapshot.summary[IDENTITY] if snapshot.summary else None) or ""
    alone = len(list(traces_in(identity))) == 1
    if removed and not alone:
        raise UndoRefusedError(
            f"Snapshot {commit_id} of {name} has landed several keys and replaced rows: what one of them has replaced cannot be "
            "told. Nothing was changed."
        )
    # What a write that lands alone has added is its own, also what it carried over from files that it has rewritten.
    goes = frozenset(path for path in added if alone or name_of(path) in names)
    _require_nothing_built_on(table, branch, snapshot, goes, replaces=bool(removed), beside=beside)
    return Undoing(goes, sum(added[path] for path in goes), _restored(table, snapshot, before, removed))


def _restored(table: Table, snapshot: Snapshot, before: Snapshot | None, removed: frozenset[str]) -> Restored:
    """The files that a snapshot has removed, as the one before it lists them."""
    if before is None or not removed:
        return Restored()
    kept = {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    sources, files, tally = [], [], Tally()
    for manifest in before.manifests(table.io):
        if manifest.manifest_path in kept:
            continue
        paths = set()
        for _, entry, partition in live_entries(table.io, [manifest]):
            path = entry.file["file_path"]
            if path in removed:
                paths.add(path)
                files.append(StagedFile(path, entry.file["file_size_in_bytes"]))
                tally.add(entry, partition, manifest.partition_spec_id)
        if paths:
            sources.append((manifest, frozenset(paths)))
    return Restored(sources, files, tally)


def _require_nothing_built_on(
    table: Table, branch: str, snapshot: Snapshot, goes: frozenset[str], *, replaces: bool, beside: bool
) -> None:
    """Refuse where others have taken what the commit has added, or have changed what it is to be undone to."""
    head = head_of(table.metadata, branch)
    if head is None or head.snapshot_id == snapshot.snapshot_id:
        return
    then, now = _differing(table, snapshot, head)
    taken = then.keys() - now.keys()
    more = now.keys() - then.keys()
    lost = sorted(taken & goes)
    if lost:
        raise _built_on(table, branch, snapshot, f"{len(lost)} of its files are not in the table any more, such as {lost[0]}")
    if not replaces:
        # Deletes upon what it has added are looked for where that is removed.
        return
    deletes = sorted(path for path in more if now[path])
    if taken or deletes:
        what = f"files of the table were removed, such as {min(taken)}" if taken else f"rows were deleted, as in {deletes[0]}"
        raise _built_on(table, branch, snapshot, f"it has replaced rows, and since then {what}")
    if more and not beside:
        raise _built_on(
            table, branch, snapshot,
            f"it has replaced rows, and since then {len(more)} files were added, such as {min(more)} (force lets those stand "
            "beside the rows that come back)",
        )  # fmt: skip


def _differing(table: Table, one: Snapshot, other: Snapshot) -> tuple[dict[str, int], dict[str, int]]:
    """Live files of two snapshots, with what they are (0: data), but for those in manifests that both of them list."""
    listed = [{manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)} for snapshot in (one, other)]
    first, second = (
        {
            entry.file["file_path"]: entry.file.get("content") or 0
            for _, entry, _ in live_entries(table.io, [mine[path] for path in mine.keys() - theirs.keys()], FACTS)
        }
        for mine, theirs in (listed, listed[::-1])
    )
    return first, second


def _expired(name: str, commit_id: int) -> UndoRefusedError:
    return UndoRefusedError(
        f"What snapshot {commit_id} of {name} has replaced is not known any more: it, or the snapshot before it, is expired. "
        "Nothing was changed. Remove its rows with your query engine."
    )


def _built_on(table: Table, branch: str, snapshot: Snapshot, why: str) -> UndoRefusedError:
    later = [str(change) for change in changes_since(table, branch, snapshot.snapshot_id) or ()]
    shown = ", ".join(later[:_SHOWN]) + (f" and {len(later) - _SHOWN} more" if len(later) > _SHOWN else "")
    return UndoRefusedError(
        f"Snapshot {snapshot.snapshot_id} of {'.'.join(table.name())} cannot be undone: {why}. Later commits: {shown or 'none'}. "
        "Nothing was changed. Undo those first, the latest of them before the others."
    )
