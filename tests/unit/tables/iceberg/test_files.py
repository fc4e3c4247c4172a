"""The data files of an append: their size, schema, field ids, statistics, and that types come back as they went in."""

from __future__ import annotations

import gc
import math
import struct
from datetime import UTC, date, datetime, time
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
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from support.appending import append, arrow_schema, header_of, write, writer_of
from support.readers import duckdb_rows
from support.world import World, rows

from airflow_ckpt_provider.exceptions import NullInRequiredColumnError
from airflow_ckpt_provider.tables.writer import Written

NESTED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "s", StructType(NestedField(3, "x", DoubleType()), NestedField(4, "y", StringType(), required=True))),
    NestedField(5, "l", ListType(6, StructType(NestedField(7, "f", FloatType())), element_required=False)),
    NestedField(8, "m", MapType(9, StringType(), 10, DoubleType(), value_required=False)),
    NestedField(11, "ll", ListType(12, ListType(13, LongType(), element_required=True), element_required=False)),
)

NESTED_ROWS = [
    {
        "id": 1,
        "s": {"x": 0.5, "y": "a"},
        "l": [{"f": 0.5}, None, {"f": None}],
        "m": [("k", 1.5), ("j", None)],
        "ll": [[1, 2], [], None],
    },
    {"id": 2, "s": None, "l": None, "m": None, "ll": None},
    {"id": 3, "s": {"x": None, "y": ""}, "l": [], "m": [], "ll": []},
    {"id": 4, "s": {"x": math.inf, "y": "ü"}, "l": [{"f": 4.0}], "m": [("ü", -1.0)], "ll": [[2**62]]},
]


def data_files(table):
    return [task.file for task in table.scan().plan_files()]


def opened(data_file):
    return parquet.ParquetFile(data_file.file_path.removeprefix("file://"))


def test_every_type_comes_back_as_it_went_in(tmp_path):
    at = datetime(2026, 1, 1, 12, 30, 15, 123456)  # noqa: DTZ001 - a timestamp without a zone
    columns = {
        "i": (IntegerType(), [-(2**31), None]),
        "n": (LongType(), [2**63 - 1, None]),
        "f": (FloatType(), [0.5, None]),
        "d": (DoubleType(), [-0.0, None]),
        "t": (BooleanType(), [True, None]),
        "s": (StringType(), ["ü", None]),
        "b": (BinaryType(), [b"\x00\xff", None]),
        "x": (FixedType(3), [b"abc", None]),
        "p9": (DecimalType(9, 2), [Decimal("-1234567.89"), None]),
        "p18": (DecimalType(18, 0), [Decimal(10**17), None]),
        "p38": (DecimalType(38, 10), [Decimal("1234567890123456789.0123456789"), None]),
        "day": (DateType(), [date(1900, 1, 1), None]),
        "at": (TimestampType(), [at, None]),
        "atz": (TimestamptzType(), [at.replace(tzinfo=UTC), None]),
        "hour": (TimeType(), [time(23, 59, 59, 999999), None]),
    }
    schema = Schema(*(NestedField(n, name, kind) for n, (name, (kind, _)) in enumerate(columns.items(), start=1)))
    world = World(tmp_path)
    world.create_table("shop.ours", schema)
    data = pa.table({name: values for name, (_, values) in columns.items()}, schema=arrow_schema(schema))
    table = append(world, data, name="shop.ours")
    assert table.scan().to_arrow().to_pylist() == data.to_pylist()
    ours = duckdb_rows(table)
    assert sorted(ours, key=str)[1] == (None,) * len(columns)
    wanted = tuple(data.to_pylist()[0].values())
    assert next(row for row in ours if row[0] is not None) == wanted


def test_nested_rows_come_back_as_they_went_in(tmp_path):
    world = World(tmp_path)
    own = world.create_table("shop.ours", NESTED).schema()
    data = pa.Table.from_pylist(NESTED_ROWS, schema=arrow_schema(own))
    table = append(world, data, name="shop.ours")
    # Not by pyiceberg's scan: it reads a null list of structs as an empty one, its own appends too.
    assert opened(data_files(table)[0]).read().to_pylist() == NESTED_ROWS
    assert duckdb_rows(table, "select l is null, m is null, ll is null from rows where id = 2") == [(True, True, True)]
    assert duckdb_rows(table, "select id, s.x, l[1].f, m['k'], ll[1][2] from rows where id = 1") == [(1, 0.5, 0.5, 1.5, 2)]


