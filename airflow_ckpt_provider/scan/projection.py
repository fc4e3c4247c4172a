"""Bringing rows of a data file to a table's schema. Columns are matched by field id, at every depth.

So a renamed column is found, a dropped one is not read, an added one is null (or its default, or what the partition says), a
reordered one stands where it belongs, and a promoted one is widened.
"""

# mypy: disable-error-code="no-any-return"
# (pyarrow has no type hints, so that its functions return Any)
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import UnsupportedTableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType


class Projection:
    """From one file's schema to ``want``.

    :param have: schema of the file.
    :param constants: values of columns that the file may lack, by field id.
    :param path: of the file, for messages.
    """

    def __init__(self, have: Schema, want: Schema, constants: Mapping[int, pa.Scalar], path: str) -> None:
        self._have = {field.field_id: field for field in have.fields}
        self._want = want
        self._schema = plain_schema(want)
        self._constants = constants
        self._path = path

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of ``batch`` under the schema wanted."""
        import pyarrow as pa

        columns = []
        for field, arrow in zip(self._want.fields, self._schema, strict=True):
            stored = self._have.get(field.field_id)
            if stored is None:
                columns.append(self._missing(field, arrow.type, batch.num_rows))
            else:
                columns.append(self._project(batch.column(stored.name), stored.field_type, field.field_type, arrow.type))
        if not columns:
            raise UnsupportedTableError(f"{self._path} is read without any column.")
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _missing(self, field: NestedField, arrow: pa.DataType, rows: int) -> pa.Array:
        import pyarrow as pa

        if field.field_id in self._constants:
            return _repeated(self._constants[field.field_id], arrow, rows)
        if field.initial_default is not None:
            return _repeated(pa.scalar(field.initial_default), arrow, rows)
        if field.required:
            raise UnsupportedTableError(
                f"{self._path} has no column {field.name!r} (field id {field.field_id}), which is required and has no default."
            )
        return pa.nulls(rows, arrow)

    def _project(self, array: pa.Array, have: IcebergType, want: IcebergType, arrow: pa.DataType) -> pa.Array:
        from pyiceberg.types import ListType, MapType, StructType

        if isinstance(have, StructType) and isinstance(want, StructType):
            return self._struct(array, have, want, arrow)
        if isinstance(have, ListType) and isinstance(want, ListType):
            return self._list(array, have, want, arrow)
        if isinstance(have, MapType) and isinstance(want, MapType):
            return self._map(array, have, want, arrow)
        # Nanoseconds in files of tables that know only microseconds are cut, as every Iceberg reader does.
        return array if array.type.equals(arrow) else array.cast(arrow, safe=not _is_time(array.type))

    def _struct(self, array: pa.StructArray, have: StructType, want: StructType, arrow: pa.StructType) -> pa.Array:
        import pyarrow as pa

        index = {field.field_id: number for number, field in enumerate(have.fields)}
        members = []
        for field, member in zip(want.fields, arrow, strict=True):
            number = index.get(field.field_id)
            if number is None:
                members.append(self._missing(field, member.type, len(array)))
            else:
                members.append(self._project(array.field(number), have.fields[number].field_type, field.field_type, member.type))
        return pa.StructArray.from_arrays(members, fields=list(arrow), mask=array.is_null())

    def _list(self, array: pa.ListArray, have: ListType, want: ListType, arrow: pa.ListType) -> pa.Array:
        import pyarrow as pa

        elements = self._project(array.flatten(), have.element_type, want.element_type, arrow.value_type)
        return pa.ListArray.from_arrays(list_offsets(array), elements, type=arrow)

    def _map(self, array: pa.MapArray, have: MapType, want: MapType, arrow: pa.MapType) -> pa.Array:
        import pyarrow as pa

        kind = array.type
        pairs = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        flat = pairs.flatten()
        keys = self._project(flat.field(0), have.key_type, want.key_type, arrow.key_type)
        items = self._project(flat.field(1), have.value_type, want.value_type, arrow.item_type)
        return pa.MapArray.from_arrays(list_offsets(pairs), keys, items, type=arrow)


def plain_schema(schema: Schema) -> pa.Schema:
    """Arrow schema of ``schema``: the table's own names, no field ids, the plain layout of strings and lists."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([plain_field(field, bare=True) for field in schema_to_pyarrow(schema, include_field_ids=False)])


def plain_field(field: pa.Field, *, bare: bool = False) -> pa.Field:
    """``field`` in the layout that files and batches have here: no large or view types, lists of named elements.

    :param bare: without metadata, at every depth.
    """
    import pyarrow as pa

    kind = field.type
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_large_list(kind) or pa.types.is_list(kind):
        kind = pa.list_(plain_field(kind.value_field, bare=bare))
    elif pa.types.is_struct(kind):
        kind = pa.struct([plain_field(member, bare=bare) for member in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(plain_field(kind.key_field, bare=bare), plain_field(kind.item_field, bare=bare))
    field = field.with_type(kind)
    return field.remove_metadata() if bare else field


def list_offsets(array: pa.Array) -> pa.Array:
    """Offsets into the flattened lists, null where the list is: the array may be a slice, and null lists may hide values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.cast(pc.fill_null(pc.list_value_length(array), 0), pa.int32())
    ends = pc.cumulative_sum(lengths)
    starts = pc.if_else(array.is_null(), pa.scalar(None, pa.int32()), pc.subtract(ends, lengths))
    last = ends[-1:] if len(ends) else pa.array([0], pa.int32())
    return pa.concat_arrays([starts, last])


def _repeated(value: pa.Scalar, kind: pa.DataType, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(value, rows).cast(kind)


def _is_time(kind: Any) -> bool:  # noqa: ANN401 - pa.DataType
    import pyarrow as pa

    return pa.types.is_timestamp(kind)
