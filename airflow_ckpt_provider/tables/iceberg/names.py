"""Names as files have them: of columns and partition fields in Avro's letters, and of partition folders that file systems take.

Readers tell columns and partitions by what manifests say, never by these names.
"""

from __future__ import annotations

import hashlib
import importlib.util
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError, UnsupportedTableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType

#: Bytes of a folder's name, below the 255 that file systems take, and of all folders of a partition: object storage takes 1,024
#: for a whole path.
_FOLDER, _FOLDERS = 240, 640

#: Hex digits that stand for what was cut off the name of a folder.
_DIGEST = 16

#: What Iceberg calls a codec, and what Avro does.
_CODECS = {"uncompressed": "null", "gzip": "gzip", "snappy": "snappy", "zstd": "zstd"}


def avro_codec(properties: Mapping[str, str], table: str) -> str:
    """Codec of manifests and manifest lists, as pyiceberg takes it.

    :param table: name, for messages.
    :raises InvalidInputError: if the table's property names none that there is.
    """
    name = properties.get("write.avro.compression-codec", "gzip")
    codec = _CODECS.get(name.lower())
    if codec is None:
        raise InvalidInputError(
            f"The table property write.avro.compression-codec of {table} is {name!r}; the codecs are {', '.join(_CODECS)}. Nothing "
            "was written: correct the property, then clear the task."
        )
    if codec == "snappy" and not importlib.util.find_spec("snappy"):
        raise InvalidInputError(
            f"The table property write.avro.compression-codec of {table} is {name!r}, and the package for it is not installed. "
            "Nothing was written: install pyiceberg[snappy] here and on executors, then clear the task."
        )
    return codec


def require_names(metadata: TableMetadata, table: str) -> None:
    """Refuse a table of which two columns, or two partition fields, would have one name in files.

    :param table: name, for messages.
    :raises UnsupportedTableError: naming both.
    """
    require_columns(metadata.schema(), table)
    _require_apart("partition fields", [field.name for field in metadata.spec().fields], table)


def require_columns(schema: Schema, table: str) -> None:
    """Refuse a schema of which two columns would have one name in files; see ``require_names``."""
    for names in _siblings(schema):
        _require_apart("columns", names, table)


def shortened(path: str) -> str:
    """The folders of a partition, such as ``day=2026-01-01/kind=a``: names that are too long end with a digest of themselves."""
    folders = path.split("/")
    longest = min(_FOLDER, _FOLDERS // len(folders))
    return "/".join(
        folder if len(folder) <= longest else f"{folder[: longest - _DIGEST - 1].rstrip('%')}~{_digest(folder)}"
        for folder in folders
    )


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]


def _require_apart(kind: str, names: Iterable[str], table: str) -> None:
    from pyiceberg.schema import make_compatible_name

    written: dict[str, str] = {}
    for name in names:
        other = written.setdefault(make_compatible_name(name), name)
        if other != name:
            raise UnsupportedTableError(
                f"The {kind} {other!r} and {name!r} of {table} would both be called {make_compatible_name(name)!r} in files, where "
                "only letters, digits and '_' are allowed. Nothing was written: rename one of them."
            )


def _siblings(schema: Schema) -> Iterator[list[str]]:
    """Names of the columns, and of the members of each struct."""
    waiting: list[IcebergType] = [schema.as_struct()]
    while waiting:
        kind = waiting.pop()
        fields = list(getattr(kind, "fields", ()))
        if fields:
            yield [field.name for field in fields]
        waiting += [field.field_type for field in fields]
        waiting += [inner for inner in (getattr(kind, name, None) for name in ("element_type", "key_type", "value_type")) if inner]
