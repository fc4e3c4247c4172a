"""Orphans in a table's location, among the files that bear the names of attempts, whether a snapshot refers to them or not (I4).

Files are compared by their names, which are unique: the same place may be written as ``file:/…``, ``file:///…`` or a plain path.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.checkpoint.layout import author_of
from airflow_ckpt_provider.exceptions import UnsupportedTableError
from airflow_ckpt_provider.tables.iceberg.manifest import in_order, live_entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

    from airflow_ckpt_provider.tables.written_files import Owner

#: What is read of an entry: no more than where its file is.
_FIELDS = frozenset({"file_path", "partition"})


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def written(table: Table) -> Iterator[tuple[Owner, StagedFile]]:
    """Files below the table's location that attempts have written, and whose they are."""
    for folder in _folders(table):
        for file in _listed(table, folder):
            author = author_of(name_of(file.path))
            if author is not None:
                yield (author.key_hash, author.generation), file


def referenced(table: Table, names: set[str]) -> set[str]:
    """Those of these names that any snapshot of the table has, on whatever branch.

    All manifests are read: another writer may have merged entries of ours into manifests of its own.
    """
    if not names:
        return set()
    lists = in_order(lambda snapshot: snapshot.manifests(table.io), table.metadata.snapshots)
    manifests = {manifest.manifest_path: manifest for listed in lists for manifest in listed}

    def live(manifest: ManifestFile) -> set[str]:
        return {name_of(entry.file["file_path"]) for _, entry, _ in live_entries(table.io, [manifest], _FIELDS)} & names

    names_there = {name_of(path) for path in manifests} & names
    return names_there.union(*in_order(live, manifests.values()))


def _folders(table: Table) -> set[str]:
    """Where the table's files are, by its properties."""
    properties, location = table.metadata.properties, table.metadata.location.rstrip("/")
    data = properties.get("write.data.path", f"{location}/data")
    return {data.rstrip("/"), properties.get("write.metadata.path", f"{location}/metadata").rstrip("/")}


def _listed(table: Table, folder: str) -> Iterator[StagedFile]:
    """All files below a folder. What a link of a local folder leads to is not below it."""
    from pyarrow.fs import FileSelector
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = table.io
    if not isinstance(io, PyArrowFileIO):
        raise UnsupportedTableError(
            f"The files of {'.'.join(table.name())} cannot be listed, because its catalog uses {type(io).__name__}. Set py-io-impl "
            "to pyiceberg.io.pyarrow.PyArrowFileIO in the Iceberg connection."
        )
    scheme, netloc, plain = io.parse_location(folder, io.properties)
    if scheme == "file":
        for place, _, files in os.walk(plain):
            for path in (os.path.join(place, file) for file in files):
                if not os.path.islink(path):
                    yield StagedFile(folder + path[len(plain.rstrip("/")) :], os.stat(path).st_size)
        return
    for info in io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(plain, recursive=True, allow_not_found=True)):
        if info.is_file:
            yield StagedFile(folder + info.path[len(plain.rstrip("/")) :], info.size)
