"""Which table, which snapshot of it, which schema, which rows: everything that a plan pins, and the errors of naming it wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.storage_problems import storage_problem
from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    RetryableError,
    TableMissingError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

MAIN = "main"


class Pin(NamedTuple):
    """What is read. ``snapshot_id`` is None for a table, or main branch, that nothing was written to yet."""

    snapshot_id: int | None
    schema_id: int


def open_table(name: str, options: Mapping[str, str]) -> Table:
    """The table as it is now.

    :param options: properties of the catalog, and its own name as ``name``.
    :raises TableMissingError: if there is no such table.
    :raises RetryableError: if the catalog does not answer.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    properties = dict(options)
    catalog_name = properties.pop("name", None)
    try:
        return load_catalog(catalog_name, **properties).load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise TableMissingError(
            f"The Iceberg table {name} does not exist in the catalog {catalog_name!r}, so it cannot be read. Check the name and "
            "the connection of the source."
        ) from error
    except Exception as error:
        said = storage_problem(str(error)) or f"{type(error).__name__}: {error}"
        raise RetryableError(f"The Iceberg table {name} could not be loaded from the catalog {catalog_name!r}: {said}") from error


def pin(table: Table, snapshot_id: int | None, as_of: datetime | None, branch: str | None) -> Pin:
    """Snapshot and schema to read; at most one of the parameters is given, the head of main if none.

    A snapshot, a time and a tag are read with the schema of then; a branch with the table's current schema, as other readers do.

    :raises InvalidInputError: if there is no such snapshot.
    """
    from pyiceberg.table.refs import SnapshotRefType

    name, metadata = ".".join(table.name()), table.metadata
    if snapshot_id is not None:
        snapshot = metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise InvalidInputError(
                f"The table {name} has no snapshot {snapshot_id}. It may have been expired; see the table's history for others."
            )
        return Pin(snapshot_id, _schema_of(table, snapshot))
    if as_of is not None:
        snapshot = table.snapshot_as_of_timestamp((as_of - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1))
        if snapshot is None:
            raise InvalidInputError(
                f"The table {name} has no snapshot as of {as_of.isoformat()}: it was created later, or its history was expired."
            )
        return Pin(snapshot.snapshot_id, _schema_of(table, snapshot))
    ref = metadata.refs.get(branch or MAIN)
    if ref is None:
        if branch in {None, MAIN}:
            return Pin(None, metadata.current_schema_id)
        raise InvalidInputError(
            f"The table {name} has no branch or tag {branch!r}; it has {', '.join(sorted(metadata.refs)) or 'none'}."
        )
    tagged = metadata.snapshot_by_id(ref.snapshot_id) if ref.snapshot_ref_type == SnapshotRefType.TAG else None
    return Pin(ref.snapshot_id, metadata.current_schema_id if tagged is None else _schema_of(table, tagged))


def _schema_of(table: Table, snapshot: Snapshot) -> int:
    if snapshot.schema_id is None or snapshot.schema_id in table.schemas():
        return table.metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id
    raise InvalidInputError(
        f"The schema {snapshot.schema_id} of snapshot {snapshot.snapshot_id} was removed from the metadata of "
        f"{'.'.join(table.name())}. Read a branch instead, which uses the current schema."
    )


def parse_filter(text: str | None, table: str) -> BooleanExpression | None:
    """The filter, not bound to a schema yet.

    :raises InvalidInputError: if it is no Iceberg expression.
    """
    if text is None:
        return None
    from pyiceberg.expressions.parser import parse
    from pyparsing import ParseException

    try:
        return parse(text)
    except (ParseException, ValueError) as error:
        at = f" near character {error.loc + 1}" if isinstance(error, ParseException) else f": {error}"
        raise InvalidInputError(
            f"IcebergTable({table!r}, row_filter={text!r}) is no Iceberg expression{at}. It looks like: day = '2026-01-01' and "
            "amount > 5. Operators: = != < <= > >= in, not in, like 'prefix%', is null, is nan, between, and, or, not."
        ) from error


def parse_time(value: str | datetime) -> datetime:
    """A point in time; one without a time zone is in UTC.

    :raises InvalidInputError: if it is no ISO 8601 time.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise InvalidInputError(
                f"IcebergTable(as_of={value!r}) is no ISO 8601 time, such as '2026-01-31T12:00:00+00:00'."
            ) from error
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
