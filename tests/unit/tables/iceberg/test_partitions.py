"""Partitioned appends: the same rows in the same partitions as pyiceberg's own append makes, for every transform and type."""

from __future__ import annotations

import errno
import io
import math
import re
import tempfile
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from support.appending import append, arrow_schema, by_partition, header_of, write, writer_of
from support.readers import duckdb_rows
from support.world import SCHEMA, World

from airflow_ckpt_provider.exceptions import NullInRequiredColumnError, StageFailedError

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without a zone
MOMENTS = [
    EPOCH - timedelta(microseconds=1),
    EPOCH,
    EPOCH + timedelta(days=20_000, hours=13, minutes=1),
    EPOCH + timedelta(days=20_000),
]

VALUES = {
    "long": (LongType(), [-5, 0, 7, 2**40]),
    "int": (IntegerType(), [-5, 0, 7, 12_345]),
    "string": (StringType(), ["", "abc", "abcdef", "ünï/c=d &x"]),
    "date": (DateType(), [date(1969, 12, 31), date(1970, 1, 1), date(2026, 2, 28)]),
    "timestamp": (TimestampType(), MOMENTS),
    "timestamptz": (TimestamptzType(), [moment.replace(tzinfo=UTC) for moment in MOMENTS]),
    "decimal": (DecimalType(9, 2), [Decimal("-1.05"), Decimal("0.00"), Decimal("1234.56")]),
    "wide decimal": (DecimalType(38, 4), [Decimal("-1.05"), Decimal("1234567890123456789.5600")]),
    "boolean": (BooleanType(), [True, False]),
    "binary": (BinaryType(), [b"", b"\x00\xff", b"abcdef"]),
    "fixed": (FixedType(4), [b"abcd", b"\x00\x01\x02\x03"]),
    "time": (TimeType(), [time(0, 0), time(23, 59, 59, 5)]),
    "double": (DoubleType(), [-1.5, 0.0, math.inf, math.nan]),
    "float": (FloatType(), [-1.5, 0.0, math.nan]),
    "uuid": (UUIDType(), [uuid.UUID(int=5).bytes, uuid.UUID(int=6).bytes]),
}

TRANSFORMS = {
    "identity": IdentityTransform(),
    "bucket": BucketTransform(3),
    "truncate": TruncateTransform(3),
    "year": YearTransform(),
    "month": MonthTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
    "void": VoidTransform(),
}

#: What pyiceberg 0.12 itself cannot append with pyarrow 26; the partitions are given here instead.
NOT_IN_PYICEBERG = {
    ("time", "bucket"): {"1", "None"},
    ("binary", "truncate"): {"b''", r"b'\x00\xff'", "b'abc'", "None"},
    ("uuid", "identity"): {str(uuid.UUID(int=5)), str(uuid.UUID(int=6)), "None"},
    ("uuid", "void"): {"None"},
    ("double", "identity"): {"-1.5", "0.0", "inf", "nan", "None"},
    ("float", "identity"): {"-1.5", "0.0", "nan", "None"},
}

CASES = [(kind, transform) for kind in VALUES for transform in TRANSFORMS if TRANSFORMS[transform].can_transform(VALUES[kind][0])]


def spec(*fields):
    return PartitionSpec(*(PartitionField(source, 1000 + n, transform, f"p{n}") for n, (source, transform) in enumerate(fields)))


def table_of(schema, columns):
    return pa.table(columns, schema=arrow_schema(schema))


