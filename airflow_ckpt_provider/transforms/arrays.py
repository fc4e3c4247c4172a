"""Canonical forms of NumPy's and Arrow's values: by type, length and content, not by how buffers are cut, shared or padded."""

# mypy: disable-error-code="no-any-return"
# (pyarrow has no type hints, so that its functions return Any)
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.transforms.values import Held, leaf, parts

if TYPE_CHECKING:
    from airflow_ckpt_provider.transforms.values import Form


def array_form(value: Any) -> Form | None:  # noqa: ANN401 - any value
    """The form of a value of NumPy or Arrow; None for others. Imports neither."""
    module = type(value).__module__.partition(".")[0]
    if module == "numpy":
        return _numpy(value)
    return _arrow(value) if module == "pyarrow" else None


# -- NumPy ------------------------------------------------------------------------------------------------------------


def _numpy(value: Any) -> Form | None:  # noqa: ANN401 - any value of NumPy
    import numpy as np

    if isinstance(value, np.dtype):
        return _dtype(value)
    if isinstance(value, np.generic) and not isinstance(value, np.void | np.object_):
        return parts(b"scalar", Held("dtype", value.dtype), value.tobytes())
    if type(value) in {np.ndarray, np.memmap}:
        return _ndarray(value)
    return None


def _dtype(kind: Any) -> Form:  # noqa: ANN401 - a NumPy dtype
    yield b"dtype"
    yield kind.str.encode()
    if kind.subdtype is not None:
        yield Held("base", kind.subdtype[0])
        yield leaf(kind.subdtype[1])
    for name in kind.names or ():
        yield name.encode()
        yield Held(name, kind.fields[name][0])
    if kind.metadata is not None:
        yield Held("metadata", dict(kind.metadata))


def _ndarray(array: Any) -> Form:  # noqa: ANN401 - a NumPy array
    import numpy as np

    yield b"ndarray"
    yield Held("dtype", array.dtype)
    yield leaf(tuple(array.shape))
    if array.dtype.names is not None:
        # Between its fields may be bytes that mean nothing.
        for name in array.dtype.names:
            yield Held(name, np.asarray(array[name]))
    elif array.dtype.hasobject or array.dtype.kind == "T":
        yield Held("items", array.ravel().tolist())
    else:
        flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        yield memoryview(flat) if array.size else b""


# -- Arrow ------------------------------------------------------------------------------------------------------------


def _arrow(value: Any) -> Form | None:  # noqa: ANN401 - any value of Arrow
    import pyarrow as pa

    form: Form | None = None
    if isinstance(value, pa.DataType):
        form = _type(value)
    elif isinstance(value, pa.Field):
        facts = [Held("name", value.name), Held("type", value.type), Held("metadata", value.metadata)]
        form = parts(b"field", leaf(value.nullable), *facts)
    elif isinstance(value, pa.Schema):
        form = parts(b"schema", Held("fields", list(value)), Held("metadata", value.metadata))
    elif isinstance(value, pa.Array):
        form = _array(value)
    elif isinstance(value, pa.ChunkedArray):
        form = _chunked(value)
    elif isinstance(value, pa.RecordBatch | pa.Table):
        form = _table(value)
    elif isinstance(value, pa.Scalar):
        form = parts(b"arrow scalar", Held("value", pa.array([value], value.type)))
    elif type(value).__name__.endswith("Options") and hasattr(value, "serialize"):
        form = parts(b"options", type(value).__name__.encode(), value.serialize().to_pybytes())
    elif isinstance(value, pa.Buffer):
        form = parts(b"buffer", memoryview(value))
    return form


def _type(kind: Any) -> Form:  # noqa: ANN401 - an Arrow type
    import pyarrow as pa

    yield b"type"
    if isinstance(kind, pa.BaseExtensionType):
        yield kind.extension_name.encode()
        yield Held("storage", kind.storage_type)
        yield kind.__arrow_ext_serialize__() if hasattr(kind, "__arrow_ext_serialize__") else str(kind).encode()
    elif pa.types.is_dictionary(kind):
        yield b"dictionary"
        yield leaf(kind.ordered)
        yield Held("indices", kind.index_type)
        yield Held("values", kind.value_type)
    elif kind.num_fields:
        yield leaf(kind.id)
        # Of a union its mode and codes, of a fixed-size list its size.
        yield leaf((getattr(kind, "mode", None), getattr(kind, "list_size", None), getattr(kind, "keys_sorted", None)))
        for number in range(kind.num_fields):
            yield Held(f"[{number}]", kind.field(number))
    else:
        yield str(kind).encode()


def _table(rows: Any) -> Form:  # noqa: ANN401 - a batch or a table
    yield type(rows).__name__.encode()
    yield Held("schema", rows.schema)
    yield leaf(rows.num_rows)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        yield Held(name, column)


def _chunked(column: Any) -> Form:  # noqa: ANN401 - a chunked array
    import pyarrow as pa

    yield b"chunked"
    if column.num_chunks == 1:
        whole = column.chunk(0)
    else:
        whole = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
    if isinstance(whole, pa.ChunkedArray):
        # More text than fits into one array.
        yield Held("items", whole.to_pylist())
    else:
        yield Held("items", whole)


def _array(array: Any) -> Form:  # noqa: ANN401 - an array
    yield b"array"
    yield Held("type", array.type)
    yield leaf(len(array))
    yield from _content(array)


def _content(array: Any) -> Form:  # noqa: ANN401 - an array
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, types = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        yield Held("storage", array.storage)
        return
    if types.is_dictionary(kind):
        yield Held("values", array.dictionary_decode())
        return
    if array.null_count:
        yield array.is_valid().to_numpy(zero_copy_only=False).tobytes()
    else:
        yield b""
    if types.is_struct(kind):
        for number, part in enumerate(array.flatten()):
            yield Held(kind.field(number).name, part)
    elif types.is_list(kind) or types.is_large_list(kind):
        yield pc.fill_null(pc.list_value_length(array), 0).to_numpy().tobytes()
        yield Held("items", array.flatten())
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        whole = array.drop_null() if array.null_count else array
        yield pc.binary_length(whole).to_numpy().tobytes()
        yield _text(whole)
    elif types.is_integer(kind) or types.is_floating(kind):
        yield memoryview((array.drop_null() if array.null_count else array).to_numpy())
    elif types.is_temporal(kind) and kind.bit_width in {32, 64} and not types.is_interval(kind):
        yield Held("items", array.view(pa.int64() if kind.bit_width == 64 else pa.int32()))
    else:
        yield Held("items", array.to_pylist())


def _text(array: Any) -> bytes | memoryview:  # noqa: ANN401 - an array of texts or bytes without nulls
    """All of it in one piece, without what the array was cut out of."""
    import numpy as np
    import pyarrow as pa

    if not len(array):
        return b""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)
    return b"" if data is None else memoryview(data)[ends[array.offset] : ends[array.offset + len(array)]]
