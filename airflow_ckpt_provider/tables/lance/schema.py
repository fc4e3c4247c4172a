"""The columns of a dataset as its files have to have them: field ids, their order in a file, and what must not change meanwhile."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

#: Storage versions in which only leaves have columns of their own in a file.
LEAVES_ONLY = ("2.1", "2.2", "2.3")


def fingerprint(schema: Any) -> str:  # noqa: ANN401 - a LanceSchema
    """SHA-256 over names, ids, types and nullability of all fields, at every depth.

    Lance trusts the field ids that a fragment names: rows staged before the columns changed would be read as other columns.
    """
    facts = [_facts(field) for field in schema.fields()]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def _facts(field: Any) -> list[object]:  # noqa: ANN401 - a LanceField
    arrow = field.to_arrow()
    return [field.name(), field.id(), str(arrow.type), arrow.nullable, [_facts(child) for child in field.children()]]


def file_fields(schema: Any, columns: Sequence[str] | None = None) -> list[int]:  # noqa: ANN401 - a LanceSchema
    """Ids of the fields that have a column in a data file, in the order of the columns.

    :param columns: top-level columns that the file has; all if None.
    """
    wanted = [field for field in schema.fields() if columns is None or field.name() in columns]
    return [leaf for field in wanted for leaf in _leaves(field)]


def _leaves(field: Any) -> Iterator[int]:  # noqa: ANN401 - a LanceField
    children = field.children()
    if not children:
        yield field.id()
    for child in children:
        yield from _leaves(child)


def schema_to_json(schema: pa.Schema) -> str:
    """An Arrow schema as the store can hold it: Arrow's own form in base64."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_json(text: str) -> pa.Schema:
    """What ``schema_to_json`` made."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
