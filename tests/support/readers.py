"""The rows of a table as three readers see them that share no code: pyiceberg, DuckDB's Iceberg extension and iceberg-rust.

What only the library reads right that also wrote it is not written right. All three start from a metadata file. DuckDB and
iceberg-rust take no branch, and iceberg-rust no snapshot, so for both a metadata file is derived whose current snapshot and
schema are the ones asked for; pyiceberg reads branch and snapshot by its own means.

A fake S3 that they read from must be another process: iceberg-rust holds the interpreter's lock while it waits for an answer.
"""

from __future__ import annotations

import contextlib
import decimal
import functools
import importlib
import json
import math
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datafusion
import duckdb
import pyarrow as pa
from obstore.fsspec import FsspecStore
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import UUIDType
from pyiceberg_core.datafusion import IcebergDataFusionTable

from support.states import state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_S3 = ("endpoint", "region", "access-key-id", "secret-access-key")

_EXACT = decimal.Context(prec=76)

READERS = ("pyiceberg", "duckdb", "iceberg-rust")

#: Rows in the one form that can be compared: see ``_comparable``.
Rows = list[dict[str, Any]]


#: What each reader has read as it was expected: the table's state and the rows.
_read: set[tuple[str, str]] = set()


def rows_by_each_reader(
    table: Table, *, branch: str | None = None, snapshot_id: int | None = None, names: Collection[str] = READERS
) -> dict[str, Rows]:
    """All rows of the table as it is, or of a branch or snapshot of it, by the reader's name; sorted and comparable.

    :param snapshot_id: read with the schema that this snapshot was written with.
    :param names: of the readers.
    """
    snapshot = _snapshot(table, branch, snapshot_id)
    schema = table.schemas()[snapshot.schema_id] if snapshot is not None else table.schema()
    read: dict[str, Callable[[], pa.Table]] = {
        "pyiceberg": lambda: table.scan(snapshot_id=snapshot and snapshot.snapshot_id).to_arrow()
    }
    with _metadata_of(table, snapshot) as location:
        read["duckdb"] = lambda: _duckdb_table(table, location)
        read["iceberg-rust"] = lambda: _rust_table(table, location)
        return {name: _comparable_rows(read[name]().to_pylist(), schema) for name in names}


def assert_same_in_every_state(table: Table, expected: Sequence[Mapping[str, Any]]) -> None:
    """As ``assert_same_everywhere``, for hundreds of tables that are all alike but for random ids and the clock.

    The first table of each state is read by every reader, one that is alike in all that readers see by one of them.
    """
    state = (state_of(table), repr(expected))
    assert_same_everywhere(table, expected, names=READERS[:1] if state in _read else READERS)
    _read.add(state)


def assert_same_everywhere(
    table: Table,
    expected: pa.Table | Sequence[Mapping[str, Any]],
    *,
    branch: str | None = None,
    snapshot_id: int | None = None,
    names: Collection[str] = READERS,
) -> None:
    """Each reader finds exactly the expected rows: every column, null and NaN, each row as often as it is expected.

    :param expected: rows in any order; columns that they lack are null.
    :param names: of the readers.
    """
    snapshot = _snapshot(table, branch, snapshot_id)
    schema = table.schemas()[snapshot.schema_id] if snapshot is not None else table.schema()
    listed = expected.to_pylist() if isinstance(expected, pa.Table) else list(expected)
    unknown = {name for row in listed for name in row} - set(schema.column_names)
    assert not unknown, f"rows with the columns {unknown} are expected, which the table does not have"
    # Through the table's own types, so that 1 is 1.0 in a column of doubles.
    typed = pa.Table.from_pylist(listed, schema=schema_to_pyarrow(schema, include_field_ids=False)).to_pylist()
    wanted = _comparable_rows(typed, schema)
    for reader, found in rows_by_each_reader(table, branch=branch, snapshot_id=snapshot_id, names=names).items():
        # As text, which also tells 1 from True and 0.0 from -0.0.
        assert repr(found) == repr(wanted), _difference(reader, found, wanted)


def duckdb_rows(table: Table, query: str = "select * from rows") -> list[tuple]:
    """Rows of ``query`` over the table, read by DuckDB from the table's metadata file."""
    found = _duckdb_table(table, table.metadata_location, query)
    return [tuple(row.values()) for row in found.to_pylist()]


def _snapshot(table: Table, branch: str | None, snapshot_id: int | None) -> Snapshot | None:
    if snapshot_id is not None:
        found = table.snapshot_by_id(snapshot_id)
        assert found is not None, f"there is no snapshot {snapshot_id}"
        return found
    if branch is not None:
        found = table.snapshot_by_name(branch)
        assert found is not None, f"there is no branch {branch}"
        return found
    return None