@pytest.mark.parametrize(("kind", "transform"), CASES)
def test_rows_land_in_the_partitions_that_pyiceberg_puts_them_in(tmp_path, kind, transform):
    world = World(tmp_path)
    kind_type, values = VALUES[kind]
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "v", kind_type))
    for name in ("shop.ours", "shop.theirs"):
        world.create_table(name, schema, spec((2, TRANSFORMS[transform])))
    column = [*values, None] * 3
    rows = table_of(schema, {"n": range(len(column)), "v": column})
    ours = by_partition(append(world, rows, name="shop.ours", rows_per_batch=4))
    assert sum(map(len, ours.values())) == len(column)
    if (kind, transform) in NOT_IN_PYICEBERG:
        assert {key for (key,) in ours} == NOT_IN_PYICEBERG[kind, transform]
    else:
        world.table("shop.theirs").append(rows)
        assert ours == by_partition(world.table("shop.theirs"))


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
def test_minus_zero_is_in_the_partition_of_zero_whichever_comes_first(tmp_path, kind):
    world = World(tmp_path)
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "v", kind))
    world.create_table("shop.ours", schema, spec((2, IdentityTransform())))
    table = append(world, table_of(schema, {"n": range(4), "v": [-0.0, 0.0, -0.0, 1.0]}), name="shop.ours", rows_per_batch=4)
    assert {key: len(rows) for (key,), rows in by_partition(table).items()} == {"0.0": 3, "1.0": 1}
    assert len(list(table.scan().plan_files())) == 2


def test_several_fields_together_make_the_partitions_that_occur_and_no_others(tmp_path):
    world = World(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()), NestedField(3, "at", TimestampType()))
    for name in ("shop.ours", "shop.theirs"):
        world.create_table(name, schema, spec((3, DayTransform()), (2, IdentityTransform()), (1, BucketTransform(4))))
    rows = table_of(
        schema,
        {
            "id": range(1000),
            "kind": [None if n % 7 == 0 else f"kind {n % 3}" for n in range(1000)],
            "at": [EPOCH + timedelta(hours=n // 9) for n in range(1000)],
        },
    )
    ours = append(world, rows.slice(0, 600), rows.slice(600), name="shop.ours", rows_per_batch=77)
    world.table("shop.theirs").append(rows)
    assert by_partition(ours) == by_partition(world.table("shop.theirs"))
    assert ours.current_snapshot().summary["changed-partition-count"] == str(len(by_partition(ours)))


def test_a_field_inside_a_struct_may_be_the_source(tmp_path):
    world = World(tmp_path)
    inner = StructType(NestedField(3, "skip", LongType()), NestedField(4, "day", DateType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", inner))
    table = world.create_table("shop.ours", schema, spec((4, MonthTransform())))
    structs = [None if n == 3 else {"skip": n, "day": None if n == 4 else date(2026, 1 + n % 3, 1)} for n in range(12)]
    found = by_partition(append(world, table_of(table.schema(), {"id": range(12), "s": structs}), name="shop.ours"))
    months = {key: sorted(int(row.split("'id': ")[1].split(",")[0]) for row in rows) for (key,), rows in found.items()}
    assert months == {"None": [3, 4], "672": [0, 6, 9], "673": [1, 7, 10], "674": [2, 5, 8, 11]}


def test_a_filter_finds_the_rows_and_reads_only_their_partitions(tmp_path):
    world = World(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType()), NestedField(3, "f", DoubleType()))
    world.create_table("shop.ours", schema, spec((2, DayTransform())))
    days = [date(2026, 1, 1) + timedelta(days=n % 10) for n in range(200)]
    rows = table_of(schema, {"id": range(200), "day": days, "f": [math.nan if n % 4 == 0 else float(n) for n in range(200)]})
    table = append(world, rows.slice(0, 150), rows.slice(150), name="shop.ours")
    scan = table.scan("day = '2026-01-03' and f > 100")
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [n for n in range(101, 200) if n % 10 == 2 and n % 4]
    assert {str(task.file.partition[0]) for task in scan.plan_files()} == {"20456"}


def test_another_reader_sees_the_same_rows_unpartitioned_and_partitioned(tmp_path):
    world = World(tmp_path)
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "kind", StringType()),
        NestedField(3, "at", TimestampType()),
        NestedField(4, "price", DecimalType(9, 2)),
    )
    rows = pa.table(
        {
            "id": range(500),
            "kind": [None if n % 5 == 0 else f"k{n % 3}" for n in range(500)],
            "at": [EPOCH + timedelta(hours=n) for n in range(500)],
            "price": [Decimal(n) / 4 for n in range(500)],
        },
        schema=arrow_schema(schema),
    )
    truth = [tuple(row.values()) for row in rows.to_pylist()]
    for name, fields in (
        ("shop.plain", spec()),
        ("shop.parts", spec((3, DayTransform()), (2, TruncateTransform(1)), (1, BucketTransform(2)))),
    ):
        world.create_table(name, schema, fields)
        append(world, rows.slice(0, 300), name=name)
        table = append(world, rows.slice(300), name=name)
        assert duckdb_rows(table, "select * from rows order by id") == truth
        assert duckdb_rows(table, "select sum(price), count(kind) from rows where \"at\" >= '1970-01-11'") == [
            (sum(row[3] for row in truth[240:]), sum(row[1] is not None for row in truth[240:]))
        ]


KINDS = ["a", "b", None, "c"]


@pytest.mark.parametrize("on_disk", [1 << 30, 3000])
def test_each_partition_gets_one_file_however_its_rows_come_and_more_only_when_the_disk_is_full(tmp_path, monkeypatch, on_disk):
    """Chunks of 50 rows; every partition has rows in each of them."""
    monkeypatch.setattr("airflow_ckpt_provider.tables.fit.CHUNK_ROWS", 50)
    monkeypatch.setattr("airflow_ckpt_provider.tables.iceberg.gathering._MOST_ON_DISK", on_disk)
    world = World(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()), NestedField(3, "price", DoubleType()))
    world.create_table("shop.ours", schema, spec((2, IdentityTransform())))
    prices = [math.nan if n % 5 == 0 else n / 2 for n in range(400)]
    rows = table_of(schema, {"id": range(400), "kind": [KINDS[n % 4] for n in range(400)], "price": prices})
    (written,) = write(world, rows, name="shop.ours", rows_per_batch=50)
    found = [parquet.ParquetFile(file.path.removeprefix("file://")) for file in written.files]
    by_kind: dict[object, list[int]] = {}
    for file in found:
        read = file.read(columns=["id", "kind"])
        (kind,) = set(read["kind"].to_pylist())
        by_kind[kind] = by_kind.get(kind, []) + read["id"].to_pylist()
    assert by_kind == {kind: [*range(number, 400, 4)] for number, kind in enumerate(KINDS)}
    groups = [[file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)] for file in found]
    # One row group, not one for each chunk.
    assert (groups == [[100]] * 4) is (on_disk > 3000)
    assert sum(map(sum, groups)) == 400


