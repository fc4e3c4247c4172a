"""What attempts have left in a table's location: files that bear their names, whether a snapshot refers to them or not (I4).

Files are compared by their names, which are unique: the same place may be written as ``file:/…``, ``file:///…`` or a plain path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.checkpoint.layout import attempt_of
from airflow_ckpt_provider.exceptions import UnsupportedTableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def written_by(table: Table, attempts: frozenset[str]) -> list[StagedFile]:
    """Files below the table's location that these attempts have written."""
    found = {
        file.path: file
        for folder in _folders(table)
        for file in _listed(table, folder)
        if attempt_of(name_of(file.path)) in attempts
    }
    return [found[path] for path in sorted(found)]


def referenced(table: Table, snapshot_id: int | None, attempts: frozenset[str]) -> set[str]:
    """Names of those files that a branch or tag of the table refers to, or the snapshot that a checkpoint was committed as."""
    metadata = table.metadata
    wanted = {ref.snapshot_id for ref in metadata.refs.values()} | ({snapshot_id} if snapshot_id is not None else set())
    names: set[str] = set()
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id in wanted:
            names |= set(_names_in(table, snapshot, attempts))
    return names


def _names_in(table: Table, snapshot: Snapshot, attempts: frozenset[str]) -> Iterator[str]:
    for manifest in snapshot.manifests(table.io):
        if attempt_of(name_of(manifest.manifest_path)) in attempts:
            yield name_of(manifest.manifest_path)
            for entry in manifest.fetch_manifest_entry(table.io):
                yield name_of(entry.data_file.file_path)


def _folders(table: Table) -> set[str]:
    """Where the table's files are, by its properties."""
    properties, location = table.metadata.properties, table.metadata.location.rstrip("/")
    data = properties.get("write.data.path", f"{location}/data")
    return {data.rstrip("/"), properties.get("write.metadata.path", f"{location}/metadata").rstrip("/")}


def _listed(table: Table, folder: str) -> Iterator[StagedFile]:
    from pyarrow.fs import FileSelector
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = table.io
    if not isinstance(io, PyArrowFileIO):
        raise UnsupportedTableError(
            f"The files of {'.'.join(table.name())} cannot be listed, because its catalog uses {type(io).__name__}. Set py-io-impl "
            "to pyiceberg.io.pyarrow.PyArrowFileIO in the Iceberg connection."
        )
    scheme, netloc, plain = io.parse_location(folder, io.properties)
    for info in io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(plain, recursive=True, allow_not_found=True)):
        if info.is_file:
            yield StagedFile(folder + info.path[len(plain.rstrip("/")) :], info.size)
