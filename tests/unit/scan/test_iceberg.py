"""One data file of a table: live rows in file order, under a schema, through a filter; and which files a filter needs at all."""

from __future__ import annotations

import os
import pickle

import msgspec
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import parser
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from support.foreign import data_files, delete_by_equality, delete_by_vector, delete_positions, rows
from support.readers import rows_by_each_reader
from support.world import SCHEMA, World

from airflow_ckpt_provider.exceptions import UnsupportedTableError
from airflow_ckpt_provider.scan.data_files import DeleteFile, ScanFile
from airflow_ckpt_provider.scan.iceberg import IcebergScan, scan_files

BY_KIND = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind"))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def files_of(table, text=None, schema_id=None):
    wanted = parser.parse(text) if text else None
    snapshot = table.current_snapshot()
    scanned = scan_files(table, snapshot and snapshot.snapshot_id, wanted, schema_id)
    # As a plan stores them.
    return [msgspec.json.decode(msgspec.json.encode(one.file), type=ScanFile) for one in scanned]


def scan_of(table, columns=None, text=None, schema_id=None):
    return pickle.loads(pickle.dumps(IcebergScan(table, schema_id, columns, parser.parse(text) if text else None)))


def read(table, columns=None, text=None, schema_id=None):
    scan = scan_of(table, columns, text, schema_id)
    batches = [batch for file in files_of(table, text, schema_id) for batch in scan.read(file)]
    assert all(batch.schema.equals(scan.schema) for batch in batches)
    return pa.Table.from_batches(batches, schema=scan.schema)


def ids(table, text=None):
    return sorted(read(table, ["id"], text)["id"].to_pylist())


def test_all_rows_are_read_in_the_order_of_the_file(world):
    table = world.create_table()
    table.append(rows(0, 200_000))
    assert read(table).equals(rows(0, 200_000).cast(read(table).schema))


def test_a_table_that_nothing_was_written_to_has_no_files(world):
    assert files_of(world.create_table()) == []


def test_columns_come_in_the_order_asked_for_and_others_are_not_read(world):
    table = world.create_table()
    table.append(rows(0, 3))
    assert read(table, ["kind", "id"]).to_pylist() == [{"kind": f"kind-{n}", "id": n} for n in range(3)]


def test_the_filter_holds_for_every_row_also_on_a_column_that_is_not_read(world):
    table = world.create_table()
    table.append(rows(0, 90))
    assert read(table, ["id"], "kind = 'kind-1' and value > 10").to_pylist() == [{"id": n} for n in range(43, 90, 3)]


@pytest.mark.parametrize("delete", [delete_positions, delete_by_vector])
def test_deleted_rows_are_left_out_also_where_a_filter_is_given(world, delete):
    table = world.create_table()
    table.append(rows(0, 100_000))
    table.append(rows(100_000, 10))
    first, second = data_files(table)
    gone = [0, 1, 65_535, 65_536, 99_999]
    table = delete(table, {first.file_path: gone, second.file_path: [9]})
    assert ids(table) == sorted(set(range(100_010)) - {*gone, 100_009})
    assert ids(table, "id >= 65534 and id < 65540") == [65_534, 65_537, 65_538, 65_539]


def test_a_reader_that_shares_no_code_sees_the_same_live_rows(world):
    table = world.create_table()
    table.append(rows(0, 1000))
    table.append(rows(1000, 1000))
    first, second = data_files(table)
    table = delete_positions(table, {first.file_path: [0, 7, 999], second.file_path: [500]})
    duckdb = rows_by_each_reader(table)["duckdb"]
    assert len(duckdb) == 1996
    assert ids(table) == sorted(row["id"] for row in duckdb)


def test_deletes_add_up_and_hold_for_older_files_only(world):
    table = world.create_table()
    table.append(rows(0, 10))
    first = data_files(table)[0]
    table = delete_positions(table, {first.file_path: [1, 3]})
    table = delete_positions(table, {first.file_path: [3, 5]})
    table.append(rows(10, 5))
    assert ids(table) == [0, 2, 4, 6, 7, 8, 9, *range(10, 15)]
    assert [len(file.deletes) for file in sorted(files_of(table), key=lambda file: -file.rows)] == [2, 0]


