"""Keys of rows as Arrow columns: brought to one form in which equal keys are equal values, hashed, and compared.

Null equals null, NaN equals NaN, and -0.0 equals 0.0: what a person means by "the same key", not what SQL's ``=`` says.
"""

# mypy: disable-error-code="no-any-return"
# (pyarrow has no type hints, so that what it returns is Any)
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Hashes = npt.NDArray[np.uint64]

#: Modulus of the hash of text and bytes: the largest that Iceberg's bucket transform takes.
_BUCKETS = 2**31 - 1


def canonical(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A key column in the form in which equal keys are equal values (or both null)."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if not pa.types.is_floating(column.type):
        return column
    single = column.type.bit_width == 32
    # Adding 0.0 turns -0.0 into 0.0; bit patterns make the one NaN that is left equal to itself.
    values = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False) + (np.float32(0) if single else 0.0)
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int32 if single else np.int64)
    return pa.array(bits, mask=column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None)


def hashes(columns: Sequence[pa.Array]) -> Hashes:
    """One hash for the key of each row, of columns in their canonical form."""
    import numpy as np

    combined = _hash(columns[0])
    with np.errstate(over="ignore"):
        for column in columns[1:]:
            combined = _mix(combined * np.uint64(0x9E3779B97F4A7C15) + _hash(column))
    return combined


def equal(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Which rows have the same key, of columns in their canonical form."""
    import numpy as np
    import pyarrow.compute as pc

    same = np.ones(len(left[0]), dtype=np.bool_)
    for column, other in zip(left, right, strict=True):
        equals = pc.fill_null(pc.equal(column, other), fill_value=False).to_numpy(zero_copy_only=False)
        if column.null_count and other.null_count:
            equals = equals | pc.and_(column.is_null(), other.is_null()).to_numpy(zero_copy_only=False)
        same &= equals
    return same


def _hash(column: pa.Array) -> Hashes:
    import numpy as np

    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    words = _words(column)
    if nulls is not None:
        # What a buffer holds under a null is anything.
        words = [np.where(nulls, np.uint64(0x5BD1E995), word) for word in words]
    hashed = _mix(words[0])
    for word in words[1:]:
        hashed = _mix(hashed ^ word)
    return hashed


def _words(column: pa.Array) -> list[Hashes]:
    """The values as one or more 64-bit numbers each."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_decimal128(kind):
        pairs = np.frombuffer(column.buffers()[1] or b"", dtype=np.uint64).reshape(-1, 2)[
            column.offset : column.offset + len(column)
        ]
        return [pairs[:, 0], pairs[:, 1]]
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        from pyiceberg_core.transform import bucket  # type: ignore[import-untyped]

        return [_unsigned(bucket(column, _BUCKETS))]
    if pa.types.is_boolean(kind):
        column = pc.cast(column, pa.int8())
    elif not pa.types.is_integer(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return [_unsigned(column)]


def _unsigned(integers: pa.Array) -> Hashes:
    import numpy as np
    import pyarrow.compute as pc

    values: Any = pc.fill_null(integers, 0) if integers.null_count else integers
    return values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False).view(np.uint64)


def _mix(words: Hashes) -> Hashes:
    """SplitMix64's finaliser: spreads every bit over all."""
    import numpy as np

    mixed = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
