"""``evolve_schema``: the table grows before the first row is staged, in a commit of its own, and only where nothing is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.table.scenes import BEFORE, MODES, SPECS, arrow, put, rows, world_with
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, FloatType, IntegerType, LongType, NestedField, StringType, StructType
from support.readers import assert_same_everywhere
from support.world import World

from airflow_ckpt_provider.exceptions import SchemaMismatchError

NEW = rows(0, 4)


def put_table(world, table):
    put(world)
    pq.write_table(table, world.input / "0.parquet")


def wider(extra="extra"):
    return arrow(NEW).append_column(extra, pa.array(["a", None, "c", "d"]))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_new_columns_are_added_as_optional_ones(tmp_path, mode):
    world = world_with(tmp_path, SPECS["identity"])
    put_table(world, wider())
    attempt = world.stage(mode.request(world, evolve_schema=True))
    assert attempt.evolved == ["column 'extra' added as string"]
    world.commit(attempt)
    there = [row | {"extra": None} for row in BEFORE]
    assert_same_everywhere(world.table(), mode.after(there, wider().to_pylist(), SPECS["identity"]))
    assert world.table().schema().find_field("id").required
    assert not world.table().schema().find_field("extra").required


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_without_it_every_difference_is_listed_and_nothing_changes(tmp_path, mode):
    world = world_with(tmp_path, SPECS["identity"])
    put_table(world, wider().append_column("more", pa.array([1, 2, 3, 4])))
    before = world.table().metadata_location
    with pytest.raises(SchemaMismatchError, match=r"(?s)extra.*more"):
        world.stage(mode.request(world))
    assert world.table().metadata_location == before


def narrow_world(root):
    world = World(root)
    schema = Schema(
        NestedField(1, "id", IntegerType(), required=True),
        NestedField(2, "share", FloatType()),
        NestedField(
            3, "place", StructType(NestedField(4, "city", StringType(), required=True), NestedField(5, "n", IntegerType()))
        ),
    )
    world.create_table(schema=schema)
    return world


def test_types_are_promoted_also_inside_a_structure_and_required_stays_required(tmp_path):
    world = narrow_world(tmp_path)
    place = pa.StructArray.from_arrays(
        [pa.array(["Ulm", "Graz"]), pa.array([2**40, 1]), pa.array([1.5, None])], names=["city", "n", "height"]
    )
    put_table(world, pa.table({"id": pa.array([2**40, 2]), "share": pa.array([0.1, 0.2]), "place": place}))
    attempt = world.stage(world.request(evolve_schema=True))
    assert sorted(attempt.evolved) == [
        "column 'id' promoted from int to long",
        "column 'place.height' added as double",
        "column 'place.n' promoted from int to long",
        "column 'share' promoted from float to double",
    ]
    world.commit(attempt)
    schema = world.table().schema()
    assert [schema.find_field(name).required for name in ("id", "place.city", "place.height")] == [True, True, False]
    found = {row["id"]: row for row in world.table().scan().to_arrow().to_pylist()}
    assert found[2**40] == {"id": 2**40, "share": 0.1, "place": {"city": "Ulm", "n": 2**40, "height": 1.5}}


@pytest.mark.parametrize(
    "column",
    [pa.array(["x"] * 4), pa.array(list(range(4)), pa.date32()), pa.array([[1]] * 4)],
    ids=["a number becomes text", "a number becomes a date", "a number becomes a list"],
)
def test_what_would_lose_something_is_refused_and_nothing_changes(tmp_path, column):
    world = world_with(tmp_path)
    put_table(world, arrow(NEW).set_column(1, "value", column))
    before = world.table().metadata_location
    with pytest.raises(SchemaMismatchError, match="value"):
        world.stage(world.request(evolve_schema=True))
    assert world.table().metadata_location == before


def test_narrower_rows_do_not_narrow_the_table(tmp_path):
    world = world_with(tmp_path)
    narrow = arrow(NEW).set_column(0, "id", arrow(NEW)["id"].cast(pa.int32()))
    put_table(world, narrow.append_column("day", pa.array([None] * 4, pa.date32())))
    world.commit(world.stage(world.request(evolve_schema=True)))
    schema = world.table().schema()
    assert schema.find_field("id").field_type == LongType()
    assert schema.find_field("day").field_type == DateType()


def test_input_without_rows_leaves_the_table_as_it_is(tmp_path):
    world = world_with(tmp_path)
    put(world)
    before = world.table().metadata_location
    attempt = world.stage(world.request(evolve_schema=True))
    assert attempt.evolved == []
    world.commit(attempt)
    assert world.table().metadata_location == before


def test_a_retry_does_not_grow_it_again(tmp_path):
    world = world_with(tmp_path)
    put_table(world, wider())
    world.stage(world.request(evolve_schema=True), splits=0)
    grown = world.table().metadata_location
    again = world.stage(world.request(evolve_schema=True))
    assert again.evolved == []
    assert world.table().metadata_location == grown
    world.commit(again)
    assert_same_everywhere(world.table(), [row | {"extra": None} for row in BEFORE] + wider().to_pylist())


def test_racers_that_need_the_same_growth_find_it_done(tmp_path):
    world = world_with(tmp_path)
    put_table(world, wider())
    with ThreadPoolExecutor(2) as pool:
        attempts = list(pool.map(lambda key: world.stage(world.request(key, evolve_schema=True)), ["one", "two"]))
    world.commit(*attempts)
    assert [field.name for field in world.table().schema().fields] == ["id", "value", "kind", "at", "extra"]
    assert_same_everywhere(world.table(), [row | {"extra": None} for row in BEFORE] + wider().to_pylist() * 2)