def test_every_column_in_a_file_carries_its_field_id(tmp_path):
    world = World(tmp_path)
    own = world.create_table("shop.ours", NESTED).schema()
    table = append(world, pa.Table.from_pylist(NESTED_ROWS, schema=arrow_schema(own)), name="shop.ours")
    found = {}

    def collect(field, path):
        found[path] = int(field.metadata[b"PARQUET:field_id"])
        kind = field.type
        if pa.types.is_map(kind):
            members = [kind.key_field, kind.item_field]
        else:
            members = [kind.field(index) for index in range(kind.num_fields)] if pa.types.is_nested(kind) else []
        for member in members:
            collect(member, f"{path}.{member.name}")

    for field in opened(data_files(table)[0]).schema_arrow:
        collect(field, field.name)
    wanted = {own.find_column_name(field_id): field_id for field_id in own.field_ids}
    assert found == wanted


def test_decimals_are_stored_as_integers_where_they_fit(tmp_path):
    world = World(tmp_path)
    schema = Schema(*(NestedField(n, f"p{n}", DecimalType(n, 2)) for n in (9, 18, 38)))
    own = world.create_table("shop.ours", schema).schema()
    table = append(world, pa.table({f"p{n}": [Decimal("1.25")] for n in (9, 18, 38)}, schema=arrow_schema(own)), name="shop.ours")
    stored = opened(data_files(table)[0]).schema
    assert [stored.column(n).physical_type for n in range(3)] == ["INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"]


@pytest.mark.parametrize("name", ["a b", "1x", "a.b", "ü", "a-b", "a/b", "select", "_x"])
def test_a_column_name_that_avro_does_not_allow_is_written_and_read(tmp_path, name):
    world = World(tmp_path)
    world.create_table("shop.ours", Schema(NestedField(1, name, LongType()), NestedField(2, "other", DoubleType())))
    table = append(world, pa.table({name: [1, None, 3], "other": [math.nan, 1.0, None]}), name="shop.ours")
    assert table.scan().to_arrow()[name].to_pylist() == [1, None, 3]
    assert duckdb_rows(table, f'select sum("{name}") from rows') == [(4,)]


def test_a_row_group_is_not_cut_for_the_target_size(tmp_path):
    world = World(tmp_path)
    world.create_table(properties={"write.target-file-size-bytes": "100000", "write.parquet.compression-codec": "uncompressed"})
    (written,) = write(world, rows(0, 40_000), rows_per_batch=1000)
    assert len(written.files) == 1


def test_files_are_rolled_at_the_tables_target_size(tmp_path, monkeypatch):
    monkeypatch.setattr("airflow_ckpt_provider.tables.fit.CHUNK_ROWS", 1000)
    world = World(tmp_path)
    target = 100_000
    world.create_table(properties={"write.target-file-size-bytes": str(target), "write.parquet.compression-codec": "uncompressed"})
    table = append(world, rows(0, 40_000), rows_per_batch=500)
    files = data_files(table)
    sizes = [file.file_size_in_bytes for file in files]
    assert len(files) > 5
    assert max(sizes) < 1.6 * target
    assert sum(size < target for size in sizes) <= 1
    assert world.ids() == list(range(40_000))
    assert all(opened(file).metadata.num_row_groups > 1 for file in files if file.record_count > 1000)


def test_a_split_without_rows_leaves_no_file(tmp_path):
    world = World(tmp_path)
    world.create_table()
    (nothing,) = write(world, rows(0, 0))
    assert nothing == Written(0, 0, (), None)
    assert world.files_on_disk() == set()


@pytest.mark.parametrize("target", [1000, 1 << 30], ids=["files closed", "file open"])
def test_a_write_that_fails_half_way_leaves_no_file(tmp_path, monkeypatch, target):
    monkeypatch.setattr("airflow_ckpt_provider.tables.fit.CHUNK_ROWS", 100)
    world = World(tmp_path)
    world.create_table(properties={"write.target-file-size-bytes": str(target)})
    bad = pa.concat_tables([rows(0, 1000), rows(1000, 1).set_column(0, "id", pa.nulls(1, pa.int64()))])
    with pytest.raises(NullInRequiredColumnError, match="row 1000 of the split"):
        write(world, bad, rows_per_batch=100)
    assert world.files_on_disk() == set()
    # A Parquet writer that was left open would complain now.
    gc.collect()