@pytest.mark.parametrize("chunk_rows", [1 << 20, 7])
def test_rows_of_the_partition_of_nan_are_in_one_file(tmp_path, monkeypatch, chunk_rows):
    monkeypatch.setattr("airflow_ckpt_provider.tables.fit.CHUNK_ROWS", chunk_rows)
    world = World(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "price", DoubleType()))
    world.create_table("shop.ours", schema, spec((2, IdentityTransform())))
    rows = table_of(schema, {"id": range(40), "price": [math.nan if n % 2 else 1.0 for n in range(40)]})
    (written,) = write(world, rows, name="shop.ours", rows_per_batch=5)
    assert len(written.files) == 2


def test_a_write_that_fails_leaves_neither_data_files_nor_temporary_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("airflow_ckpt_provider.tables.fit.CHUNK_ROWS", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    world = World(tmp_path)
    schema = Schema(NestedField(1, "id", LongType(), required=True))
    world.create_table("shop.ours", schema, spec((1, TruncateTransform(10))))
    rows = pa.table({"id": pa.array([*range(50), None], pa.int64())})
    with pytest.raises(NullInRequiredColumnError):
        write(world, rows, name="shop.ours", rows_per_batch=10)
    assert world.files_on_disk() == set()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_process_that_is_killed_leaves_no_rows_in_the_temporary_folder(tmp_path, monkeypatch):
    """It has nothing to remove at any moment: the file has no name."""
    monkeypatch.setattr("airflow_ckpt_provider.tables.fit.CHUNK_ROWS", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    world, held = World(tmp_path), []
    schema = Schema(NestedField(1, "id", LongType()))
    world.create_table("shop.ours", schema, spec((1, TruncateTransform(10))))
    target = world.as_table("shop.ours")

    def batches():
        for batch in table_of(schema, {"id": range(50)}).to_batches(10):
            held.append([*(tmp_path / "temporary").iterdir()])
            yield batch

    assert writer_of(target, header_of(target)).write(batches(), "ckpt-1").rows == 50
    assert held == [[]] * 5


def test_a_temporary_folder_without_room_is_named_with_what_helps(tmp_path, monkeypatch):
    class Full:
        """As of a file system of a few bytes."""

        def __init__(self, **_):
            self.file = io.BytesIO()

        def write(self, data):
            if self.file.tell() + len(data) > 1000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(data)

        def close(self):
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name):
            return getattr(self.file, name)

    monkeypatch.setattr("airflow_ckpt_provider.tables.fit.CHUNK_ROWS", 10)
    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    world = World(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()))
    world.create_table("shop.ours", schema, spec((1, TruncateTransform(10))))
    with pytest.raises(StageFailedError, match=f"{re.escape(tempfile.gettempdir())}.*No space left.*TMPDIR"):
        write(world, table_of(schema, {"id": range(50)}), name="shop.ours", rows_per_batch=10)
    assert world.files_on_disk() == set()


