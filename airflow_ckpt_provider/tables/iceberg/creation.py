"""A table that does not exist yet: its schema, partitioning and place are fixed before the first row is staged, and it comes
into being in the very commit that lands the rows.

Decision: the whole metadata of the table to be, UUID included, is pinned in the checkpoint's header. So every attempt writes
files for the same table, and the UUID tells our table from one that somebody else created under the same name meanwhile.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError, SchemaMismatchError
from airflow_ckpt_provider.tables.iceberg.manifest import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import StagedTable
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortField, SortOrder
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

#: First id of partition fields; Iceberg's own convention.
_FIRST_PARTITION_ID = 1000

_TERM = re.compile(r"^(?P<transform>\w+)\(\s*(?:(?P<width>\d+)\s*,\s*)?(?P<column>[^(),]+?)\s*\)$")
_SORT = re.compile(r"^(?P<term>.+?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?$", re.IGNORECASE)

#: Ending of a partition field's name, as Spark and Iceberg's Java library name them.
_ENDINGS = {"bucket": "_bucket", "truncate": "_trunc", "year": "_year", "month": "_month", "day": "_day", "hour": "_hour"}
_PLURALS = {"years": "year", "months": "month", "days": "day", "hours": "hour", "date": "day", "date_hour": "hour"}


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


def partition_spec(terms: Sequence[str], schema: Schema) -> PartitionSpec:
    """The partition spec of terms such as ``day(ts)``, ``bucket(16, id)`` and ``region``.

    :raises InvalidInputError: naming the term that is wrong.
    """
    from pyiceberg.partitioning import PartitionSpec

    return PartitionSpec(*_partition_fields(terms, schema), spec_id=0)


def _partition_fields(terms: Sequence[str], schema: Schema) -> Iterator[PartitionField]:
    from pyiceberg.partitioning import PartitionField

    names: set[str] = set()
    for number, term in enumerate(terms):
        source_id, transform, column = _term(term, schema, "partition_by")
        word = str(transform).partition("[")[0]
        name = column.replace(".", "_") + _ENDINGS.get(word, "")
        if name in names:
            raise InvalidInputError(f"partition_by={list(terms)!r} has {term!r} twice.")
        names.add(name)
        yield PartitionField(source_id, _FIRST_PARTITION_ID + number, transform, name)


def sort_order(terms: Sequence[str], schema: Schema) -> SortOrder:
    """The sort order of terms such as ``id``, ``ts desc`` and ``bucket(16, id) asc nulls last``.

    :raises InvalidInputError: naming the term that is wrong.
    """
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

    return SortOrder(*(_sort_field(term, schema) for term in terms)) if terms else UNSORTED_SORT_ORDER


def _sort_field(term: str, schema: Schema) -> SortField:
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField

    match = _SORT.match(term.strip())
    if match is None:
        raise InvalidInputError(f"sort_by: {term!r} is not of the form 'column', 'column desc' or 'column desc nulls last'.")
    source_id, transform, _ = _term(match["term"], schema, "sort_by")
    direction = SortDirection.DESC if (match["direction"] or "").lower() == "desc" else SortDirection.ASC
    # SQL's order of nulls where none is given, which is Spark's too.
    nulls = (match["nulls"] or ("last" if direction is SortDirection.DESC else "first")).lower()
    order = NullOrder.NULLS_LAST if nulls == "last" else NullOrder.NULLS_FIRST
    return SortField(source_id, transform=transform, direction=direction, null_order=order)


def _term(term: str, schema: Schema, parameter: str) -> tuple[int, Any, str]:
    """Source id, transform and column of one term."""
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.transforms import IdentityTransform, parse_transform

    match = _TERM.match(term.strip())
    column = match["column"] if match else term.strip()
    try:
        field = schema.find_field(column)
    except ValueError as error:
        raise InvalidInputError(
            f"{parameter}: {term!r} names no column of the rows; they are {', '.join(f.name for f in schema.fields)}."
        ) from error
    if match is None or match["transform"] == "identity":
        transform: Any = IdentityTransform()
    else:
        word = _PLURALS.get(match["transform"], match["transform"])
        text = word + (f"[{match['width']}]" if match["width"] else "")
        try:
            transform = parse_transform(text)
            known = word in _ENDINGS and str(transform) == text and match["width"] != "0"
        except (ValueError, ValidationError):
            known = False
        if not known:
            raise InvalidInputError(
                f"{parameter}: {term!r} is no transform. They are year(c), month(c), day(c), hour(c), bucket(16, c), "
                "truncate(4, c) and a column by itself."
            )
    if not transform.can_transform(field.field_type):
        raise InvalidInputError(f"{parameter}: {term!r} cannot be made of the column {column!r}, which is {field.field_type}.")
    return field.field_id, transform, column


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
