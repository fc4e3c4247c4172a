"""Columns that are fixed by a file's partition: files that were moved into a table from Hive have no such columns inside.

The table spec ("Column Projection") takes their values from the partition of the data file, and only if the file itself lacks
the column. Values are kept as the JSON single values of the spec, which survive a widening of the column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import Record
    from pyiceberg.types import IcebergType

    Constant = tuple[int, str | int | float | bool]


def constants_of(spec: PartitionSpec, schema: Schema) -> Callable[[Record], tuple[Constant, ...]]:
    """What gives the constants of a file from its partition: those of identity fields whose column is still there."""
    from pyiceberg.conversions import to_json
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import PrimitiveType

    fields = [
        (index, field.source_id, kind)
        for index, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform) and field.source_id in schema.field_ids
        if isinstance(kind := schema.find_type(field.source_id), PrimitiveType)
    ]

    def constants(partition: Record) -> tuple[Constant, ...]:
        values = [(source_id, kind, partition[index]) for index, source_id, kind in fields]
        return tuple((source_id, _stored(to_json(kind, value))) for source_id, kind, value in values if value is not None)

    return constants


def constant_of(kind: IcebergType, value: str | float | bool) -> pa.Scalar:  # noqa: FBT001 - a value, not a flag
    """The constant as an Arrow scalar of the column's type."""
    import pyarrow as pa
    from pyiceberg.conversions import from_json
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.types import DoubleType, FloatType

    parsed: Any = float.fromhex(value) if isinstance(kind, FloatType | DoubleType) and isinstance(value, str) else None
    if parsed is None:
        parsed = from_json(kind, value)  # type: ignore[arg-type]  # partition fields are primitive
    return pa.scalar(getattr(parsed, "bytes", parsed), schema_to_pyarrow(kind, include_field_ids=False))


def _stored(value: Any) -> Any:  # noqa: ANN401 - a JSON single value
    # JSON knows neither NaN nor infinity.
    return value.hex() if isinstance(value, float) else value
