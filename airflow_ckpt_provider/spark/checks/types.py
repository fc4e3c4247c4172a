"""The types that Spark shows of staged rows: Arrow's, but for three that Spark lacks.

As Iceberg's own connector does, a UUID is a string and a fixed a binary; a time of day, which that connector refuses, is a string
such as ``08:30:00.000000``, which sorts as the time does. Decision: every column may be null here, required ones too. Spark leaves
a condition out that its schema says is always true, and a check that nothing is null has to look.
"""

# mypy: disable-error-code="no-any-return"
# (pyarrow has no type hints, so that its functions return Any)
from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.scan.projection import list_offsets

if TYPE_CHECKING:
    import pyarrow as pa


def shown_schema(schema: pa.Schema) -> pa.Schema:
    """What rows of ``schema`` become."""
    import pyarrow as pa

    return pa.schema([_shown_field(field) for field in schema])


def shown(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows as Spark is to see them.

    :param schema: what ``shown_schema`` says.
    """
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([_show(column) for column in batch.columns], schema=schema)


def _shown_field(field: pa.Field) -> pa.Field:
    return field.with_type(_shown_type(field.type)).with_nullable(True)  # noqa: FBT003 - Arrow's own signature


def _shown_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        return pa.struct([_shown_field(member) for member in kind])
    if types.is_list(kind):
        return pa.list_(_shown_field(kind.value_field))
    if types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_shown_type(kind.key_type)), _shown_field(kind.item_field))
    if types.is_time(kind) or kind == pa.uuid():
        return pa.string()
    return pa.binary() if types.is_fixed_size_binary(kind) else kind


def _show(array: pa.Array) -> pa.Array:
    import pyarrow as pa

    kind, want = array.type, _shown_type(array.type)
    if kind.equals(want):
        return array
    if pa.types.is_struct(kind):
        members = [_show(array.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(members, fields=list(want), mask=array.is_null())
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(list_offsets(array), _show(array.flatten()), type=want)
    if pa.types.is_map(kind):
        pairs = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        flat = pairs.flatten()
        return pa.MapArray.from_arrays(list_offsets(pairs), _show(flat.field(0)), _show(flat.field(1)), type=want)
    if kind == pa.uuid():
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], want)
    return array.cast(want)