def test_deletes_hold_for_their_partition_only(world):
    table = world.create_table(spec=BY_KIND)
    table.append(rows(0, 9))
    path = {file.partition[0]: file.file_path for file in data_files(table)}
    table = delete_positions(table, {path["kind-1"]: [1]}, Record("kind-1"))
    assert ids(table) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert sum(bool(file.deletes) for file in files_of(table)) == 1


def test_the_address_of_a_row_is_its_place_among_the_live_rows_whatever_is_read(world):
    table = world.create_table()
    table.append(rows(0, 80_000))
    table = delete_positions(table, {data_files(table)[0].file_path: [0, 10, 70_000]})
    live = [n for n in range(80_000) if n not in {0, 10, 70_000}]
    file = files_of(table)[0]
    wanted = rows(0, 80_000).take(live).to_pylist()
    for columns, text in ((None, None), (["kind"], None), (["id"], "id > 69990 and id < 70010"), (["id"], "kind = 'kind-2'")):
        scan = scan_of(table, columns, text)
        found = [pair for batch, at in scan.read_addressed(file) for pair in zip(batch.to_pylist(), at.to_pylist(), strict=True)]
        assert found
        assert all({name: wanted[at][name] for name in row} == row for row, at in found)
        assert len(found) == len(ids(table, text))


def test_equality_deletes_are_refused_by_name(world):
    table = world.create_table()
    table.append(rows(0, 10))
    table = delete_by_equality(table, "id", 3)
    with pytest.raises(UnsupportedTableError, match=r"shop.orders has equality deletes .*Compact the table"):
        files_of(table)


def test_a_file_of_another_partition_is_never_opened(world):
    table = world.create_table(spec=BY_KIND)
    table.append(rows(0, 30))
    for file in data_files(table):
        if file.partition[0] != "kind-1":
            os.remove(file.file_path.removeprefix("file://"))
    assert ids(table, "kind = 'kind-1'") == list(range(1, 30, 3))


def test_a_file_whose_bounds_exclude_the_filter_is_never_opened(world):
    table = world.create_table()
    for start in (0, 100, 200):
        table.append(rows(start, 100))
    for file in data_files(table)[:2]:
        os.remove(file.file_path.removeprefix("file://"))
    assert ids(table, "id >= 200 and value < 55") == list(range(200, 220))
    with pytest.raises(FileNotFoundError):
        ids(table, "id >= 199")


def test_a_manifest_whose_partitions_exclude_the_filter_is_never_opened(world):
    table = world.create_table(spec=BY_KIND)
    for kind in range(3):
        table.append(rows(0, 30).filter(pa.compute.equal(rows(0, 30)["kind"], f"kind-{kind}")))
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io):
        if manifest.partitions[0].lower_bound != b"kind-2":
            os.remove(manifest.manifest_path.removeprefix("file://"))
    assert ids(table, "kind = 'kind-2'") == list(range(2, 30, 3))


# -- schemas ---------------------------------------------------------------------------------------------------------------


def test_renamed_dropped_added_reordered_and_promoted_columns_are_matched_by_field_id(world):
    schema = pa.schema([("id", pa.int32()), ("value", pa.float32()), ("old", pa.string()), ("gone", pa.string())])
    table = world.create_table(schema=schema)
    table.append(pa.table([[1, 2], [0.5, None], ["a", None], ["x", "y"]], schema=schema))
    with table.update_schema() as update:
        update.update_column("id", field_type=LongType())
        update.update_column("value", field_type=DoubleType())
        update.rename_column("old", "new")
        update.delete_column("gone")
        update.add_column("gone", LongType())
    with table.update_schema() as update:
        update.move_first("new")
    table.append(pa.table({"new": ["b"], "id": [1 << 40], "value": [0.1], "gone": pa.array([7], pa.int64())}))
    table = world.table()
    found = read(table)
    assert [(field.name, str(field.type)) for field in found.schema] == [
        ("new", "string"), ("id", "int64"), ("value", "double"), ("gone", "int64"),
    ]  # fmt: skip
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"new": "a", "id": 1, "value": 0.5, "gone": None},
        {"new": None, "id": 2, "value": None, "gone": None},
        {"new": "b", "id": 1 << 40, "value": 0.1, "gone": 7},
    ]
    assert read(table, ["id"], "id > 5000000000").to_pylist() == [{"id": 1 << 40}]
    assert sorted(read(table, ["id"], "gone is null")["id"].to_pylist()) == [1, 2]
    assert read(table, ["gone"], "new = 'a'").to_pylist() == [{"gone": None}]
    assert sorted(read(table, ["gone"])["gone"].to_pylist(), key=str) == [7, None, None]
    old = read(table, ["old", "gone"], "old = 'a'", schema_id=0)
    assert old.to_pylist() == [{"old": "a", "gone": "x"}]


NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("list", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))),
        ("map", pa.map_(pa.string(), pa.struct([("a", pa.int32())]))),
        ("struct", pa.struct([("a", pa.int32()), ("list", pa.list_(pa.int32()))])),
    ]
)
NESTED_ROWS = [
    {"id": 1, "list": None, "map": None, "struct": None},
    {"id": 2, "list": [], "map": [], "struct": {"a": None, "list": None}},
    {"id": 3, "list": [{"a": 1, "b": "x"}, None], "map": [("k", {"a": 1}), ("n", None)], "struct": {"a": 1, "list": [1, None]}},
    {"id": 4, "list": [{"a": None, "b": None}], "map": [("z", {"a": None})], "struct": {"a": 4, "list": []}},
]


def append_nested(table):
    """``NESTED_ROWS`` as a file of the table. Not by pyiceberg, which empties null lists of structs when it writes, too."""
    path = f"{table.location()}/data/nested.parquet".removeprefix("file://")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pa.parquet.write_table(pa.Table.from_pylist(NESTED_ROWS, schema=schema_to_pyarrow(table.schema())), path)
    table.add_files([f"file://{path}"])


def test_null_lists_maps_and_structs_stay_null_at_every_depth(world):
    table = world.create_table(schema=NESTED)
    append_nested(table)
    assert read(table).to_pylist() == NESTED_ROWS
    assert read(table, text="id > 1").to_pylist() == NESTED_ROWS[1:]
    table = delete_positions(table, {data_files(table)[0].file_path: [0, 2]})
    assert read(table).to_pylist() == [NESTED_ROWS[1], NESTED_ROWS[3]]


def test_members_of_nested_columns_evolve_too(world):
    table = world.create_table(schema=NESTED)
    append_nested(table)
    with table.update_schema() as update:
        update.update_column(("list", "element", "a"), field_type=LongType())
        update.delete_column(("list", "element", "b"))
        update.add_column(("list", "element", "c"), StringType())
        update.rename_column(("struct", "a"), "z")
        update.rename_column(("map", "value", "a"), "q")
        update.update_column(("struct", "list", "element"), field_type=LongType())
    table = world.table()
    assert read(table).to_pylist() == [
        {"id": 1, "list": None, "map": None, "struct": None},
        {"id": 2, "list": [], "map": [], "struct": {"z": None, "list": None}},
        {
            "id": 3,
            "list": [{"a": 1, "c": None}, None],
            "map": [("k", {"q": 1}), ("n", None)],
            "struct": {"z": 1, "list": [1, None]},
        },
        {"id": 4, "list": [{"a": None, "c": None}], "map": [("z", {"q": None})], "struct": {"z": 4, "list": []}},
    ]
    assert read(table, ["id"], "struct.z = 4").to_pylist() == [{"id": 4}]


def test_a_file_written_under_an_older_partition_spec_is_read(world):
    table = world.create_table(spec=BY_KIND)
    table.append(rows(0, 9))
    with table.update_spec() as update:
        update.remove_field("kind")
        update.add_field("id", BucketTransform(4), "bucket")
    table.append(rows(9, 9))
    table = world.table()
    assert ids(table) == list(range(18))
    assert ids(table, "kind = 'kind-0'") == list(range(0, 18, 3))
    with table.update_schema() as update:
        update.delete_column("kind")
    assert ids(world.table()) == list(range(18))


