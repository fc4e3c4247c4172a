"""Whether rows fit a table, and bringing them to its schema. Columns are matched by name, at every depth.

Only changes that lose nothing are made silently: a wider number, a finer decimal, another layout of the same string.
Everything else is an error that lists each difference, before a row is written.
"""

# mypy: disable-error-code="no-any-return"
# (pyarrow has no type hints, so that its predicates return Any)
from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import NullInRequiredColumnError, SchemaMismatchError
from airflow_ckpt_provider.tables.hidden import hidden_filled
from airflow_ckpt_provider.tables.missing import lacking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

#: Arrow bytes and rows gathered before they are written: the unit of a writer's memory.
CHUNK_BYTES, CHUNK_ROWS = 64 << 20, 1 << 20

#: What a difference says of a column that only the rows have, and what helps.
_NOT_THERE = "is not in the table"
_EVOLVES = "; or let the stage add the columns that the first rows of its input have: evolve_schema=True."


def differences(have: pa.Schema, want: pa.Schema, names: dict[str, str] | None = None) -> list[str]:
    """What keeps rows of ``have`` out of a table of ``want``, one line each.

    :param names: the table's own column names, by the names in ``want``, where files need other ones.
    """
    wanted = {(names or {}).get(field.name, field.name): field for field in want}
    lines = [f"column {name!r} {_NOT_THERE}" for name in have.names if name not in wanted]
    lines += [f"column {name!r} occurs more than once" for name in sorted({n for n in have.names if have.names.count(n) > 1})]
    for name, field in wanted.items():
        index = have.get_field_index(name)
        if index >= 0:
            lines += _type_differences(have.field(index).type, field.type, name)
        elif not field.nullable and name not in have.names:
            lines.append(f"column {name!r} is required and missing")
    return lines


def require_fit(have: pa.Schema, want: pa.Schema, table: str, names: dict[str, str] | None = None) -> None:
    """Refuse rows that do not fit.

    :raises SchemaMismatchError: listing every difference.
    """
    lines = differences(have, want, names)
    if lines:
        raise SchemaMismatchError(
            f"The rows do not fit the table {table}:\n  " + "\n  ".join(lines) + "\nChange the transform, or the table's schema"
            + (_EVOLVES if any(line.endswith(_NOT_THERE) for line in lines) else ".")
        )  # fmt: skip


class Columns:
    """The columns that the rows of a write have to fit.

    :param table: name, for messages.
    :param want: the schema that files are written with.
    :param named: the same by the table's own column names, where those are others; ``want`` if None.
    """

    def __init__(self, table: str, want: pa.Schema, named: pa.Schema | None = None) -> None:
        self._table = table
        self._want = want
        self._named = want if named is None else named

    @property
    def schema(self) -> pa.Schema:
        """The columns, by the table's own names."""
        return self._named

    def require_fit(self, rows: pa.Schema) -> None:
        """Refuse rows of this schema before any is read.

        :raises SchemaMismatchError: listing every difference.
        """
        require_fit(rows, self._want, self._table, dict(zip(self._want.names, self._named.names, strict=True)))

    def lacking_in(self, rows: pa.Schema) -> list[str]:
        """Optional columns of the table that rows of this schema do not have, at every depth, such as ``address.zip``."""
        return lacking(rows, self._named)


