"""``create``: a table comes into being with its rows, partitioned and sorted as asked for, once, and never over another one."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.table.scenes import NEW, arrow, own_snapshots, put, rows
from protocol.crash.maintenance import forget_the_record
from support.readers import assert_same_everywhere
from support.world import World

from airflow_ckpt_provider.exceptions import InvalidInputError, RolledBackError, SchemaMismatchError, TableExistsError
from airflow_ckpt_provider.transforms import Map


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    put(world, NEW[:2], NEW[2:])
    return world


def create(world, key="orders", *, parameters=None, **changes):
    return world.request(key, mode="create", parameters=parameters or {}, **changes)


def put_table(world, table):
    put(world)
    pq.write_table(table, world.input / "0.parquet")


def test_the_table_and_its_rows_are_there_in_one_snapshot_and_not_before(world):
    attempt = world.stage(create(world))
    assert not world.catalog.table_exists("shop.orders")
    world.commit(attempt)
    table = world.table()
    assert_same_everywhere(table, NEW)
    assert len(table.snapshots()) == 1
    assert [str(field) for field in table.schema().fields] == [
        "1: id: optional long",
        "2: value: optional double",
        "3: kind: optional string",
        "4: at: optional timestamp",
    ]


def test_the_same_key_again_finds_it_and_a_lost_record_too(world):
    attempt = world.stage(create(world))
    world.commit(attempt)
    forget_the_record(world, attempt.checkpoint)
    assert not world.commit(attempt)[0].landed_now
    assert world.stage(create(world)).commit is not None
    assert len(own_snapshots(world)) == 1


def test_it_is_partitioned_and_sorted_as_asked_for(world):
    terms = ["day(at)", "bucket(4, id)", "truncate(2, kind)", "value"]
    order = ["kind", "id desc", "bucket(4, id) asc nulls last"]
    world.commit(world.stage(create(world, parameters={"partition_by": terms, "sort_by": order})))
    table = world.table()
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [
        ("at_day", "day"),
        ("id_bucket", "bucket[4]"),
        ("kind_trunc", "truncate[2]"),
        ("value", "identity"),
    ]
    assert [str(field) for field in table.sort_order().fields] == [
        "3 ASC NULLS FIRST",
        "1 DESC NULLS LAST",
        "bucket[4](1) ASC NULLS LAST",
    ]
    assert_same_everywhere(table, NEW)


@pytest.mark.parametrize("term", ["year(at)", "months(at)", "days(at)", "hour(at)", "identity(kind)", "truncate(10, id)"])
def test_every_transform_partitions(world, term):
    world.commit(world.stage(create(world, parameters={"partition_by": [term]})))
    assert len(world.table().spec().fields) == 1
    assert_same_everywhere(world.table(), NEW)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"partition_by": ["nosuch"]}, "names no column of the rows"),
        ({"partition_by": ["day(id)"]}, "cannot be made of the column 'id'"),
        ({"partition_by": ["bucket(id)"]}, "is no transform"),
        ({"partition_by": ["week(at)"]}, "is no transform"),
        ({"partition_by": ["bucket(0, id)"]}, "is no transform"),
        ({"partition_by": ["truncate(0, kind)"]}, "is no transform"),
        ({"partition_by": ["kind", "kind"]}, "twice"),
        ({"partition_by": ["kind"], "nosuch": 1}, "does not take nosuch"),
        ({"sort_by": ["nosuch desc"]}, "names no column of the rows"),
        ({"sort_by": ["id sideways"]}, "id sideways"),
        ({"table_properties": {"format-version": "3"}}, "format version 3"),
    ],
    ids=str,
)
def test_what_cannot_be_a_table_is_refused_before_anything_is_stored(world, parameters, message):
    with pytest.raises(InvalidInputError, match=message):
        world.stage(create(world, parameters=parameters))
    assert list((world.root / "store").rglob("*.json")) == []
    assert not world.catalog.table_exists("shop.orders")


def test_location_and_properties_are_the_tables_own(world):
    place = f"file://{world.root}/warehouse/elsewhere"
    properties = {"write.target-file-size-bytes": "1000000", "owner": "shop"}
    world.commit(world.stage(create(world, parameters={"location": place, "table_properties": properties})))
    table = world.table()
    assert table.location() == place
    assert properties.items() <= table.properties.items()
    assert all(task.file.file_path.startswith(place) for task in table.scan().plan_files())
    assert_same_everywhere(table, NEW)


def test_a_table_that_is_there_is_not_written_over(world):
    world.create_table()
    before = world.table().metadata_location
    with pytest.raises(TableExistsError, match="Use mode='append' or 'overwrite'"):
        world.stage(create(world))
    assert world.table().metadata_location == before
    assert list((world.root / "store").rglob("*.json")) == []


@pytest.mark.parametrize("splits", [0, 1, None], ids=["planned", "half staged", "sealed"])
def test_a_table_that_somebody_else_created_meanwhile_is_not_touched(world, splits):
    attempt = world.stage(create(world), splits=splits)
    world.create_table()
    before = world.table().metadata_location
    with pytest.raises(TableExistsError):
        world.stage(create(world))
    if splits is None:
        with pytest.raises(TableExistsError):
            world.commit(attempt)
    assert world.table().metadata_location == before


def test_once_the_other_table_is_dropped_the_write_goes_on(world):
    attempt = world.stage(create(world))
    world.create_table()
    with pytest.raises(TableExistsError):
        world.commit(attempt)
    world.catalog.drop_table("shop.orders")
    world.commit(world.stage(create(world)))
    assert_same_everywhere(world.table(), NEW)


def test_of_two_keys_that_create_one_table_the_second_is_told(world):
    first, second = world.stage(create(world, "first")), world.stage(create(world, "second"))
    world.commit(second)
    with pytest.raises(TableExistsError):
        world.commit(first)
    assert_same_everywhere(world.table(), NEW)
    assert len(own_snapshots(world)) == 1


def test_a_table_that_was_dropped_later_is_not_created_again(world):
    attempt = world.stage(create(world))
    world.commit(attempt)
    world.catalog.drop_table("shop.orders")
    with pytest.raises(RolledBackError):
        world.commit(attempt)
    with pytest.raises(RolledBackError):
        world.stage(create(world)).verify_commit()
    assert not world.catalog.table_exists("shop.orders")


def test_a_restart_before_the_commit_begins_with_another_table(world):
    first = world.stage(create(world))
    second = world.stage(create(world, restart_token="now"))
    assert second.checkpoint.header.table.uuid != first.checkpoint.header.table.uuid
    world.commit(second)
    assert_same_everywhere(world.table(), NEW)


def test_replacing_keeps_the_table_and_the_rows_of_others(world):
    world.commit(world.stage(create(world, parameters={"partition_by": ["kind"]})))
    uuid = world.table().metadata.table_uuid
    world.table().append(arrow(rows(50, 3)))
    for _ in range(2):
        request = create(world, parameters={"partition_by": ["kind"]}, on_rerun="replace")
        world.commit(world.stage(request))
    assert world.table().metadata.table_uuid == uuid
    assert_same_everywhere(world.table(), NEW + rows(50, 3))


def test_a_column_of_the_partitioning_can_be_renamed_before_it_is_replaced(world):
    request = {"parameters": {"partition_by": ["kind"]}}
    world.commit(world.stage(create(world, **request)))
    with world.table().update_schema() as update:
        update.rename_column("kind", "direction")
    with pytest.raises(SchemaMismatchError, match="kind"):
        world.stage(create(world, **request, on_rerun="replace"))
    assert world.ids() == [row["id"] for row in NEW]


def test_input_without_rows_makes_a_table_without_rows(world):
    put_table(world, arrow([]))
    world.commit(world.stage(create(world)))
    assert world.ids() == []
    assert world.table().schema().column_names == ["id", "value", "kind", "at"]


def test_no_input_at_all_tells_no_columns(world):
    put(world)
    with pytest.raises(InvalidInputError, match="has no rows, so that the columns"):
        world.stage(create(world))
    assert not world.catalog.table_exists("shop.orders")


def test_the_columns_are_those_of_the_transform(world):
    world.commit(world.stage(create(world, transform=only_ids)))
    assert_same_everywhere(world.table(), [{"id": row["id"]} for row in NEW])


def only_ids(batch):
    return batch.select(["id"])


COLUMNS = {
    "int8": (pa.int8(), [1, None], "int"),
    "uint8": (pa.uint8(), [255, None], "int"),
    "uint16": (pa.uint16(), [65535, None], "int"),
    "uint32": (pa.uint32(), [2**32 - 1, None], "long"),
    "int64": (pa.int64(), [-(2**63), None], "long"),
    "float32": (pa.float32(), [1.5, None], "float"),
    "float64": (pa.float64(), [float("nan"), None], "double"),
    "bool": (pa.bool_(), [True, None], "boolean"),
    "string": (pa.string(), ["é", None], "string"),
    "large_string": (pa.large_string(), ["é", None], "string"),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["é", None], "string"),
    "binary": (pa.binary(), [b"\0", None], "binary"),
    "fixed": (pa.binary(3), [b"abc", None], "fixed[3]"),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.25"), None], "decimal(9, 2)"),
    "date": (pa.date32(), [date(2026, 1, 1), None], "date"),
    "time": (pa.time64("us"), [time(1, 2, 3, 4), None], "time"),
    "time in ms": (pa.time32("ms"), [time(1, 2, 3), None], "time"),
    "timestamp": (pa.timestamp("us"), [datetime(2026, 1, 1), None], "timestamp"),  # noqa: DTZ001 - without a zone
    "timestamp in ms": (pa.timestamp("ms"), [datetime(2026, 1, 1), None], "timestamp"),  # noqa: DTZ001 - without a zone
    "instant": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC), None], "timestamptz"),
    "list": (pa.list_(pa.int64()), [[1, None], None], "list<long>"),
    "large_list": (pa.large_list(pa.string()), [["a"], None], "list<string>"),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}, None], None),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None], "map<string, long>"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_arrow_type_that_iceberg_has_a_type_for_makes_a_column(world, name):
    kind, values, expected = COLUMNS[name]
    put_table(world, pa.table({"id": [1, 2], "c": pa.array(values, kind)}))
    world.commit(world.stage(create(world)))
    table = world.table()
    if expected is not None:
        assert str(table.schema().find_field("c").field_type) == expected
    found = table.scan().to_arrow().sort_by("id")["c"].to_pylist()
    assert repr(found) == repr(pa.array(values, kind).to_pylist())


@pytest.mark.parametrize("kind", [pa.uint64(), pa.duration("us"), pa.null()], ids=str)
def test_a_type_that_iceberg_has_not_is_named(world, kind):
    put_table(world, pa.table({"id": [1], "c": pa.array([None], kind)}))
    with pytest.raises(SchemaMismatchError, match=r"'c' is .*Iceberg has no type for"):
        world.stage(create(world))


def test_a_function_that_says_what_it_makes_is_not_called_to_tell_the_columns(world):
    """It may need a model that the worker of the task cannot load."""

    def called(id):  # noqa: A002 - a column
        raise AssertionError(id)

    attempt = world.attempt(create(world, transform=Map(called, output={"twice": int, "half": float}, keep=["kind"])))
    assert len(attempt.next_round().missing) == 2
    text = json.dumps(attempt.checkpoint.header.table.creation)
    assert re.findall(r'"name": "(\w+)"', text)[:3] == ["kind", "twice", "half"]
