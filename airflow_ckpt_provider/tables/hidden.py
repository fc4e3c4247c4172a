"""What stands in required members of a struct, or elements of a list, that is null itself.

Nobody reads that, and Arrow may have nulls there: what it reads from Parquet has. Its casts and its Parquet writer refuse a null
in a required member all the same, so some value takes its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def hidden_filled(column: pa.Array, field: pa.Field) -> pa.Array:
    """``column``, in which no required (nested) member is null, not even where nobody sees it; its type stays.

    :param column: without a null in anything required that can be seen.
    :param field: says what is required; of the same shape, whatever the types.
    """
    import pyarrow as pa

    kind = field.type
    if not field.nullable and column.null_count:
        column = _filled(column)
    if pa.types.is_struct(kind):
        return _struct_filled(column, kind)
    if pa.types.is_map(kind):
        return _map_filled(column, kind)
    return _list_filled(column, kind) if _is_list(kind) else column


def _list_filled(column: pa.Array, kind: pa.ListType) -> pa.Array:
    import pyarrow as pa

    # What a slice holds is whole, and may have hidden nulls before and behind it.
    whole = pa.concat_arrays([column])
    values = whole.values
    filled = hidden_filled(values, kind.value_field)
    if filled is values:
        return column
    missing = whole.is_null() if whole.null_count else None
    if pa.types.is_fixed_size_list(whole.type):
        return pa.FixedSizeListArray.from_arrays(filled, type=whole.type, mask=missing)
    return type(whole).from_arrays(whole.offsets, filled, type=whole.type, mask=missing)


def _map_filled(column: pa.Array, kind: pa.MapType) -> pa.Array:
    import pyarrow as pa

    whole = pa.concat_arrays([column])
    items = hidden_filled(whole.items, kind.item_field)
    missing = whole.is_null() if whole.null_count else None
    return pa.MapArray.from_arrays(whole.offsets, whole.keys, items, whole.type, mask=missing)


def _struct_filled(column: pa.Array, kind: pa.StructType) -> pa.Array:
    import pyarrow as pa

    members = [column.field(number) for number in range(column.type.num_fields)]
    filled = [hidden_filled(member, kind.field(number)) for number, member in enumerate(members)]
    if all(new is old for new, old in zip(filled, members, strict=True)):
        return column
    missing = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(filled, fields=list(column.type), mask=missing)


def _filled(values: pa.Array) -> pa.Array:
    """The same with some value where there is none: the first that there is, or an empty one."""
    import numpy as np
    import pyarrow as pa

    if isinstance(values, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(values.type, _filled(values.storage))
    if isinstance(values, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(*_with_a_value(values))
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if valid.any():
        return values.take(pa.array(np.where(valid, np.arange(len(valid)), np.argmax(valid))))
    # Below a null struct, Arrow builds a value that is empty.
    empty = pa.array([None], pa.struct([pa.field("x", values.type)])).field(0)
    return empty.take(pa.array(np.zeros(len(valid), np.int64)))


def _with_a_value(values: pa.DictionaryArray) -> tuple[pa.Array, pa.Array]:
    """Indices, none of which is null, and what they point to."""
    import pyarrow as pa

    dictionary = values.dictionary
    if not len(dictionary):
        dictionary = _filled(pa.nulls(1, dictionary.type))
    return values.indices.fill_null(0), dictionary


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
