"""What others committed since a snapshot, and whether it touches what a commit is about to remove.

For a write that was planned on one snapshot and lands on a later one. Whether a change matters is asked of files, by their
partition and metrics; where these do not tell, the answer is that it does.

Decision: not by ``pyiceberg.table.update.validate`` (0.12), whose functions are private and which

- misses rows deleted from a file that is to be replaced, once any commit followed the delete: it asks for deletes as young as the
  head of the branch, and not as the file;
- takes files of another partition spec, and those of the partition of NaN, for files of another partition;
- takes a base that expired for one that never was, and history that expired for none, and passes;
- refuses a filter after a compaction, which changed no row, and after a delete in whatever partition.

``tests/unit/tables/iceberg/test_validate.py`` shows each of these beside what is answered here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.scan.data_files import DeleteFile
from airflow_ckpt_provider.scan.deletes import rows_deleted_of
from airflow_ckpt_provider.tables.iceberg.history import MAIN, lineage_of
from airflow_ckpt_provider.tables.iceberg.manifest import ADDED, DELETED, data_file, entries_of, live_entries
from airflow_ckpt_provider.tables.iceberg.removals import RemoveAll, RemoveFiles, RemovePartitions, RemoveWhere, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from airflow_ckpt_provider.tables.iceberg.removals import Key, Removal

#: Id of the column of a position delete file that names the data file of a deleted row (Iceberg spec, "Reserved Field IDs").
FILE_PATH_ID = 2147483546

#: What the content of a file is, if it deletes rows by their values.
_BY_VALUE = 2


class ForeignChange(NamedTuple):
    """One snapshot of a table. Its files are read from its manifests when they are asked for."""

    table: Table
    snapshot: Snapshot

    @property
    def operation(self) -> str:
        """What the snapshot says it did; ``replace`` (compaction) changes files but no rows."""
        return self.snapshot.summary.operation.value if self.snapshot.summary else "unknown"

    def added(self) -> Iterator[DataFile]:
        """Data files that it added."""
        return self._files(ADDED, deletes=False)

    def removed(self) -> Iterator[DataFile]:
        """Data files that it removed."""
        return self._files(DELETED, deletes=False)

    def added_deletes(self) -> Iterator[DataFile]:
        """Delete files that it added."""
        return self._files(ADDED, deletes=True)

    def removed_deletes(self) -> Iterator[DataFile]:
        """Delete files that it removed."""
        return self._files(DELETED, deletes=True)

    def _files(self, status: int, *, deletes: bool) -> Iterator[DataFile]:
        from pyiceberg.manifest import ManifestContent

        wanted = ManifestContent.DELETES if deletes else ManifestContent.DATA
        for manifest in self.snapshot.manifests(self.table.io):
            if manifest.content == wanted and manifest.added_snapshot_id == self.snapshot.snapshot_id:
                for entry, partition in entries_of(self.table.io, manifest, None):
                    if entry.status == status and entry.snapshot_id == self.snapshot.snapshot_id:
                        yield data_file(entry, partition, manifest.partition_spec_id)

    def __str__(self) -> str:
        time = datetime.fromtimestamp(self.snapshot.timestamp_ms / 1000, UTC)
        return f"snapshot {self.snapshot.snapshot_id} ({self.operation}, {time:%Y-%m-%d %H:%M:%S} UTC)"


def changes_since(table: Table, branch: str, base_snapshot_id: int | None) -> list[ForeignChange] | None:
    """The snapshots of a branch after ``base_snapshot_id``, the oldest first.

    :param branch: one that does not exist begins where the main branch is.
    :param base_snapshot_id: None for a table that had no snapshot yet.
    :returns: None if the base is no ancestor of the branch any more, expired or rolled back: what happened cannot be told.
    """
    lineage = lineage_of(table.metadata, branch if branch in table.metadata.refs else MAIN)
    changes: list[ForeignChange] = []
    for snapshot_id, snapshot in lineage.snapshots.items():
        if snapshot_id == base_snapshot_id:
            return changes[::-1]
        changes.append(ForeignChange(table, snapshot))
    # Without a base, all that ever happened has to be there to be seen.
    complete = base_snapshot_id is None and (not changes or lineage.reaches == 0)
    return changes[::-1] if complete else None


def touching(changes: Sequence[ForeignChange], removal: Removal) -> str | None:
    """The first change of what ``removal`` takes, as a line to read; None if there is none.

    Rows that were added to it, removed from it or deleted in it are changes; rows moved to other files are none, unless the
    removal is of these very files.
    """
    for change in changes:
        touches = _asks(change, removal)
        moved_only = change.operation == "replace"
        kinds: list[tuple[str, Callable[[], Iterator[DataFile]]]] = [("removed", change.removed)]
        if not moved_only:
            kinds += [("added", change.added), ("deleted rows by", change.added_deletes), ("undid", change.removed_deletes)]
        elif not isinstance(removal, RemoveFiles):
            continue
        for verb, files in kinds:
            for file in files():
                if touches(verb, file):
                    return f"{change} {verb} {file.file_path}"
    return None


def _asks(change: ForeignChange, removal: Removal) -> Callable[[str, DataFile], bool]:
    """Whether what a change did (a verb) to a file touches the removal."""
    match removal:
        case RemoveAll():
            return lambda _, __: True
        case RemovePartitions(spec_id, keys):
            wanted = {key_of(key) for key in keys}
            # Files of another spec lie in partitions that cannot be compared with these.
            return lambda _, file: file.spec_id != spec_id or key_of(file.partition._data) in wanted  # noqa: SLF001
        case RemoveFiles(paths):
            ordered = sorted(path.encode() for path in paths)
            return lambda verb, file: _touches_paths(verb, file, paths, ordered)
        case RemoveWhere(expression):
            from airflow_ckpt_provider.tables.iceberg.matching import MetricsEvaluator

            matcher = MetricsEvaluator(change.table.metadata, expression)
            return lambda _, file: matcher.possible(file, file.spec_id, metrics=not file.content)


def _touches_paths(verb: str, file: DataFile, paths: frozenset[str], ordered: list[bytes]) -> bool:
    if not file.content:
        return verb == "removed" and file.file_path in paths
    return _within_bounds(file, ordered)


def _within_bounds(file: DataFile, ordered: list[bytes]) -> bool:
    """A delete file applies to the data files between its bounds of paths; one without bounds, or by values, may apply to all."""
    lower, upper = (bounds.get(FILE_PATH_ID) for bounds in (file.lower_bounds or {}, file.upper_bounds or {}))
    if file.content != 1 or lower is None or upper is None:
        return bool(ordered)
    return any(lower <= path <= upper for path in ordered)


def deletes_upon(table: Table, snapshot: Snapshot | None, paths: frozenset[str]) -> Iterator[str]:
    """Delete files of a snapshot that may apply to these data files (Iceberg spec, "Scan Planning").

    Asked of the snapshot alone, so that expired history does not hinder.
    """
    from pyiceberg.manifest import ManifestContent

    listed = snapshot.manifests(table.io) if snapshot else []
    deletes = [
        listed_manifest
        for listed_manifest in listed
        if listed_manifest.content == ManifestContent.DELETES
        and (listed_manifest.has_added_files() or listed_manifest.has_existing_files())
    ]
    oldest = (
        _oldest(table, [listed_manifest for listed_manifest in listed if listed_manifest.content == ManifestContent.DATA], paths)
        if deletes
        else {}
    )
    if not oldest:
        return
    ordered = sorted(path.encode() for path in paths)
    recent = [listed_manifest for listed_manifest in deletes if listed_manifest.sequence_number >= min(oldest.values())]
    for manifest, entry, partition in live_entries(table.io, recent, None):
        file = data_file(entry, partition, manifest.partition_spec_id)
        by_value = file.content == _BY_VALUE
        # By values and without a partition: it applies to all partitions of all specs.
        group = (manifest.partition_spec_id, key_of(partition))
        first = min(oldest.values()) if by_value and not partition else oldest.get(group)
        if first is None or (entry.sequence_number or 0) < first + by_value or not _within_bounds(file, ordered):
            continue
        if by_value or rows_deleted_of(
            table.io, DeleteFile(file.file_path, file.file_size_in_bytes, file.file_format.value), paths
        ):
            yield file.file_path


def _oldest(table: Table, manifests: Sequence[ManifestFile], paths: frozenset[str]) -> dict[tuple[int, Key], int]:
    """By partition, the lowest sequence number of these data files: what was deleted before a file came is none of its rows."""
    oldest: dict[tuple[int, Key], int] = {}
    for manifest, entry, partition in live_entries(table.io, manifests):
        if entry.file["file_path"] in paths:
            group, number = (manifest.partition_spec_id, key_of(partition)), entry.sequence_number or 0
            oldest[group] = min(number, oldest.get(group, number))
    return oldest
