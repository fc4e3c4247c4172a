"""What a commit takes out of a table, and the manifests that say so.

A manifest that holds nothing of it stays listed as it is. Of the others a new one is written: what stays is there as existing,
what goes as deleted by the new snapshot, so that jobs that expire snapshots find the files to remove; what earlier snapshots
deleted is left out. All is done entry by entry: memory does not grow with the number of files, nor with the size of a manifest.

Decision: nothing is written before it is known that every file to remove is there, so that a refused removal leaves no trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.exceptions import HistoryExpiredError, TableMovedError
from airflow_ckpt_provider.tables.iceberg.manifest import DELETED, data_file, entries_of, in_order, live_entries, rewrite_manifest
from airflow_ckpt_provider.tables.iceberg.removals import RemovalSelector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from airflow_ckpt_provider.tables.iceberg.manifest import Entry
    from airflow_ckpt_provider.tables.iceberg.removals import Key, Removal


class Removed(NamedTuple):
    """What :func:`remove` did.

    :param manifests: all that the new snapshot has of its parent.
    :param files: data files removed; ``rows`` are theirs, ``bytes`` with those of delete files.
    :param partitions: paths of the partitions that lost files.
    """

    manifests: list[ManifestFile]
    files: int = 0
    rows: int = 0
    bytes: int = 0
    partitions: frozenset[str] = frozenset()
    position_delete_files: int = 0
    position_deletes: int = 0
    equality_delete_files: int = 0
    equality_deletes: int = 0

    @property
    def facts(self) -> dict[str, int]:
        """Its part of a snapshot summary; empty if nothing was removed."""
        facts = {
            "deleted-data-files": self.files,
            "deleted-records": self.rows,
            "removed-files-size": self.bytes,
            "removed-delete-files": self.position_delete_files + self.equality_delete_files,
            "removed-position-delete-files": self.position_delete_files,
            "removed-position-deletes": self.position_deletes,
            "removed-equality-delete-files": self.equality_delete_files,
            "removed-equality-deletes": self.equality_deletes,
        }
        return {name: count for name, count in facts.items() if count}


class Tally:
    """What is counted of files that are taken, or that come back."""

    def __init__(self) -> None:
        # By content: data, position deletes, equality deletes.
        self.files, self.rows = [0, 0, 0], [0, 0, 0]
        self.bytes = 0
        self.partitions: set[tuple[int, Key]] = set()
        self.paths: set[str] = set()

    def add(self, entry: Entry, partition: Key, spec_id: int) -> None:
        content = entry.file.get("content") or 0
        self.files[content] += 1
        self.rows[content] += entry.file["record_count"]
        self.bytes += entry.file["file_size_in_bytes"]
        if partition:
            self.partitions.add((spec_id, partition))

    def merge(self, other: Tally) -> None:
        self.files = [sum(pair) for pair in zip(self.files, other.files, strict=True)]
        self.rows = [sum(pair) for pair in zip(self.rows, other.rows, strict=True)]
        self.bytes += other.bytes
        self.partitions |= other.partitions
        self.paths |= other.paths


def remove(
    metadata: TableMetadata,
    io: FileIO,
    parent: Snapshot | None,
    removals: Sequence[Removal],
    snapshot_id: int,
    new_path: Callable[[], str],
) -> Removed:
    """Write the manifests of ``parent`` without what ``removals`` take.

    :param parent: the snapshot that the new one, ``snapshot_id``, is based on; None if it is the first.
    :param new_path: gives the location of each new manifest, never the same twice.
    :raises TableMovedError: if a path is not live in ``parent``; nothing is written then.
    """
    selector = RemovalSelector(metadata, removals)
    listed = parent.manifests(io) if parent else []
    live = [manifest for manifest in listed if manifest.has_added_files() or manifest.has_existing_files()]
    seen = Tally()
    hit: dict[int, bytearray | None] = {}
    if selector.everything:
        hit = dict.fromkeys(range(len(live)))
    else:
        for at, (tally, taken) in enumerate(in_order(lambda manifest: _look(io, selector, manifest), live)):
            seen.merge(tally)
            if any(tally.files):
                hit[at] = taken
    _require_all(selector, seen)
    tasks = [(live[at], taken, new_path()) for at, taken in hit.items()]
    rewritten: dict[int, ManifestFile] = {}
    for at, (tally, manifest) in zip(hit, in_order(lambda task: _rewrite(io, *task, snapshot_id), tasks), strict=True):
        rewritten[at] = manifest
        if selector.everything:
            seen.merge(tally)
    return Removed(
        manifests=[rewritten.get(at, manifest) for at, manifest in enumerate(live)],
        files=seen.files[0],
        rows=seen.rows[0],
        bytes=seen.bytes,
        partitions=frozenset(partition_paths(metadata, seen.partitions)),
        position_delete_files=seen.files[1],
        position_deletes=seen.rows[1],
        equality_delete_files=seen.files[2],
        equality_deletes=seen.rows[2],
    )


def _look(io: FileIO, selector: RemovalSelector, manifest: ManifestFile) -> tuple[Tally, bytearray]:
    """Count what is taken from a manifest, and mark it: a byte for each entry."""
    tally, marks, spec_id = Tally(), bytearray(), manifest.partition_spec_id
    if not selector.may_be_in(manifest):
        return tally, marks
    for entry, partition in entries_of(io, manifest, selector.fields):
        marks.append(0)
        if entry.status == DELETED:
            continue
        if selector.takes(entry, partition, spec_id, selector.file_of(entry, partition, spec_id)):
            marks[-1] = 1
            tally.add(entry, partition, spec_id)
            if entry.file["file_path"] in selector.paths:
                tally.paths.add(entry.file["file_path"])
    return tally, marks


def _rewrite(
    io: FileIO, manifest: ManifestFile, marks: bytearray | None, path: str, snapshot_id: int
) -> tuple[Tally, ManifestFile]:
    """Write a manifest anew without the marked files; without all if there are no marks."""
    tally = Tally()

    def took(entry: Entry, partition: Key) -> None:
        tally.add(entry, partition, manifest.partition_spec_id)

    return tally, rewrite_manifest(io, path, manifest, snapshot_id, marks, took)


def _require_all(selector: RemovalSelector, seen: Tally) -> None:
    missing = selector.paths - seen.paths
    if missing:
        raise TableMovedError(
            f"{len(missing)} of {len(selector.paths)} data files to replace are not in the table any more, such as {min(missing)}: "
            "another commit removed or rewrote them. Nothing was changed. Run the stage again: it plans the write on the table as "
            "it is."
        )


def partition_paths(metadata: TableMetadata, partitions: Iterable[tuple[int, Key]]) -> Iterator[str]:
    """Paths of partitions, by spec and values."""
    from pyiceberg.typedef import Record

    specs, schema = metadata.specs(), metadata.schema()
    for spec_id, values in partitions:
        yield specs[spec_id].partition_to_path(Record(*values), schema)


def classified(table: Table, snapshot_id: int, expression: BooleanExpression) -> Iterator[tuple[DataFile, bool]]:
    """Data files of a snapshot that may hold matching rows, each with whether all of its rows match."""
    from pyiceberg.manifest import ManifestContent

    from airflow_ckpt_provider.tables.iceberg.matching import MetricsEvaluator

    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise HistoryExpiredError(
            f"Snapshot {snapshot_id} of {'.'.join(table.name())} is not there any more. Run the stage again: it plans the write on "
            "the table as it is."
        )
    matcher = MetricsEvaluator(table.metadata, expression)
    listed = snapshot.manifests(table.io)
    holding = (candidate for candidate in listed if candidate.content == ManifestContent.DATA and matcher.may_be_in(candidate))
    for manifest, entry, partition in live_entries(table.io, holding, None):
        file = data_file(entry, partition, manifest.partition_spec_id)
        whole = matcher.whole(file, manifest.partition_spec_id)
        if whole or matcher.possible(file, manifest.partition_spec_id):
            yield file, whole


class Classified(NamedTuple):
    """Data files all of whose rows match, and data files that may hold both matching and other rows; each is read on demand."""

    whole: Iterator[DataFile]
    partial: Iterator[DataFile]


def classify(table: Table, snapshot_id: int, expression: BooleanExpression) -> Classified:
    """What :func:`classified` finds, in two."""
    return Classified(
        (file for file, whole in classified(table, snapshot_id, expression) if whole),
        (file for file, whole in classified(table, snapshot_id, expression) if not whole),
    )
