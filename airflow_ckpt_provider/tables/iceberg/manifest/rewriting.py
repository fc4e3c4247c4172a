"""One manifest written anew, entry by entry: with files of it kept as existing, and files of it removed by the new snapshot."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from airflow_ckpt_provider.tables.iceberg.manifest.avro import HEAD, ContainerWriter, Entries, to_long
from airflow_ckpt_provider.tables.iceberg.manifest.entries import ADDED, DELETED, EXISTING, FACTS, inheriting
from airflow_ckpt_provider.tables.iceberg.manifest.staged import FACTS_ENTRY

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Self

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile

    from airflow_ckpt_provider.tables.iceberg.manifest.avro import Entry


def rewrite_manifest(
    io: FileIO,
    path: str,
    source: ManifestFile,
    snapshot_id: int,
    marks: bytearray | None,
    took: Callable[[Entry, tuple[Any, ...]], None],
) -> ManifestFile:
    """Write ``source`` anew at ``path``, without the files that are marked; what earlier snapshots deleted is left out.

    :param snapshot_id: the snapshot that removes them.
    :param marks: a byte for each entry of ``source``, not 0 if its file goes; None if all go.
    :param took: called for each file that goes, with its partition.
    """
    with Entries(io, source.manifest_path, FACTS) as entries, _Rewrite(io, path, source, entries, snapshot_id) as rewrite:
        for at, stored in enumerate(entries):
            if stored.status == DELETED:
                continue
            entry = inheriting(stored, source)
            if marks is None or marks[at]:
                rewrite.deleted(entry)
                took(entry, entries.partition(entry.file))
            else:
                rewrite.existing(entry)
    return rewrite.manifest_file()


def restore_manifest(io: FileIO, path: str, source: ManifestFile, snapshot_id: int, paths: frozenset[str]) -> ManifestFile:
    """Write a manifest of an earlier snapshot anew at ``path``, with these files of it, as added by a later one.

    They keep their sequence numbers, so that the deletes which applied to them, and no others, apply to them again.

    :param snapshot_id: the snapshot that adds them again.
    :param paths: of files that were live in the earlier snapshot.
    """
    with Entries(io, source.manifest_path, FACTS) as entries, _Rewrite(io, path, source, entries, snapshot_id) as rewrite:
        for stored in entries:
            if stored.status != DELETED and stored.file["file_path"] in paths:
                rewrite.added(inheriting(stored, source))
    return rewrite.manifest_file()


class _Rewrite:
    """A new manifest made of the entries of another one, of its schema and with its metadata.

    :param source: the manifest that it replaces.
    :param snapshot_id: the snapshot that it is written for.
    """

    def __init__(self, io: FileIO, path: str, source: ManifestFile, entries: Entries, snapshot_id: int) -> None:
        self.source, self.snapshot_id = source, snapshot_id
        self.files, self.rows = [0, 0, 0], [0, 0, 0]
        self._lowest: int | None = None
        # A manifest of a table that was version 1 once knows no sequence numbers and no content.
        meta = {name: value for name, value in entries.container.meta.items() if name != FACTS_ENTRY}
        shape = entries.shape.head
        self._old = len(shape) < len(HEAD)
        self._nulls = [0, *(shape.get(name, 0) for name in HEAD[1:])]
        self._tail = b""
        if self._old:
            schema, self._tail = _as_version_2(entries.container.schema)
            meta |= {"avro.schema": schema.encode(), "format-version": b"2", "content": b"data"}
        self._writer = ContainerWriter(io, path, meta, hashlib.md5(path.encode(), usedforsecurity=False).digest())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, trace)

    def existing(self, entry: Entry) -> None:
        """Keep a live file."""
        self._add(EXISTING, entry, entry.snapshot_id)

    def added(self, entry: Entry) -> None:
        """Record that this snapshot adds a file again."""
        self._add(ADDED, entry._replace(file_sequence_number=None), self.snapshot_id)

    def deleted(self, entry: Entry) -> None:
        """Record that this snapshot removes a live file."""
        self._add(DELETED, entry, self.snapshot_id)

    def _add(self, status: int, entry: Entry, snapshot_id: int | None) -> None:
        self.files[status] += 1
        self.rows[status] += entry.file["record_count"]
        if status != DELETED and entry.sequence_number is not None:
            self._lowest = entry.sequence_number if self._lowest is None else min(self._lowest, entry.sequence_number)
        head = to_long(status)
        for null, value in zip(self._nulls[1:], (snapshot_id, entry.sequence_number, entry.file_sequence_number), strict=True):
            if null is None:
                head += to_long(value or 0)
            else:
                head += to_long(null) if value is None else to_long(1 - null) + to_long(value)
        self._writer.add(head + entry.body + self._tail)

    def manifest_file(self) -> ManifestFile:
        """The finished manifest's entry of a manifest list.

        Bounds of its partitions are those of the manifest it replaces: it has no entry that the other has not.
        """
        from pyiceberg.manifest import UNASSIGNED_SEQ
        from pyiceberg.manifest import ManifestFile as Listed

        return Listed.from_args(
            manifest_path=self._writer.path,
            manifest_length=self._writer.length,
            partition_spec_id=self.source.partition_spec_id,
            content=self.source.content,
            sequence_number=UNASSIGNED_SEQ,
            min_sequence_number=UNASSIGNED_SEQ if self._lowest is None else self._lowest,
            added_snapshot_id=self.snapshot_id,
            added_files_count=self.files[ADDED],
            existing_files_count=self.files[EXISTING],
            deleted_files_count=self.files[DELETED],
            added_rows_count=self.rows[ADDED],
            existing_rows_count=self.rows[EXISTING],
            deleted_rows_count=self.rows[DELETED],
            partitions=self.source.partitions,
            key_metadata=self.source.key_metadata,
        )


def _as_version_2(schema: str) -> tuple[str, bytes]:
    """The entry schema of version 2 for a manifest of version 1, and what each entry has to end with then."""
    parsed = json.loads(schema)
    status, snapshot, file = parsed["fields"]
    optional = {"type": ["null", "long"], "default": None}
    parsed["fields"] = [
        status,
        snapshot,
        {"name": "sequence_number", "field-id": 3} | optional,
        {"name": "file_sequence_number", "field-id": 4} | optional,
        file,
    ]
    if any(field["name"] == "content" for field in file["type"]["fields"]):
        return json.dumps(parsed), b""
    file["type"]["fields"].append({"name": "content", "field-id": 134, "type": "int"})
    return json.dumps(parsed), to_long(0)
