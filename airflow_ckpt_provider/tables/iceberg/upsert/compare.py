"""Whether rows differ, and putting other rows in their place: column by column, at any depth, without a loop over rows.

Null equals null, NaN equals NaN, and -0.0 equals 0.0, as for keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Mask = npt.NDArray[np.bool_]


def differ(left: pa.RecordBatch, right: pa.RecordBatch) -> Mask:
    """Which rows of two batches of the same columns are not the same."""
    import numpy as np

    changed = np.zeros(left.num_rows, dtype=np.bool_)
    for column, other in zip(left.columns, right.columns, strict=True):
        changed |= ~same(column, other)
    return changed


def same(left: pa.Array, right: pa.Array) -> Mask:
    """Which values of two arrays of one type are the same."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(left.type, pa.BaseExtensionType):
        left, right = left.storage, right.storage
    kind = left.type
    if pa.types.is_map(kind):
        pairs = pa.list_(pa.struct([kind.key_field, kind.item_field]))
        return same(left.cast(pairs), right.cast(pairs))
    if pa.types.is_struct(kind):
        equal = _same_members(left, right)
    elif pa.types.is_list(kind):
        equal = _same_elements(left, right)
    elif pa.types.is_null(kind):
        equal = _mask(left.is_null())
    else:
        equal = _mask(pc.fill_null(pc.equal(left, right), fill_value=False))
        if pa.types.is_floating(kind):
            equal = equal | (
                _mask(pc.fill_null(pc.is_nan(left), fill_value=False)) & _mask(pc.fill_null(pc.is_nan(right), fill_value=False))
            )
    if left.null_count or right.null_count:
        no_left, no_right = _mask(left.is_null()), _mask(right.is_null())
        equal = (equal & ~no_left & ~no_right) | (no_left & no_right)
    return equal


def replaced(rows: pa.RecordBatch, at: npt.NDArray[np.int64], new: pa.RecordBatch) -> pa.RecordBatch:
    """``rows`` with those ``at`` these positions, which are sorted, replaced by ``new``."""
    import numpy as np
    import pyarrow as pa

    mask = np.zeros(rows.num_rows, dtype=np.bool_)
    mask[at] = True
    order = np.arange(rows.num_rows)
    order[at] = rows.num_rows + np.arange(len(at))
    columns = [_replaced(old, pa.array(mask), pa.array(order), other) for old, other in zip(rows.columns, new.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _replaced(old: pa.Array, mask: pa.Array, order: pa.Array, new: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_nested(old.type) or isinstance(old.type, pa.BaseExtensionType):
        return pa.concat_arrays([old, new]).take(order)
    return pc.replace_with_mask(old, mask, new)


def _same_members(left: pa.StructArray, right: pa.StructArray) -> Mask:
    import numpy as np

    equal = np.ones(len(left), dtype=np.bool_)
    for number in range(left.type.num_fields):
        equal &= same(left.field(number), right.field(number))
    return equal


def _same_elements(left: pa.ListArray, right: pa.ListArray) -> Mask:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths, others = pc.list_value_length(left), pc.list_value_length(right)
    equal = _mask(pc.fill_null(pc.equal(lengths, others), fill_value=False))
    rows = np.flatnonzero(equal)
    if len(rows):
        taken = pa.array(rows)
        elements = same(left.take(taken).flatten(), right.take(taken).flatten())
        parents = np.repeat(rows, lengths.take(taken).to_numpy())
        equal[parents[~elements]] = False
    return equal


def _mask(array: pa.BooleanArray) -> Mask:
    import numpy as np

    values: Mask = np.array(array.to_numpy(zero_copy_only=False), dtype=np.bool_)
    return values
