"""Columns of the table that the rows lack: null in silence nowhere. In both formats; rows are read by the format's own reader."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.table.both import BEFORE, UPSERT, Iceberg, Lance
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType
from support.world import SCHEMA, World, rows

from airflow_ckpt_provider.exceptions import SchemaMismatchError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.missing import lacking


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    """A world with a table in which somebody's rows are, and no input."""
    world = request.param(tmp_path)
    world.make()
    return world


def put(world, *without, name="0", start=0, count=3):
    pq.write_table(rows(start, count).drop_columns(list(without)), world.input / f"{name}.parquet")


def land(world, **changes):
    """Stage and commit; the columns that are null because the rows lack them."""
    attempt = world.stage(world.request(**changes))
    world.commit(attempt)
    return attempt.missing


def without(*names):
    def drop(batch):
        return batch.drop_columns(list(names))

    return drop


def nulls(world, name, ids):
    found = [row[name] for row in world.read() if row["id"] in ids]
    return len(found) == len(ids) and all(value is None for value in found)


@pytest.mark.parametrize("when", [None, "null"])
def test_columns_that_place_no_row_are_null_and_named(world, when):
    put(world, "value", "at")
    assert land(world, missing_columns=when) == {"value", "at"}
    assert nulls(world, "value", range(3))
    assert len(world.read()) == 3 + len(BEFORE)


def test_after_a_transform_they_are_named_once_for_all_splits(world):
    for number in range(4):
        put(world, name=str(number), start=number * 3)
    assert land(world, transform=without("kind")) == {"kind"}
    assert nulls(world, "kind", range(12))


def test_one_file_of_many_that_lacks_a_column_is_named(world):
    put(world)
    put(world, "kind", name="1", start=3)
    assert land(world) == {"kind"}
    assert nulls(world, "kind", range(3, 6))


def test_a_retry_names_what_an_earlier_attempt_has_staged(world):
    put(world, "kind")
    put(world, name="1", start=3)
    world.stage(world.request(transform=without()), splits=1)
    assert land(world, transform=without()) == {"kind"}


def test_rows_that_have_all_columns_lack_none(world):
    put(world)
    assert land(world, missing_columns="fail") == set()


@pytest.mark.parametrize("transform", [None, without("kind")], ids=["before Spark", "in the task"])
def test_fail_refuses_any(world, transform):
    put(world, *([] if transform else ["kind"]))
    with pytest.raises(SchemaMismatchError, match=r"lack columns of the table .*\n  column 'kind'\n.*missing_columns='null'"):
        world.stage(world.request(missing_columns="fail", transform=transform))
    assert [row["id"] for row in world.read()] == list(BEFORE)


@pytest.mark.parametrize("when", [None, "null", "fail"])
@pytest.mark.parametrize("transform", [None, without("kind")], ids=["before Spark", "in the task"])
def test_keys_of_an_upsert_are_never_missing(world, when, transform):
    put(world, *([] if transform else ["kind"]))
    keys = {"mode": "upsert", "parameters": {"upsert_keys": ["id", "kind"]}}
    with pytest.raises(SchemaMismatchError, match=r"\n  column 'kind', an upsert key\n") as refused:
        world.stage(world.request(missing_columns=when, transform=transform, **keys))
    assert "missing_columns='null'" not in str(refused.value)


def test_other_columns_of_an_upsert_are_null_and_named(world):
    put(world, "value")
    assert land(world, **UPSERT) == {"value"}


def test_the_policy_may_be_loosened_under_the_same_key(world):
    put(world, "kind")
    with pytest.raises(SchemaMismatchError):
        world.stage(world.request(missing_columns="fail"))
    land(world, missing_columns="null")
    assert nulls(world, "kind", range(3))


def test_splits_that_were_staged_when_more_was_allowed_do_not_land_when_it_is_not(world):
    put(world, "kind")
    put(world, name="1", start=3)
    world.stage(world.request(transform=without(), missing_columns="null"), splits=1)
    with pytest.raises(SchemaMismatchError, match=r"(?s)Rows that are staged.*'kind'.*another value of missing_columns.*restart"):
        world.stage(world.request(transform=without(), missing_columns="fail"))
    land(world, transform=without(), missing_columns="null")
    assert len(world.read()) == 6 + len(BEFORE)