def test_a_split_that_lost_the_race_is_removed_and_nothing_else(tmp_path):
    world = World(tmp_path)
    world.create_table()
    kept, lost = write(world, rows(0, 10), rows(0, 10))
    target = world.as_table()
    writer_of(target, header_of(target)).remove(lost)
    assert world.files_on_disk() == {file.path.removeprefix("file://") for file in kept.files} | {
        kept.manifest["path"].removeprefix("file://")
    }


# -- statistics -----------------------------------------------------------------------------------------------------------


def test_bounds_and_counts_are_those_of_the_rows(tmp_path):
    world = World(tmp_path)
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "f", DoubleType()), NestedField(3, "s", StringType()))
    world.create_table("shop.ours", schema)
    data = pa.table({"n": [5, None, -7], "f": [math.nan, 2.5, -1.0], "s": ["b", "a", None]}, schema=arrow_schema(schema))
    (file,) = data_files(append(world, data, name="shop.ours"))
    assert file.record_count == 3
    assert file.value_counts == {1: 3, 2: 3, 3: 3}
    assert file.null_value_counts == {1: 1, 2: 0, 3: 1}
    assert file.nan_value_counts == {2: 1}
    assert (file.lower_bounds[1], file.upper_bounds[1]) == (struct.pack("<q", -7), struct.pack("<q", 5))
    assert (file.lower_bounds[2], file.upper_bounds[2]) == (struct.pack("<d", -1.0), struct.pack("<d", 2.5))
    assert (file.lower_bounds[3], file.upper_bounds[3]) == (b"a", b"b")
    assert file.file_size_in_bytes == (tmp_path / file.file_path.removeprefix("file://")).stat().st_size


@pytest.mark.parametrize("partitioned", [False, True])
def test_nan_counts_are_those_of_the_rows_at_every_depth(tmp_path, partitioned):
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
    from pyiceberg.transforms import BucketTransform

    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "p")) if partitioned else UNPARTITIONED_PARTITION_SPEC
    world = World(tmp_path)
    own = world.create_table("shop.ours", NESTED, spec).schema()
    nan = math.nan
    data = pa.Table.from_pylist(
        [
            {
                "id": n,
                "s": {"x": nan, "y": ""} if n % 2 else None,
                "l": [{"f": nan}, {"f": 1.0}, {"f": nan}],
                "m": [("a", nan), ("b", 1.0)],
            }
            for n in range(30)
        ],
        schema=arrow_schema(own),
    )
    files = data_files(append(world, data, name="shop.ours", rows_per_batch=7))
    counts = {}
    for file in files:
        for field_id, count in file.nan_value_counts.items():
            name = own.find_column_name(field_id)
            counts[name] = counts.get(name, 0) + count
    assert len(files) == (3 if partitioned else 1)
    assert {name: count for name, count in counts.items() if count} == {"s.x": 15, "l.element.f": 60, "m.value": 30}


def test_a_later_delete_keeps_the_nan_rows_that_it_does_not_match(tmp_path):
    world = World(tmp_path)
    world.create_table("shop.ours", Schema(NestedField(1, "id", LongType()), NestedField(2, "f", DoubleType())))
    table = append(world, pa.table({"id": [1, 2, 3], "f": [math.nan, 2.0, 5.0]}), name="shop.ours")
    table.delete("f <= 10")
    assert world.ids("shop.ours") == [1]


def test_rows_whose_optional_struct_is_null_are_written_though_a_member_is_required(tmp_path):
    """Read from Parquet, the member is null, too, where nobody sees it."""
    world = World(tmp_path)
    with world.create_table().update_schema() as update:
        update.add_column("place", StructType(NestedField(20, "city", StringType(), required=True)))
    kind = pa.struct([pa.field("city", pa.string(), nullable=False)])

    def placed(batch):
        missing = pa.array([number % 2 == 1 for number in batch["id"].to_pylist()])
        city = pa.array([None if number % 2 else "x" for number in batch["id"].to_pylist()], pa.string())
        return batch.append_column(pa.field("place", kind), pa.StructArray.from_arrays([city], fields=list(kind), mask=missing))

    world.put_files(2, 3)
    world.commit(world.stage(world.request(transform=placed)))
    found = world.table().scan().to_arrow().sort_by("id")["place"].to_pylist()
    assert found == [{"city": "x"}, None] * 3
