"""The three readers agree on every kind of value, and the comparison fails when they do not."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from contract.catalog.modes import SCHEMA, SPEC, TABLE, rows
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
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from support.appending import append
from support.readers import assert_same_everywhere, rows_by_each_reader
from support.world import World

EVERY_TYPE = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "flag", BooleanType()),
    NestedField(3, "small", IntegerType()),
    NestedField(4, "single", FloatType()),
    NestedField(5, "double", DoubleType()),
    NestedField(6, "price", DecimalType(38, 9)),
    NestedField(7, "day", DateType()),
    NestedField(8, "clock", TimeType()),
    NestedField(9, "local", TimestampType()),
    NestedField(10, "instant", TimestamptzType()),
    NestedField(11, "text", StringType()),
    NestedField(12, "uuid", UUIDType()),
    NestedField(13, "four", FixedType(4)),
    NestedField(14, "bytes", BinaryType()),
    NestedField(15, "list", ListType(16, DoubleType(), element_required=False)),
    NestedField(17, "map", MapType(18, StringType(), 19, LongType(), value_required=False)),
    NestedField(20, "struct", StructType(NestedField(21, "x", DoubleType()), NestedField(22, "y", StringType()))),
)

VALUES = {
    "flag": True,
    "small": -(2**31),
    "single": 0.1,
    "double": float("nan"),
    "price": Decimal("-12345678901234567890123456789.123456789"),
    "day": date(1969, 12, 31),
    "clock": time(23, 59, 59, 999999),
    "local": datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - a timestamp without a zone
    "instant": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    "text": "Grüße, 'quoted'\n\0",
    "uuid": UUID("12345678-1234-5678-1234-567812345678").bytes,
    "four": b"\x00\x01\xfe\xff",
    "bytes": b"",
    "list": [float("nan"), None, -0.0],
    "map": [("a", 1), ("b", None)],
    "struct": {"x": float("inf"), "y": None},
}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_every_type_with_its_nulls_is_read_alike(world):
    world.create_table(schema=EVERY_TYPE)
    expected = [{"id": 1, **VALUES}, {"id": 2}, {"id": 1, **VALUES}]
    schema = pa.schema([field.remove_metadata() for field in EVERY_TYPE.as_arrow()])
    table = append(world, pa.Table.from_pylist(expected, schema=schema))
    assert_same_everywhere(table, expected)


def test_partitions_and_an_empty_table_are_read_alike(world):
    table = world.create_table(TABLE, SCHEMA, SPEC)
    assert_same_everywhere(table, [])
    schema = pa.schema([field.remove_metadata() for field in SCHEMA.as_arrow()])
    table = append(world, pa.Table.from_pylist(rows(0, 50), schema=schema))
    assert_same_everywhere(table, rows(0, 50))


def test_a_branch_and_a_snapshot_are_read_alike_and_leave_no_file_behind(world):
    world.create_table(TABLE, SCHEMA, SPEC)
    schema = pa.schema([field.remove_metadata() for field in SCHEMA.as_arrow()])
    first = append(world, pa.Table.from_pylist(rows(0, 10), schema=schema)).current_snapshot().snapshot_id
    world.table().manage_snapshots().create_branch(first, "audit").commit()
    world.table().append(pa.Table.from_pylist(rows(100, 5), schema=world.table().schema().as_arrow()), branch="audit")
    with world.table().update_schema() as update:
        update.add_column("note", StringType())
    table = append(world, pa.Table.from_pylist(rows(10, 10), schema=schema))
    before = set(world.root.rglob("*"))
    assert_same_everywhere(table, rows(0, 20))
    assert_same_everywhere(table, rows(0, 10), snapshot_id=first)
    assert_same_everywhere(table, rows(0, 10) + rows(100, 5), branch="audit")
    assert set(world.root.rglob("*")) == before


@pytest.mark.parametrize(
    "wrong",
    [
        rows(0, 9),
        rows(0, 11),
        [*rows(0, 9), *rows(0, 1)],
        [row | {"value": row["value"] or 1.0} for row in rows(0, 10)],
        [row | {"price": row["price"] and row["price"] + Decimal("0.01")} for row in rows(0, 10)],
    ],
    ids=["one too few", "one too many", "one twice", "a null and a zero", "a cent"],
)
def test_a_difference_in_a_single_value_is_told(world, wrong):
    world.create_table(TABLE, SCHEMA, SPEC)
    schema = pa.schema([field.remove_metadata() for field in SCHEMA.as_arrow()])
    table = append(world, pa.Table.from_pylist(rows(0, 10), schema=schema))
    with pytest.raises(AssertionError, match=r"pyiceberg finds 10 rows instead of"):
        assert_same_everywhere(table, wrong)


def test_a_row_that_only_the_writers_own_library_sees_is_told_of_the_others(world, monkeypatch):
    world.create_table(TABLE, SCHEMA, SPEC)
    schema = pa.schema([field.remove_metadata() for field in SCHEMA.as_arrow()])
    table = append(world, pa.Table.from_pylist(rows(0, 10), schema=schema))
    assert set(rows_by_each_reader(table)) == {"pyiceberg", "duckdb", "iceberg-rust"}
    (manifest,) = table.current_snapshot().manifests(table.io)
    # RememberedCommit by pyiceberg, gone for everybody else.
    manifest.fetch_manifest_entry(table.io)
    table.scan().to_arrow()
    monkeypatch.setattr(table, "metadata_location", world.create_table("shop.other", SCHEMA, SPEC).metadata_location)
    with pytest.raises(AssertionError, match="duckdb finds 0 rows instead of 10"):
        assert_same_everywhere(table, rows(0, 10))
