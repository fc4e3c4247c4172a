"""Which columns of an Iceberg table are the keys of an upsert."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.iceberg.fit import write_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.types import PrimitiveType


class KeyColumn(NamedTuple):
    """One key column: the table's name of it, the name that files have, field id, type."""

    name: str
    written: str
    field_id: int
    kind: PrimitiveType


def key_columns(schema: Schema, keys: Sequence[str], table: str) -> tuple[KeyColumn, ...]:
    """The key columns of a table.

    :param keys: ``upsert_keys``.
    :param table: name, for messages.
    :raises InvalidInputError: if they cannot be keys of this table.
    """
    from pyiceberg.types import PrimitiveType

    if isinstance(keys, str) or not keys or not all(isinstance(key, str) for key in keys):
        raise InvalidInputError(f"upsert_keys={keys!r} is not a list of column names. Name the columns that tell rows apart.")
    twice = sorted({key for key in keys if list(keys).count(key) > 1})
    if twice:
        raise InvalidInputError(f"upsert_keys={list(keys)!r} names {', '.join(map(repr, twice))} more than once.")
    fields = {field.name: (field, arrow.name) for field, arrow in zip(schema.fields, write_schema(schema), strict=True)}
    missing = [key for key in keys if key not in fields]
    if missing:
        raise InvalidInputError(
            f"upsert_keys names {', '.join(map(repr, missing))}, which the table {table} does not have at its top level. Its "
            f"columns are: {', '.join(fields)}."
        )
    key_fields = []
    for key in keys:
        field, written = fields[key]
        if not isinstance(field.field_type, PrimitiveType):
            raise InvalidInputError(
                f"The column {key!r} of {table} is a {field.field_type}, which cannot be one of the upsert_keys: only columns of "
                "single values can."
            )
        key_fields.append(KeyColumn(key, written, field.field_id, field.field_type))
    return tuple(key_fields)
