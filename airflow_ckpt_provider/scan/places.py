"""Where the files of a table are, as its catalog says, and whether a path that a record names leads there (I15)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyiceberg.table.metadata import TableMetadata


def folders_of(metadata: TableMetadata) -> frozenset[str]:
    """Where a table's files are, as its catalog says."""
    return folders_at(metadata.location, metadata.properties)


def folders_at(location: str, properties: Mapping[str, str]) -> frozenset[str]:
    """The same, by the table's location and its properties."""
    configured = (properties.get(name) for name in ("write.data.path", "write.metadata.path"))
    return frozenset([location.rstrip("/"), *(path.rstrip("/") for path in configured if path)])


def is_below(path: str, folders: Collection[str]) -> bool:
    """Whether a path is below one of these folders, however it is read: a step upwards, or a hidden one, is none."""
    for folder in folders:
        if path.startswith(f"{folder}/"):
            below = path[len(folder) :]
            # Few paths have anything in them that has to be looked at.
            plain = "/." not in below and "//" not in below and "%" not in below and "\\" not in below
            return plain or not any(unquote(part) in {"", ".", ".."} or "\\" in part for part in below[1:].split("/"))
    return False