class Conform:
    """Brings batches to a table's schema.

    :param want: the schema that files are written with.
    :param names: the table's own column names, by the names in ``want``.
    """

    def __init__(self, want: pa.Schema, table: str, names: dict[str, str] | None = None) -> None:
        self._want = want
        # Arrow's cast refuses a null in a required member without saying where: so it is done in two steps.
        self._optional = [_optional(field.type) for field in want]
        self._table = table
        self._names = names or {}
        self._checked: pa.Schema | None = None
        self._rows = 0

    @property
    def schema(self) -> pa.Schema:
        """The schema that batches are brought to."""
        return self._want

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """``batch`` with the table's columns, in its order and types.

        :raises SchemaMismatchError: if it does not fit.
        :raises NullInRequiredColumnError: naming column and row.
        """
        import pyarrow as pa

        if self._checked is None or not batch.schema.equals(self._checked):
            require_fit(batch.schema, self._want, self._table, self._names)
            self._checked = batch.schema
        columns = []
        for field, optional in zip(self._want, self._optional, strict=True):
            name = self._names.get(field.name, field.name)
            index = batch.schema.get_field_index(name)
            column = pa.nulls(batch.num_rows, field.type) if index < 0 else self._cast(batch.column(index), field, optional, name)
            for path, row in null_where_required(column, field, name):
                raise NullInRequiredColumnError(
                    f"Column {path!r} of the table {self._table} is required, but row {self._rows + row} of the split "
                    "(counted from 0, after the transform) is null there. Filter such rows out or fill them in the transform, or "
                    "make the column optional."
                )
            if _asks_inside(field.type):
                column = hidden_filled(column, field)
            columns.append(column if column.type.equals(field.type) else _required(column, field.type))
        self._rows += batch.num_rows
        return pa.RecordBatch.from_arrays(columns, schema=self._want)

    def _cast(self, column: pa.Array, field: pa.Field, optional: pa.DataType, name: str) -> pa.Array:
        import pyarrow as pa

        if column.type.equals(field.type):
            return column
        try:
            return column.cast(optional)
        except pa.ArrowInvalid as error:
            raise SchemaMismatchError(
                f"Column {name!r} holds a value that does not fit the table {self._table} ({field.type}) without loss: {error}"
            ) from error


def gathered(batches: Iterable[pa.RecordBatch], conform: Conform) -> Iterator[pa.Table]:
    """Rows in a table's schema, gathered into chunks of bounded size.

    :raises SchemaMismatchError: if they do not fit.
    :raises NullInRequiredColumnError: naming column and row.
    """
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in map(conform, batches):
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.nbytes
        rows += batch.num_rows
        if size >= CHUNK_BYTES or rows >= CHUNK_ROWS:
            yield pa.Table.from_batches(held, schema=conform.schema)
            held, size, rows = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema=conform.schema)