@contextlib.contextmanager
def _metadata_of(table: Table, snapshot: Snapshot | None) -> Iterator[str]:
    """Location of metadata whose current snapshot is this one; the table's own if none is asked for."""
    if snapshot is None:
        yield table.metadata_location
        return
    document = json.loads(table.metadata.model_dump_json())
    document |= {"current-snapshot-id": snapshot.snapshot_id, "current-schema-id": snapshot.schema_id}
    document["refs"] = {"main": {"snapshot-id": snapshot.snapshot_id, "type": "branch"}}
    location = f"{table.location()}/metadata/00000-{uuid.uuid4()}.metadata.json"
    with table.io.new_output(location).create() as file:
        file.write(json.dumps(document).encode())
    yield location
    table.io.delete(location)


def _duckdb_table(table: Table, location: str, query: str = "select * from rows") -> pa.Table:
    s3 = [table.io.properties[f"s3.{name}"] for name in _S3] if location.startswith("s3://") else []
    with _duckdb(*s3).cursor() as cursor:
        if table.metadata.current_snapshot_id is None and location == table.metadata_location:
            columns = ", ".join(f'null as "{name}"' for name in table.schema().column_names)
            cursor.execute(f"create temp view rows as select {columns} limit 0")
        else:
            cursor.execute(f"create temp view rows as select * from iceberg_scan('{location.removeprefix('file://')}')")
        try:
            return cursor.execute(query).to_arrow_table()
        finally:
            cursor.execute("drop view rows")


@functools.cache
def _duckdb(*s3: str) -> duckdb.DuckDBPyConnection:
    """A connection for all reads of one place. DuckDB's own client for S3 is no package, so it reads through obstore.

    :param s3: endpoint, region, key id and secret; nothing for local files.
    """
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "threads": "2"}
    )
    for extension in ("avro", "iceberg"):
        package = Path(importlib.import_module(f"duckdb_extension_{extension}").__file__).parent
        (binary,) = package.rglob("*.duckdb_extension")
        connection.execute(f"load '{binary}'")
    if s3:
        config = {"endpoint": s3[0], "region": s3[1], "access_key_id": s3[2], "secret_access_key": s3[3]}
        connection.register_filesystem(FsspecStore("s3", config=config, client_options={"allow_http": True}))
    return connection


def _rust_table(table: Table, location: str) -> pa.Table:
    properties = {name: str(value) for name, value in table.io.properties.items() if name.startswith("s3.")}
    if properties:
        # A server on an address without a name cannot have its buckets in the host name.
        properties["s3.path-style-access"] = "true"
    source = IcebergDataFusionTable(identifier=list(table.name()), metadata_location=location, file_io_properties=properties)
    context = _datafusion()
    context.register_table("rows", source)
    try:
        return context.sql("select * from rows").to_arrow_table()
    finally:
        context.deregister_table("rows")


@functools.cache
def _datafusion() -> datafusion.SessionContext:
    return datafusion.SessionContext()


def _comparable_rows(rows: Sequence[Mapping[str, Any]], schema: Schema) -> Rows:
    uuids = {field.name for field in schema.fields if isinstance(field.field_type, UUIDType)}
    made = [{name: _uuid(row[name]) if name in uuids else _comparable(row[name]) for name in sorted(row)} for row in rows]
    return sorted(made, key=repr)


def _comparable(value: Any) -> Any:
    """Equal if and only if it is the same value: NaN equals NaN, 1.50 equals 1.5 and an instant equals itself in any zone."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case Decimal():
            return _EXACT.normalize(value)
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC)
        case dict():
            return {name: _comparable(value[name]) for name in sorted(value)}
        case list() | tuple():
            return [_comparable(one) for one in value]
        case _:
            return value


def _uuid(value: Any) -> uuid.UUID | None:
    """Readers have it as sixteen bytes, as text or as itself."""
    match value:
        case bytes():
            return uuid.UUID(bytes=value)
        case str():
            return uuid.UUID(value)
        case _:
            return value


def _difference(reader: str, found: Rows, wanted: Rows) -> str:
    """A message that stays readable with many rows."""
    seen, missing = list(map(repr, found)), []
    for row in map(repr, wanted):
        if row in seen:
            seen.remove(row)
        else:
            missing.append(row)
    return f"{reader} finds {len(found)} rows instead of {len(wanted)}; missing: {missing[:5]}; too many: {seen[:5]}"