def test_columns_that_only_the_partition_knows_come_from_it(world):
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("rate", pa.float64())])
    table = world.create_table(schema=schema)
    with table.update_spec() as update:
        update.add_field("day", IdentityTransform(), "day")
        update.add_field("rate", IdentityTransform(), "rate")
    whole = pa.table([[1, 2], pa.array([20_000, 20_000], pa.date32()), [float("inf")] * 2], schema=schema)
    table.append(whole)
    # As files from Hive are: the partition's columns are not in them.
    path = data_files(table)[0].file_path.removeprefix("file://")
    pa.parquet.write_table(pa.parquet.ParquetFile(path).read(columns=["id"]), path)
    assert read(world.table()).equals(whole)
    assert read(world.table(), ["id"], "day = '2024-10-04'").to_pylist() == [{"id": 1}, {"id": 2}]
    assert read(world.table(), ["id"], "day is null").to_pylist() == []


def test_files_without_field_ids_are_read_through_the_name_mapping(world):
    table = world.create_table()
    path = f"{world.root}/foreign.parquet"
    pa.parquet.write_table(rows(0, 5), path)
    table.add_files([f"file://{path}"])
    assert ids(table, "id > 1") == [2, 3, 4]
    with table.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    with pytest.raises(UnsupportedTableError, match=r"foreign.parquet.*name mapping"):
        ids(world.table())


def test_orc_files_are_read_with_their_field_ids_and_deletes(world):
    table = world.create_table()
    path = f"{world.root}/foreign.orc"
    schema = pa.schema(
        [
            pa.field("number", pa.int64(), metadata={"iceberg.id": "1"}),
            pa.field("kind", pa.string(), metadata={"iceberg.id": "3"}),
        ]
    )
    pa.orc.write_table(pa.table([range(10), [f"kind-{n}" for n in range(10)]], schema=schema), path)
    uri = f"file://{path}"
    file = ScanFile(path=uri, bytes=os.path.getsize(path), rows=10, spec_id=0, format="ORC")
    assert next(scan_of(table).read(file)).slice(3, 1).to_pylist() == [{"id": 3, "value": None, "kind": "kind-3", "at": None}]
    table.append(rows(0, 1))
    deletes = delete_positions(table, {uri: [0, 1]})
    (one,) = deletes.current_snapshot().manifests(table.io)[0].fetch_manifest_entry(table.io)
    lacking = DeleteFile(one.data_file.file_path, one.data_file.file_size_in_bytes, "PARQUET")
    (batch,) = scan_of(table, ["id"], "id < 4").read(msgspec.structs.replace(file, deletes=(lacking,)))
    assert batch.to_pylist() == [{"id": 2}, {"id": 3}]


def test_column_names_that_files_must_not_have_are_the_tables_own(world):
    schema = SCHEMA.__class__(NestedField(1, "id", LongType()), NestedField(2, "a.b c-d", StringType()))
    table = world.create_table(schema=schema)
    table.append(pa.table({"id": [1], "a.b c-d": ["x"]}))
    assert read(table).to_pylist() == [{"id": 1, "a.b c-d": "x"}]
    assert read(table, ["a.b c-d"]).to_pylist() == [{"a.b c-d": "x"}]


def test_an_unknown_column_and_a_filter_that_does_not_fit_are_named(world):
    table = world.create_table()
    with pytest.raises(ValueError, match=r"no column 'nope'; there are id, value, kind, at"):
        IcebergScan(table, columns=["nope"])
    with pytest.raises((ValueError, ValidationException), match="nope"):
        IcebergScan(table, row_filter=parser.parse("nope = 1"))


def test_nothing_secret_is_in_what_a_plan_stores(world):
    table = world.create_table()
    table.append(rows(0, 3))
    table.io.properties["s3.secret-access-key"] = "hidden"
    stored = msgspec.json.encode(files_of(table))
    assert b"hidden" not in stored
    assert b"hidden" in pickle.dumps(IcebergScan(table))