def _required(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """``column``, in which nothing required is null, with the type that says so."""
    import pyarrow as pa

    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        # A slice: Arrow looks at what was cut off, too.
        return pa.concat_arrays([column]).cast(kind)


def _optional(kind: pa.DataType) -> pa.DataType:
    """``kind`` with all members optional, at every depth."""
    import pyarrow as pa

    def loose(field: pa.Field) -> pa.Field:
        return field.with_type(_optional(field.type)).with_nullable(nullable=True)

    if pa.types.is_struct(kind):
        return pa.struct([loose(member) for member in kind])
    if pa.types.is_list(kind):
        return pa.list_(loose(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(loose(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(loose(kind.value_field), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_optional(kind.key_type)), loose(kind.item_field))
    return kind


def null_where_required(column: pa.Array, field: pa.Field, path: str) -> Iterator[tuple[str, int]]:
    """The first null in each required (nested) field: its dotted path, and its row.

    A null struct or list has no members, so what is required inside it is not missing.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not field.nullable and column.null_count:
        yield path, pc.index(column.is_null(), value=True).as_py()
    kind = field.type
    if pa.types.is_struct(kind):
        present = column if not column.null_count else column.filter(column.is_valid())
        for index, member in enumerate(kind):
            for inner, row in null_where_required(present.field(index), member, f"{path}.{member.name}"):
                yield inner, _row_of(column, row)
    elif pa.types.is_map(kind):
        for item, values in ((kind.key_field, column.keys), (kind.item_field, column.items)):
            # The children of a map are whole even where it is a slice; its offsets are not.
            as_list = pa.ListArray.from_arrays(column.offsets, values)
            for inner, row in null_where_required(as_list.flatten(), item, f"{path}.{item.name}"):
                yield inner, pc.list_parent_indices(as_list)[row].as_py()
    elif _is_list(kind) and _asks(kind.value_field):
        # What a null list has below it is skipped by its values, but not by its indices.
        present = column if not column.null_count else column.filter(column.is_valid())
        for inner, row in null_where_required(present.flatten(), kind.value_field, f"{path}.{kind.value_field.name}"):
            yield inner, _row_of(column, pc.list_parent_indices(present)[row].as_py())


def _asks(field: pa.Field) -> bool:
    """Whether a field, or one inside it, is required: where none is, the values of vectors need not be looked at."""
    return not field.nullable or _asks_inside(field.type)


def _asks_inside(kind: pa.DataType) -> bool:
    """Whether anything inside a type is required."""
    return any(_asks(kind.field(index)) for index in range(kind.num_fields))


def _row_of(column: pa.Array, position: int) -> int:
    """Row of the value at ``position`` among those that are not null."""
    import numpy as np

    if not column.null_count:
        return position
    return int(np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))[position])


def _type_differences(have: pa.DataType, want: pa.DataType, path: str) -> list[str]:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(have) or (types.is_dictionary(want) and _is_text(have)):
        return _type_differences(_value_type(have), _value_type(want), path)
    if types.is_struct(have) and types.is_struct(want):
        return _struct_differences(have, want, path)
    if types.is_map(have) and types.is_map(want):
        return [
            *_type_differences(have.key_type, want.key_type, f"{path}.key"),
            *_type_differences(have.item_type, want.item_type, f"{path}.value"),
        ]
    if _is_list(have) and _is_list(want) and not _of_other_lengths(have, want):
        return _type_differences(have.value_type, want.value_type, f"{path}.element")
    if have.equals(want) or types.is_null(have) or _widens(have, want):
        return []
    return [f"column {path!r} is {have}, the table has {want}"]


def _struct_differences(have: pa.StructType, want: pa.StructType, path: str) -> list[str]:
    wanted = {member.name: member for member in want}
    lines = [f"column '{path}.{member.name}' {_NOT_THERE}" for member in have if member.name not in wanted]
    for name, member in wanted.items():
        index = have.get_field_index(name)
        if index >= 0:
            lines += _type_differences(have.field(index).type, member.type, f"{path}.{name}")
        elif not member.nullable:
            lines.append(f"column '{path}.{name}' is required and missing")
    return lines


def _widens(have: pa.DataType, want: pa.DataType) -> bool:  # noqa: PLR0911 - one line per family of types reads best
    import pyarrow as pa

    types = pa.types
    if types.is_integer(want):
        return types.is_integer(have) and (
            have.bit_width < want.bit_width or (have.bit_width == want.bit_width and types.is_signed_integer(have))
        )
    if types.is_floating(want):
        return types.is_floating(have) and have.bit_width <= want.bit_width
    if types.is_decimal(want):
        return types.is_decimal(have) and have.scale <= want.scale and have.precision - have.scale <= want.precision - want.scale
    if types.is_timestamp(want):
        return types.is_timestamp(have) and (have.tz is None) == (want.tz is None)
    if types.is_time(want) or types.is_date(want):
        return types.is_time(have) == types.is_time(want) and types.is_date(have) == types.is_date(want)
    if types.is_duration(want):
        return types.is_duration(have)
    if _is_text(want):
        return _is_text(have)
    if _is_bytes(want):
        return _is_bytes(have)
    storage = getattr(want, "storage_type", want)
    return types.is_fixed_size_binary(storage) and have.equals(storage)


def _value_type(kind: pa.DataType) -> pa.DataType:
    """``kind`` without the dictionary around it."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _of_other_lengths(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether both are lists of a fixed length, and not of the same one. A list of any length is looked at row by row."""
    import pyarrow as pa

    return pa.types.is_fixed_size_list(have) and pa.types.is_fixed_size_list(want) and have.list_size != want.list_size


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