@pytest.mark.parametrize(
    ("format_name", "named", "lacks"),
    [
        ("csv", "id,value\n1,0.5\n", {"kind", "at"}),
        ("jsonl", '{"id": 1, "value": 0.5}\n{"id": 2}\n', {"kind", "at"}),
        # Null is a value that the row has.
        ("jsonl", '{"id": 1, "kind": null}\n', {"value", "at"}),
    ],
)
def test_formats_without_types_of_their_own_do_not_make_columns_up(world, format_name, named, lacks):
    (world.input / f"0.{format_name}").write_text(named)
    source = Files(f"{world.input}/*.{format_name}", format=format_name)
    assert land(world, source=source) == lacks
    assert nulls(world, "kind", [row["id"] for row in world.read() if row["id"] < 10])
    keys = {"mode": "upsert", "parameters": {"upsert_keys": [max(lacks)]}}
    with pytest.raises(SchemaMismatchError, match="an upsert key"):
        world.stage(world.request("upsert", source=source, **keys))


def iceberg(tmp_path, *, spec=None, order=None, schema=SCHEMA):
    world = World(tmp_path)
    world.catalog.create_namespace("shop")
    facts = {"partition_spec": spec} if spec else {}
    world.catalog.create_table("shop.orders", schema, **facts, **({"sort_order": order} if order else {}))
    return world


BY_DAY = PartitionSpec(PartitionField(4, 1000, DayTransform(), "day"))
BY_KIND = SortOrder(SortField(3, IdentityTransform()))


@pytest.mark.parametrize(
    ("facts", "name", "what"),
    [({"spec": BY_DAY}, "at", "a partition column"), ({"order": BY_KIND}, "kind", "a sort column")],
    ids=["partition", "sort"],
)
@pytest.mark.parametrize("in_the_task", [False, True])
def test_columns_that_place_a_row_are_refused_unless_null_is_asked_for(tmp_path, facts, name, what, in_the_task):
    world = iceberg(tmp_path, **facts)
    put(world, *([] if in_the_task else [name]))
    transform = without(name) if in_the_task else None
    with pytest.raises(SchemaMismatchError, match=rf"\n  column '{name}', {what}\n"):
        world.stage(world.request(transform=transform))
    assert world.table().snapshots() == []
    assert land(world, transform=transform, missing_columns="null") == {name}
    assert world.table().scan().to_arrow()[name].null_count == 3


NESTED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(
        2, "place", StructType(NestedField(3, "city", StringType()), NestedField(4, "land", StringType()))
    ),
    NestedField(5, "items", ListType(6, StructType(NestedField(7, "sku", StringType()), NestedField(8, "tax", LongType())))),
)  # fmt: skip


def test_members_of_structs_count_at_every_depth(tmp_path):
    world = iceberg(tmp_path, schema=NESTED, spec=PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "land")))
    whole = [{"id": 1, "place": {"city": "Ulm", "land": "de"}, "items": [{"sku": "a", "tax": 1}]}]
    pq.write_table(pa.Table.from_pylist(whole), world.input / "0.parquet")
    assert world.stage(world.request("whole")).missing == set()
    parts = [{"id": 1, "place": {"land": "de"}, "items": [{"sku": "a"}]}]
    pq.write_table(pa.Table.from_pylist(parts), world.input / "0.parquet")
    assert world.stage(world.request("parts")).missing == {"place.city", "items.element.tax"}
    for lacks in ({"id": 1, "place": {"city": "Ulm"}}, {"id": 1}):
        pq.write_table(pa.Table.from_pylist([lacks]), world.input / "0.parquet")
        with pytest.raises(SchemaMismatchError, match=r"column 'place\.land', a partition column"):
            world.stage(world.request(f"lacks {lacks}"))


def test_a_column_without_a_value_is_there_and_a_required_one_is_another_error():
    want = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.string()), ("m", pa.map_(pa.string(), pa.int64()))])
    assert lacking(pa.schema([("a", pa.null())]), want) == ["m"]
