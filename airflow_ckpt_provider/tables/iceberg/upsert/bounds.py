"""Whether rows of the source and a data file can have a key in common, judged by what is known of either without reading it.

An unknown bound is no bound: a file is only passed over if it certainly holds no key.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.checkpoint.documents import Part
from airflow_ckpt_provider.tables.iceberg.manifest import cut_upper

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.types import PrimitiveType

    from airflow_ckpt_provider.tables.iceberg.upsert.keys import KeyColumn

#: Text and bytes longer than this are cut in bounds.
_LONGEST = 64


class KeyBounds(Part, frozen=True, array_like=True):
    """What one key column of a split's rows holds.

    :param lower: smallest value that is neither null nor NaN, in Iceberg's bytes and base64; None if nothing is known.
    :param upper: greatest one.
    :param values: whether there are values besides null and NaN.
    """

    lower: str | None
    upper: str | None
    values: bool
    nulls: bool
    nans: bool


class Range(NamedTuple):
    """What a column may hold: values between two bounds (None: unbounded), nulls, NaN."""

    lower: Any
    upper: Any
    values: bool
    nulls: bool
    nans: bool

    def meets(self, other: Range) -> bool:
        """Whether a value can be in both."""
        if (self.nulls and other.nulls) or (self.nans and other.nans):
            return True
        return self.values and other.values and not (_above(self.lower, other.upper) or _above(other.lower, self.upper))

    def joined(self, other: Range) -> Range:
        """What may be in either."""
        if not (self.values and other.values):
            some = self if self.values else other
            lower, upper = some.lower, some.upper
        else:
            lower = None if self.lower is None or other.lower is None else min(self.lower, other.lower)
            upper = None if self.upper is None or other.upper is None else max(self.upper, other.upper)
        return Range(lower, upper, self.values or other.values, self.nulls or other.nulls, self.nans or other.nans)


class Bounds:
    """Gathers the bounds of key columns while rows pass.

    :param keys: the key columns.
    """

    def __init__(self, keys: Sequence[KeyColumn]) -> None:
        self._keys = keys
        self._ranges: list[Range | None] = [None] * len(keys)

    def add(self, columns: Sequence[pa.ChunkedArray]) -> None:
        """Take rows into account.

        :param columns: the key columns as they are in the table.
        """
        for number, (key, column) in enumerate(zip(self._keys, columns, strict=True)):
            held, known = _range_of(key.kind, column), self._ranges[number]
            self._ranges[number] = held if known is None else known.joined(held)

    def to_json(self) -> tuple[KeyBounds, ...]:
        """As stored in a staged record."""
        return tuple(_stored(key.kind, held) for key, held in zip(self._keys, self._ranges, strict=True) if held is not None)


class Overlap:
    """The test of data files against the keys of many source splits.

    :param keys: the key columns.
    :param splits: bounds of the key columns, for each split.
    """

    def __init__(self, keys: Sequence[KeyColumn], splits: Iterable[Sequence[KeyBounds]]) -> None:
        self._keys = keys
        loaded = [tuple(_loaded(key.kind, bounds) for key, bounds in zip(keys, split, strict=True)) for split in splits]
        self._splits = list(dict.fromkeys(loaded))
        self._all: tuple[Range, ...] | None = None
        for split in self._splits:
            self._all = split if self._all is None else tuple(a.joined(b) for a, b in zip(self._all, split, strict=True))

    def __call__(self, file: DataFile, spec: PartitionSpec) -> bool:
        """Whether the file can hold the key of any source row.

        :param spec: the file's partition spec.
        """
        held = [held_by(key, file, spec) for key in self._keys]
        return self.meets(held)

    def meets(self, held: Sequence[Range]) -> bool:
        """Whether a file that holds this in its key columns can hold the key of any source row."""
        if self._all is None or not _meet(self._all, held):
            return False
        return any(_meet(split, held) for split in self._splits)


def meeting(keys: Sequence[KeyColumn], bounds: Sequence[KeyBounds], others: Iterable[Sequence[KeyBounds]]) -> list[bool]:
    """Which of the others can have a key in common with rows of these bounds."""
    ranges = [_loaded(key.kind, stored) for key, stored in zip(keys, bounds, strict=True)]
    loaded = ([_loaded(key.kind, stored) for key, stored in zip(keys, other, strict=True)] for other in others)
    return [_meet(ranges, other) for other in loaded]


def held_by(key: KeyColumn, file: DataFile, spec: PartitionSpec) -> Range:
    """What a data file may hold in a key column, by its entry in a manifest."""
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import UUIDType

    for position, field in enumerate(spec.fields):
        if field.source_id == key.field_id and isinstance(field.transform, IdentityTransform) and not _floating(key.kind):
            value = file.partition[position]
            if value is None:
                return Range(None, None, values=False, nulls=True, nans=False)
            if isinstance(key.kind, UUIDType):
                break
            return Range(value, value, values=True, nulls=False, nans=False)
    values, nulls = _count(file.value_counts, key.field_id), _count(file.null_value_counts, key.field_id)
    nans = _count(file.nan_value_counts, key.field_id)
    lower, upper = (_bound(key.kind, (bounds or {}).get(key.field_id)) for bounds in (file.lower_bounds, file.upper_bounds))
    return Range(
        lower,
        upper,
        values=values is None or nulls is None or values > nulls,
        nulls=nulls is None or nulls > 0,
        nans=_floating(key.kind) and (nans is None or nans > 0),
    )


def _meet(split: Sequence[Range], held: Sequence[Range]) -> bool:
    return all(wanted.meets(other) for wanted, other in zip(split, held, strict=True))


def _above(lower: Any, upper: Any) -> bool:  # noqa: ANN401 - of the column's type
    return lower is not None and upper is not None and bool(lower > upper)


def _count(counts: Mapping[int, int] | None, field_id: int) -> int | None:
    return None if counts is None else counts.get(field_id)


def _floating(kind: PrimitiveType) -> bool:
    from pyiceberg.types import DoubleType, FloatType

    return isinstance(kind, (DoubleType, FloatType))


def _bound(kind: PrimitiveType, stored: bytes | None) -> Any:  # noqa: ANN401 - of the column's type
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import UUIDType

    # Writers do not agree on the order of UUIDs.
    if stored is None or isinstance(kind, UUIDType):
        return None
    value: Any = from_bytes(kind, stored)
    return None if value != value else value  # noqa: PLR0124 - NaN


def _range_of(kind: PrimitiveType, column: pa.ChunkedArray) -> Range:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg.types import UUIDType

    nulls = column.null_count > 0
    nans = False
    present = column
    if pa.types.is_floating(column.type):
        is_nan = pc.is_nan(column)
        nans = bool(pc.any(is_nan).as_py())
        present = column.filter(pc.invert(is_nan)) if nans else column
    values = len(present) > present.null_count
    if not values or isinstance(kind, UUIDType):
        return Range(None, None, values, nulls, nans)
    if pa.types.is_temporal(present.type):
        present = pa.chunked_array(
            [chunk.view(pa.int32() if chunk.type.bit_width == 32 else pa.int64()) for chunk in present.chunks]
        )
    both = pc.min_max(present).as_py()
    return Range(both["min"], both["max"], values, nulls, nans)


def _stored(kind: PrimitiveType, held: Range) -> KeyBounds:
    from pyiceberg.conversions import to_bytes
    from pyiceberg.utils.truncate import truncate_upper_bound_binary_string

    lower, upper = held.lower, held.upper
    if isinstance(upper, str) and len(upper) > _LONGEST:
        upper = cut_upper(upper, _LONGEST)
    elif isinstance(upper, bytes) and len(upper) > _LONGEST:
        upper = truncate_upper_bound_binary_string(upper, _LONGEST)
    if isinstance(lower, (str, bytes)):
        lower = lower[:_LONGEST]
    texts = [None if bound is None else base64.b64encode(to_bytes(kind, bound)).decode() for bound in (lower, upper)]
    return KeyBounds(texts[0], texts[1], held.values, held.nulls, held.nans)


def _loaded(kind: PrimitiveType, stored: KeyBounds) -> Range:
    lower, upper = (None if text is None else _bound(kind, base64.b64decode(text)) for text in (stored.lower, stored.upper))
    return Range(lower, upper, stored.values, stored.nulls, stored.nans)
