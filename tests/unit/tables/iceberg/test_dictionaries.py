"""Which columns get a dictionary: those whose values repeat. Judged on real files, for every type that is judged."""

from __future__ import annotations

import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from support.appending import append
from support.world import World

ROWS = 70_000

#: Type of a column, its Arrow type, and a value for each number.
TYPES = {
    "integer": (IntegerType(), pa.int32(), int),
    "long": (LongType(), pa.int64(), int),
    "float": (FloatType(), pa.float32(), float),
    "double": (DoubleType(), pa.float64(), float),
    "decimal": (DecimalType(20, 2), pa.decimal128(20, 2), lambda n: Decimal(n) / 100),
    "date": (DateType(), pa.date32(), int),
    "time": (TimeType(), pa.time64("us"), int),
    "timestamp": (TimestampType(), pa.timestamp("us"), int),
    "timestamptz": (TimestamptzType(), pa.timestamp("us", "UTC"), int),
    "string": (StringType(), pa.string(), lambda n: f"value {n}"),
    "binary": (BinaryType(), pa.binary(), lambda n: n.to_bytes(8, "big")),
    "fixed": (FixedType(8), pa.binary(8), lambda n: n.to_bytes(8, "big")),
}


def written(tmp_path, schema, rows):
    world = World(tmp_path)
    world.create_table(schema=schema)
    table = append(world, rows)
    (path,) = [one.file.file_path for one in table.scan().plan_files()]
    return table, parquet.read_metadata(path.removeprefix("file://")).row_group(0)


def has_dictionary(group, name):
    (column,) = [group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema.split(".")[0] == name]
    return column.has_dictionary_page


@pytest.mark.parametrize("name", TYPES)
def test_a_column_has_a_dictionary_if_its_values_repeat_and_reads_back_either_way(tmp_path, name):
    kind, arrow, value = TYPES[name]
    schema = Schema(NestedField(1, "varied", kind), NestedField(2, "few", kind))
    varied = pa.array([value(n) for n in range(ROWS)], arrow)
    few = pa.array([value(n % 10) for n in range(ROWS)], arrow)
    table, group = written(tmp_path, schema, pa.table({"varied": varied, "few": few}))
    assert (has_dictionary(group, "varied"), has_dictionary(group, "few")) == (False, True)
    found = table.scan().to_arrow()
    assert found["varied"].cast(arrow).to_pylist() == varied.to_pylist()
    assert found["few"].cast(arrow).to_pylist() == few.to_pylist()


def test_columns_that_are_not_judged_are_written_as_ever(tmp_path):
    schema = Schema(
        NestedField(1, "flag", BooleanType()),
        NestedField(2, "list", ListType(3, LongType(), element_required=False)),
        NestedField(4, "uuid", UUIDType()),
        NestedField(5, "a b", StringType()),
    )
    ids = [uuid.UUID(int=n).bytes for n in range(ROWS)]
    rows = pa.table(
        {
            "flag": pa.array([n % 2 == 0 for n in range(ROWS)]),
            "list": pa.array([[n] for n in range(ROWS)], pa.list_(pa.int64())),
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array(ids, pa.binary(16))),
            "a b": pa.array([str(n % 3) for n in range(ROWS)]),
        }
    )
    table, _ = written(tmp_path, schema, rows)
    assert table.scan().to_arrow()["list"].to_pylist() == rows["list"].to_pylist()
    assert table.scan().count() == ROWS


def test_few_rows_are_not_judged(tmp_path):
    rows = pa.table({"varied": pa.array(range(100), pa.int64())})
    _, group = written(tmp_path, Schema(NestedField(1, "varied", LongType())), rows)
    assert has_dictionary(group, "varied")
