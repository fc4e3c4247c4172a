"""A table that does not exist yet: its schema, partitioning and place are fixed before the first row is staged, and it comes
into being in the very commit that lands the rows.

Decision: the whole metadata of the table to be, UUID included, is pinned in the checkpoint's header. So every attempt writes
files for the same table, and the UUID tells our table from one that somebody else created under the same name meanwhile.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError, SchemaMismatchError
from airflow_ckpt_provider.tables.iceberg.manifest import FORMAT_VERSION
from airflow_ckpt_provider.tables.iceberg.terms import partition_spec, sort_order

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import StagedTable
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

    from airflow_ckpt_provider.checkpoint.documents import JsonObject

#: Parameters of the mode ``create``.
CREATION = frozenset({"partition_by", "sort_by", "table_properties", "location"})

#: Properties that steer no client: how files are laid out inside, and how often and how long what is kept. None of them names a
#: class, an endpoint, a credential or a place.
_PLAIN = re.compile(
    r"(?!.*impl$)(?:format-version|comment|gc\.enabled|owner"
    r"|(?:write\.(?:parquet|avro|orc|metadata\.(?:metrics|compression|delete|previous)|target|delete|update|merge|distribution|format"
    r"|spark|upsert|wap|summary|manifest|object-storage\.(?:enabled|partitioned))|read|commit|history|schema\.name-mapping)[0-9A-Za-z._-]*)"
)


def new_table(catalog: Catalog, identifier: str, rows: pa.Schema, parameters: JsonObject) -> StagedTable:
    """The table that rows of this schema make, not committed; its namespace is created if there is none.

    :param rows: schema of the rows.
    :param parameters: ``partition_by``, ``sort_by``, ``table_properties`` and ``location``, as the operator takes them.
    :raises InvalidInputError: if the partitioning or sort order is not one.
    :raises SchemaMismatchError: if a column has a type that Iceberg has not.
    """
    from pyiceberg.schema import assign_fresh_schema_ids

    properties = {"format-version": str(FORMAT_VERSION), **_strings(parameters.get("table_properties"))}
    if properties["format-version"] != str(FORMAT_VERSION):
        raise InvalidInputError(
            f"table_properties asks for format version {properties['format-version']}; only version {FORMAT_VERSION} can be "
            "written by staged manifests."
        )
    catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
    return _transaction(catalog, identifier, assign_fresh_schema_ids(_iceberg_schema(catalog, rows, identifier)), parameters)


def _transaction(catalog: Catalog, identifier: str, schema: Schema, parameters: JsonObject) -> StagedTable:
    """The table that the catalog makes of these, not committed."""
    properties = {"format-version": str(FORMAT_VERSION), **_strings(parameters.get("table_properties"))}
    spec = partition_spec(_list(parameters.get("partition_by")), schema)
    order = sort_order(_list(parameters.get("sort_by")), schema)
    location = parameters.get("location")
    transaction = catalog.create_table_transaction(
        identifier, schema, location=None if location is None else str(location), partition_spec=spec, sort_order=order,
        properties=properties,
    )  # fmt: skip
    # Only its table: it is filled and committed by our own loop.
    return transaction._table  # type: ignore[return-value]  # noqa: SLF001


def pinned(metadata: TableMetadata) -> JsonObject:
    """The metadata of a table to be, as a header holds it."""
    return msgspec.json.decode(metadata.model_dump_json())  # type: ignore[no-any-return]


def unborn(catalog: Catalog, identifier: str, creation: JsonObject) -> StagedTable:
    """The table to be, from a header."""
    from pyiceberg.catalog import Catalog as Base
    from pyiceberg.table import StagedTable

    metadata = _parsed(identifier, creation)
    place = f"{metadata.location.rstrip('/')}/metadata"
    # With the catalog's properties and no others: those of a header name the code that opens files, and where it goes (I15).
    io = catalog._load_file_io(location=place)  # noqa: SLF001 - as for every loaded table
    return StagedTable(Base.identifier_to_tuple(identifier), metadata, place, io, catalog)


def require_as_told(catalog: Catalog, identifier: str, creation: JsonObject, parameters: JsonObject | None) -> None:
    """Refuse a table to be that a header describes in another way than the DAG does (I15).

    Which columns it has, the header says; where it is, how it is partitioned and sorted, and its properties, the DAG does. Where
    the DAG does not say it either, such as to a commit that was given a key alone, no property is taken that tells a client which
    code to run or where to go, and no other place than the catalog's own.

    :param parameters: those of the mode; None where they are not known.
    :raises CorruptObjectError: naming each difference.
    """
    metadata = _parsed(identifier, creation)
    lines = []
    if parameters is None:
        unusual = sorted(name for name in metadata.properties if not _PLAIN.fullmatch(name))
        lines += [f"property {name!r}: {metadata.properties[name]!r}" for name in unusual]
        wanted = _transaction(catalog, identifier, metadata.schema(), {}).metadata
    else:
        wanted = _transaction(catalog, identifier, metadata.schema(), parameters).metadata
        pairs = [
            ("properties", metadata.properties, wanted.properties),
            ("partitioning", str(metadata.spec()), str(wanted.spec())),
            ("sort order", str(metadata.sort_order()), str(wanted.sort_order())),
        ]
        lines += [f"{what}: {stored} by the store, {told} by the DAG" for what, stored, told in pairs if stored != told]
    if not _same_place(metadata.location, wanted.location, told=bool(parameters and parameters.get("location"))):
        lines.append(f"location: {metadata.location!r} by the store, {wanted.location!r} by the catalog or the DAG")
    if lines:
        raise CorruptObjectError(
            f"The checkpoint store describes the table {identifier}, which is to be created, in another way than the DAG does:\n  "
            + "\n  ".join(lines)
            + "\nNothing was changed. If the store was not altered, pass the stage's output instead of a key alone, or redo the "
            "write under another idempotence key."
        )


def _parsed(identifier: str, creation: JsonObject) -> TableMetadata:
    """The metadata of a table to be: it has no history."""
    from pydantic import ValidationError
    from pyiceberg.exceptions import ValidationError as MetadataError
    from pyiceberg.table.metadata import TableMetadataUtil

    try:
        metadata = TableMetadataUtil.parse_obj(creation)
    except (ValidationError, MetadataError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise CorruptObjectError(f"The checkpoint store describes the table {identifier} in a way that is none: {error}") from error
    if metadata.snapshots or metadata.refs:
        raise CorruptObjectError(
            f"The checkpoint store says that the table {identifier} has snapshots before it is created. The store was altered; "
            "nothing was changed. Redo the write under another idempotence key."
        )
    return metadata


def _same_place(stored: str, asked: str, *, told: bool) -> bool:
    """Whether a table to be is where the catalog puts it: some end the name of its folder with something new each time."""
    place, other = stored.rstrip("/"), asked.rstrip("/")
    if place == other or told:
        return place == other
    folder, _, name = other.rpartition("/")
    table = re.split(r"[-_.][0-9a-fA-F]{8}", name)[0]
    return place.rpartition("/")[0] == folder and place.rpartition("/")[2].startswith(table) and name != table


def birth(metadata: TableMetadata) -> tuple[TableUpdate, ...]:
    """The updates that make the table out of nothing."""
    from pyiceberg.table.update import (
        AddPartitionSpecUpdate,
        AddSchemaUpdate,
        AddSortOrderUpdate,
        AssignUUIDUpdate,
        SetCurrentSchemaUpdate,
        SetDefaultSortOrderUpdate,
        SetDefaultSpecUpdate,
        SetLocationUpdate,
        SetPropertiesUpdate,
        UpgradeFormatVersionUpdate,
    )

    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    if order is None:
        raise InvalidInputError(f"The metadata pinned for {metadata.location} has no sort order: its header was altered.")
    return (
        AssignUUIDUpdate(uuid=metadata.table_uuid),
        UpgradeFormatVersionUpdate(format_version=metadata.format_version),
        AddSchemaUpdate(schema_=metadata.schema()),
        SetCurrentSchemaUpdate(schema_id=-1),
        AddPartitionSpecUpdate(spec=metadata.spec()),
        SetDefaultSpecUpdate(spec_id=-1),
        AddSortOrderUpdate(sort_order=order),
        SetDefaultSortOrderUpdate(sort_order_id=-1),
        SetLocationUpdate(location=metadata.location),
        SetPropertiesUpdate(updates=metadata.properties),
    )


def _iceberg_schema(catalog: Catalog, rows: pa.Schema, identifier: str) -> Schema:
    import pyarrow as pa

    plain, lines = [], []
    for field in rows:
        try:
            plain.append(pa.field(field.name, creatable(field.type), nullable=True))
        except TypeError as error:
            lines.append(f"column {field.name!r} is {error}, which Iceberg has no type for")
    if lines:
        raise SchemaMismatchError(
            f"No table {identifier} can be made of these rows:\n  " + "\n  ".join(lines) + "\nCast those columns in the transform."
        )
    return catalog._convert_schema_if_needed(pa.schema(plain), FORMAT_VERSION)  # type: ignore[arg-type]  # noqa: SLF001 - no public way without field ids


def creatable(kind: pa.DataType) -> pa.DataType:
    """The type nearest to ``kind`` that Iceberg has and that loses nothing.

    :raises TypeError: naming the type that there is none for.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return creatable(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([pa.field(member.name, creatable(member.type)) for member in kind])
    if types.is_map(kind):
        return pa.map_(creatable(kind.key_type), creatable(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(creatable(kind.value_type))
    return _creatable_value(kind)


def _creatable_value(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz is not None else None)
    if types.is_time(kind):
        return pa.time64("us")
    nearest = {
        pa.uint8(): pa.int32(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
        pa.large_string(): pa.string(),
        pa.string_view(): pa.string(),
        pa.large_binary(): pa.binary(),
        pa.binary_view(): pa.binary(),
    }
    refused = (types.is_null, types.is_uint64, types.is_duration, types.is_interval, types.is_union)
    if any(is_one(kind) for is_one in refused):
        raise TypeError(str(kind))
    return nearest.get(kind, kind)


def _list(value: object) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


def _strings(value: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}
