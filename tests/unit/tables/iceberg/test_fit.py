"""Whether rows fit a table: what is brought to its schema without loss, and how what does not fit is told."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
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

from airflow_ckpt_provider.exceptions import NullInRequiredColumnError, SchemaMismatchError
from airflow_ckpt_provider.tables.fit import Conform, differences
from airflow_ckpt_provider.tables.iceberg.fit import write_schema

AT = datetime(2026, 1, 1, 12, 30, 15, 250000)  # noqa: DTZ001 - a timestamp without a zone


def schema_of(kind, *, required=False):
    return write_schema(Schema(NestedField(1, "c", kind, required=required)))


def conform(kind, column, *, required=False):
    batch = pa.record_batch({"c": column})
    return Conform(schema_of(kind, required=required), "shop.orders", {})(batch).column(0).to_pylist()


# -- what fits ------------------------------------------------------------------------------------------------------------

FITS = [
    (LongType(), pa.array([1, None], pa.int8()), [1, None]),
    (LongType(), pa.array([1], pa.int32()), [1]),
    (LongType(), pa.array([2**32 - 1], pa.uint32()), [2**32 - 1]),
    (IntegerType(), pa.array([65535], pa.uint16()), [65535]),
    (DoubleType(), pa.array([0.5], pa.float32()), [0.5]),
    (FloatType(), pa.array([0.5], pa.float32()), [0.5]),
    (DecimalType(12, 4), pa.array([Decimal("1.25")], pa.decimal128(9, 2)), [Decimal("1.2500")]),
    (DecimalType(38, 2), pa.array([Decimal("1.25")], pa.decimal256(38, 2)), [Decimal("1.25")]),
    (TimestampType(), pa.array([AT], pa.timestamp("ms")), [AT]),
    (TimestampType(), pa.array([AT], pa.timestamp("ns")), [AT]),
    (TimestamptzType(), pa.array([AT], pa.timestamp("us", "UTC")), [AT.replace(tzinfo=UTC)]),
    (TimestamptzType(), pa.array([AT], pa.timestamp("us", "Asia/Tokyo")), [AT.replace(tzinfo=UTC)]),
    (DateType(), pa.array([date(2026, 1, 1)], pa.date64()), [date(2026, 1, 1)]),
    (TimeType(), pa.array([time(1, 2, 3)], pa.time32("s")), [time(1, 2, 3)]),
    (StringType(), pa.array(["ü", None], pa.large_string()), ["ü", None]),
    (StringType(), pa.array(["ü"], pa.string_view()), ["ü"]),
    (StringType(), pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    (BinaryType(), pa.array([b"x"], pa.large_binary()), [b"x"]),
    (FixedType(2), pa.array([b"ab"], pa.binary(2)), [b"ab"]),
    (UUIDType(), pa.array([b"x" * 16], pa.binary(16)), None),
    (LongType(), pa.nulls(2), [None, None]),
    (ListType(2, LongType(), element_required=False), pa.array([[1, None], None], pa.large_list(pa.int16())), [[1, None], None]),
    (ListType(2, LongType(), element_required=False), pa.array([[1, 2]], pa.list_(pa.int64(), 2)), [[1, 2]]),
    (
        MapType(2, StringType(), 3, LongType(), value_required=False),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
        [[("a", 1)]],
    ),
]


@pytest.mark.parametrize(("kind", "column", "values"), FITS, ids=lambda value: str(getattr(value, "type", value))[:40])
def test_what_loses_nothing_is_brought_to_the_tables_type(kind, column, values):
    found = conform(kind, column)
    assert len(found) == len(column)
    assert values is None or found == values


def test_columns_are_matched_by_name_and_missing_optional_ones_are_null():
    want = write_schema(Schema(NestedField(1, "a", LongType()), NestedField(2, "b", StringType()), NestedField(3, "c", LongType())))
    batch = pa.record_batch({"c": [3], "a": [1]})
    assert Conform(want, "shop.orders", {})(batch).to_pylist() == [{"a": 1, "b": None, "c": 3}]


STRUCT = StructType(NestedField(2, "x", LongType(), required=True), NestedField(3, "y", StringType()))


def test_members_of_structs_are_matched_by_name_at_every_depth():
    column = pa.array([{"y": "a", "x": 1}, None], pa.struct([("y", pa.string()), ("x", pa.int32())]))
    assert conform(STRUCT, column) == [{"x": 1, "y": "a"}, None]
    assert conform(STRUCT, pa.array([{"x": 1}])) == [{"x": 1, "y": None}]
    nested = ListType(10, StructType(NestedField(11, "s", STRUCT)), element_required=False)
    column = pa.array([[{"s": {"y": "a", "x": 1}}]])
    assert conform(nested, column) == [[{"s": {"x": 1, "y": "a"}}]]


# -- what does not --------------------------------------------------------------------------------------------------------

DOES_NOT_FIT = [
    (IntegerType(), pa.int64()),
    (LongType(), pa.uint64()),
    (IntegerType(), pa.uint32()),
    (LongType(), pa.float64()),
    (LongType(), pa.string()),
    (DoubleType(), pa.int32()),
    (FloatType(), pa.float64()),
    (DecimalType(9, 2), pa.decimal128(9, 3)),
    (DecimalType(9, 2), pa.decimal128(10, 2)),
    (DecimalType(9, 4), pa.decimal128(9, 2)),
    (DecimalType(9, 2), pa.int32()),
    (TimestampType(), pa.timestamp("us", "UTC")),
    (TimestamptzType(), pa.timestamp("us")),
    (TimestampType(), pa.date32()),
    (DateType(), pa.timestamp("us")),
    (TimeType(), pa.int64()),
    (StringType(), pa.binary()),
    (StringType(), pa.int64()),
    (BinaryType(), pa.string()),
    (FixedType(2), pa.binary(3)),
    (FixedType(2), pa.binary()),
    (UUIDType(), pa.string()),
    (ListType(2, LongType(), element_required=False), pa.int64()),
    (STRUCT, pa.map_(pa.string(), pa.string())),
    (LongType(), pa.list_(pa.int64())),
]


@pytest.mark.parametrize(("kind", "have"), DOES_NOT_FIT, ids=str)
def test_what_could_lose_something_is_refused_with_both_types(kind, have):
    want = schema_of(kind)
    assert differences(pa.schema([("c", have)]), want) == [f"column 'c' is {have}, the table has {want.field('c').type}"]
    with pytest.raises(SchemaMismatchError, match=r"shop\.orders"):
        conform(kind, pa.nulls(1, have))


def test_every_difference_is_listed():
    want = write_schema(
        Schema(
            NestedField(1, "id", LongType(), required=True),
            NestedField(2, "value", DoubleType()),
            NestedField(3, "s", STRUCT, required=True),
            NestedField(10, "l", ListType(11, StructType(NestedField(12, "z", LongType())), element_required=False)),
            NestedField(20, "m", MapType(21, StringType(), 22, LongType(), value_required=False)),
            NestedField(30, "gone", LongType(), required=True),
        )
    )
    have = pa.schema(
        [
            ("id", pa.string()),
            ("s", pa.struct([("y", pa.int8()), ("w", pa.int8())])),
            ("l", pa.list_(pa.struct([("z", pa.string())]))),
            ("m", pa.map_(pa.int8(), pa.string())),
            ("extra", pa.int8()),
            ("value", pa.float64()),
            ("value", pa.float64()),
        ]
    )
    assert sorted(differences(have, want)) == sorted(
        [
            "column 'extra' is not in the table",
            "column 'value' occurs more than once",
            "column 'id' is string, the table has int64",
            "column 's.w' is not in the table",
            "column 's.x' is required and missing",
            "column 's.y' is int8, the table has string",
            "column 'l.element.z' is string, the table has int64",
            "column 'm.key' is int8, the table has string",
            "column 'm.value' is string, the table has int64",
            "column 'gone' is required and missing",
        ]
    )


def test_a_value_that_would_lose_digits_is_refused_with_its_column():
    nanoseconds = pa.array([1], pa.timestamp("ns"))
    with pytest.raises(SchemaMismatchError, match=r"'c' holds a value .*shop\.orders"):
        conform(TimestampType(), nanoseconds)


def test_a_batch_with_another_schema_half_way_is_checked_again():
    conforming = Conform(schema_of(LongType()), "shop.orders", {})
    conforming(pa.record_batch({"c": [1]}))
    with pytest.raises(SchemaMismatchError, match="'c' is string"):
        conforming(pa.record_batch({"c": ["1"]}))


# -- nulls in required columns --------------------------------------------------------------------------------------------

REQUIRED_ELEMENT = ListType(2, LongType(), element_required=True)
REQUIRED_VALUE = MapType(2, StringType(), 3, LongType(), value_required=True)
LIST_OF_STRUCTS = ListType(5, STRUCT, element_required=False)

NULLS = [
    (LongType(), [1, 2, None, None], "c", 2, True),
    (STRUCT, [None, {"x": 1, "y": None}, None, {"x": None, "y": "a"}], "c.x", 3, False),
    (REQUIRED_ELEMENT, [[1], None, [], [2, None]], "c.element", 3, False),
    (REQUIRED_VALUE, [[("a", 1)], None, [("b", 2), ("c", None)]], "c.value", 2, False),
    (LIST_OF_STRUCTS, [None, [{"x": 1}, None], [{"x": 1}, {"x": None}]], "c.element.x", 2, False),
]


def typed(kind, values):
    def optional(field):
        inner = field.type
        if pa.types.is_struct(inner):
            inner = pa.struct([optional(member) for member in inner])
        elif pa.types.is_list(inner):
            inner = pa.list_(optional(inner.value_field))
        elif pa.types.is_map(inner):
            inner = pa.map_(inner.key_type, optional(inner.item_field))
        return pa.field(field.name, inner)

    return pa.array(values, optional(schema_of(kind).field("c")).type)


@pytest.mark.parametrize(("kind", "values", "path", "row", "required"), NULLS, ids=[case[2] + str(case[3]) for case in NULLS])
@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("cut", [0, 1])
def test_a_null_in_a_required_column_is_refused_with_its_column_and_row(kind, values, path, row, required, before, cut):
    conforming = Conform(schema_of(kind, required=required), "shop.orders", {})
    good = typed(kind, [values[1] if values[0] is None and not required else values[0]] * before)
    conforming(pa.record_batch({"c": good}))
    # A slice: its children still hold what was cut off.
    batch = pa.record_batch({"c": typed(kind, values)}).slice(cut)
    with pytest.raises(
        NullInRequiredColumnError, match=rf"'{path}' of the table shop\.orders is required, but row {before + row - cut} "
    ):
        conforming(batch)


def test_a_null_that_was_cut_off_or_has_no_parent_is_no_null():
    for kind, values, _, _, required in NULLS:
        batch = pa.record_batch({"c": typed(kind, values)}).slice(0, 2)
        assert Conform(schema_of(kind, required=required), "shop.orders", {})(batch).num_rows == 2
    optional = pa.array([None, None], pa.struct([("x", pa.int64()), ("y", pa.string())]))
    assert conform(STRUCT, optional) == [None, None]


def test_rows_of_a_required_column_without_nulls_pass():
    assert conform(LongType(), pa.array([1, 2]), required=True) == [1, 2]


# -- what nobody sees ---------------------------------------------------------------------------------------------------------

HIDDEN = {
    "numbers": (pa.int64(), 1),
    "text": (pa.string(), "x"),
    "decimals": (pa.decimal128(10, 2), Decimal(1)),
    "lists": (pa.list_(pa.int64()), [1]),
    "vectors": (pa.list_(pa.float32(), 2), [1.0, 2.0]),
    "structs": (pa.struct([pa.field("x", pa.int64(), nullable=False)]), {"x": 1}),
    "maps": (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    "JSON": (pa.json_(), None),
    "a dictionary": (pa.dictionary(pa.int32(), pa.string()), None),
}


def within(kind, structs):
    """The same structs in a column of structs, of lists, of vectors, of maps; and as part of a longer column."""
    count = len(structs)
    yield kind, structs
    yield kind, structs.slice(1)
    yield pa.list_(kind), pa.ListArray.from_arrays(pa.array([0, 2, count], pa.int32()), structs)
    yield pa.list_(kind), pa.ListArray.from_arrays(pa.array([0, 2, count], pa.int32()), structs).slice(1)
    yield pa.list_(kind, 2), pa.FixedSizeListArray.from_arrays(structs.slice(0, 4), 2)
    keys = pa.array([str(number) for number in range(count)])
    yield pa.map_(pa.string(), kind), pa.MapArray.from_arrays(pa.array([0, 2, count], pa.int32()), keys, structs)
    yield pa.struct([("s", kind)]), pa.StructArray.from_arrays([structs], fields=[pa.field("s", kind)])


@pytest.mark.parametrize("name", HIDDEN)
def test_a_required_member_may_be_null_where_its_struct_is(name):
    """So Arrow reads it from Parquet, and refuses to write it there."""
    member, value = HIDDEN[name]
    fields = [pa.field("a", member, nullable=False)]
    nulls = (
        pa.ExtensionArray.from_storage(member, pa.nulls(4, member.storage_type))
        if isinstance(member, pa.BaseExtensionType)
        else pa.nulls(4, member)
    )
    structs = pa.StructArray.from_arrays([nulls], fields=fields, mask=pa.array([True] * 4))
    if value is not None:
        structs = pa.concat_arrays([structs, pa.StructArray.from_arrays([pa.array([value], member)], fields=fields)])
    for kind, column in within(pa.struct(fields), structs):
        made = Conform(pa.schema([pa.field("c", kind)]), "shop.orders")(pa.record_batch({"c": column}))
        made.validate(full=True)
        assert made["c"].type == kind
        assert made["c"].to_pylist() == column.to_pylist()
