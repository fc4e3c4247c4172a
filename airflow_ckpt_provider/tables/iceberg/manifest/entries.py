"""Manifest entries as a commit sees them: with what they inherit from the manifest list, and as pyiceberg's data files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.tables.iceberg.manifest.avro import Entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile

    from airflow_ckpt_provider.tables.iceberg.manifest.avro import Entry

EXISTING, ADDED, DELETED = 0, 1, 2

#: What a summary needs to know of a data file; these stand first in every writer's schema.
FACTS = frozenset({"content", "file_path", "partition", "record_count", "file_size_in_bytes"})

MAPS = frozenset({"column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"})


def entries_of(
    io: FileIO, manifest: ManifestFile, fields: frozenset[str] | None = FACTS
) -> Iterator[tuple[Entry, tuple[Any, ...]]]:
    """All entries of a manifest, deleted ones included, with inherited values made explicit, and each file's partition."""
    with Entries(io, manifest.manifest_path, fields) as entries:
        for entry in entries:
            yield inheriting(entry, manifest), entries.partition(entry.file)


def live_entries(
    io: FileIO, manifests: Iterable[ManifestFile], fields: frozenset[str] | None = FACTS
) -> Iterator[tuple[ManifestFile, Entry, tuple[Any, ...]]]:
    """The entries of these manifests whose files are in the table, each with its manifest and the file's partition."""
    for manifest in manifests:
        for entry, partition in entries_of(io, manifest, fields):
            if entry.status != DELETED:
                yield manifest, entry, partition


def inheriting(entry: Entry, manifest: ManifestFile) -> Entry:
    """The entry with what the Iceberg spec lets it inherit from its manifest ("Sequence Number Inheritance")."""
    if entry.snapshot_id is None:
        entry = entry._replace(snapshot_id=manifest.added_snapshot_id)
    inherited = manifest.sequence_number or 0
    if entry.status == ADDED or not inherited:
        if entry.sequence_number is None:
            entry = entry._replace(sequence_number=inherited)
        if entry.file_sequence_number is None:
            entry = entry._replace(file_sequence_number=inherited)
    return entry


def data_file(entry: Entry, partition: tuple[Any, ...], spec_id: int) -> DataFile:
    """An entry's file as pyiceberg has it; the entry was read with all fields."""
    from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    # Iceberg stores maps with integer keys as lists of key and value.
    values: dict[str, Any] = {
        name: {pair["key"]: pair["value"] for pair in value} if name in MAPS and value is not None else value
        for name, value in entry.file.items()
    }
    values["content"] = DataFileContent(values.get("content") or 0)
    values["file_format"] = FileFormat(values["file_format"])
    values["partition"] = Record(*partition)
    file = DataFile(*(values.get(field.name) for field in DATA_FILE_TYPE[2].fields))
    file.spec_id = spec_id
    return file