def test_the_rows_of_a_partition_keep_their_order(tmp_path):
    world = World(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))
    world.create_table("shop.ours", schema, spec((2, IdentityTransform())))
    rows = table_of(schema, {"id": range(20_000), "kind": [f"k{n * 7919 % 5}" for n in range(20_000)]})
    (written,) = write(world, rows, name="shop.ours")
    for file in written.files:
        ids = parquet.read_table(file.path.removeprefix("file://"), columns=["id"], partitioning=None)["id"].to_pylist()
        assert ids == sorted(ids)
        assert len(ids) == 4000


def test_every_file_lies_in_the_folder_of_its_partition(tmp_path):
    world = World(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))
    world.create_table("shop.ours", schema, spec((2, IdentityTransform())))
    rows = table_of(schema, {"id": range(3), "kind": ["a/b", None, "ü"]})
    (written,) = write(world, rows, name="shop.ours")
    folders = {file.path.rsplit("/", 2)[1] for file in written.files}
    assert folders == {"p0=a%2Fb", "p0=null", "p0=%C3%BC"}


@pytest.mark.parametrize(
    ("mode", "parameters", "kept"),
    [
        ("append", {}, [0, 0, 1, 1, 2, 2, 3, 3]),
        ("overwrite", {}, [0, 1, 2, 3]),
        ("overwrite", {"overwrite_filter": "id >= 2"}, [0, 1, 2, 3]),
        ("overwrite_partitions", {}, [0, 1, 2, 3]),
        ("upsert", {"upsert_keys": ["id"]}, [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_a_partition_field_that_was_dropped_has_no_value_though_its_column_must_have_one(tmp_path, mode, parameters, kept):
    """Iceberg keeps such a field as ``void``, where it may not be left out. pyiceberg's own append fails at it."""
    world = World(tmp_path)
    fields = [field.model_copy(update={"required": field.name == "id"}) for field in SCHEMA.fields]
    ids, kinds = SCHEMA.find_field("id").field_id, SCHEMA.find_field("kind").field_id
    dropped = PartitionField(ids, 1000, VoidTransform(), "dropped")
    world.create_table(
        schema=Schema(*fields), spec=PartitionSpec(dropped, PartitionField(kinds, 1001, IdentityTransform(), "kind"))
    )
    world.put_files(files=2, rows_each=2)
    world.commit(world.stage(world.request("before")))
    if "overwrite_filter" in parameters:
        for path in world.input.iterdir():
            parquet.write_table(parquet.read_table(path).filter(pc.field("id") >= 2), path)
    world.commit(world.stage(world.request("now", mode=mode, parameters=parameters)))
    assert sorted(duckdb_rows(world.table(), "select id from rows")) == [(number,) for number in kept]
    assert world.ids() == kept
