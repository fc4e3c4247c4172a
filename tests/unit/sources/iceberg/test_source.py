"""The source ``IcebergTable`` at a pinned snapshot: what a plan pins, what a retry reads, and what is refused before Spark."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from pyiceberg.types import LongType
from support.foreign import compact, data_files, delete_positions, options_of, rows
from support.reading import read_all, read_split
from support.world import World

from airflow_ckpt_provider.checkpoint.documents import from_json, to_json
from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError, RetryableError, TableMissingError
from airflow_ckpt_provider.sources import IcebergTable, Source
from airflow_ckpt_provider.sources.protocol import IncrementalSource


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def options(world):
    return options_of(world)


def ids(source, options):
    return sorted(row["id"] for row in read_all(source, options))


def ids_of_plan(source, plan, options):
    return sorted(row["id"] for split in plan.splits for row in read_split(source, split, options))


def path_of(file):
    return file.file_path.removeprefix("file://")


def test_it_is_a_source_that_can_be_incremental():
    assert isinstance(IcebergTable("shop.orders"), Source)
    assert isinstance(IcebergTable("shop.orders"), IncrementalSource)
    assert not IcebergTable("shop.orders").incremental
    assert IcebergTable("shop.orders", since="last_commit").incremental


def test_a_plan_pins_the_snapshot_although_the_table_moves_on(world, options):
    table = world.create_table()
    table.append(rows(0, 10))
    source = IcebergTable("shop.orders")
    plan = from_json("plan.json.zst", to_json("plan.json.zst", source.plan(options)), type(source.plan(options)))
    table.append(rows(10, 10))
    table.delete("id < 5")
    compact(world.table())
    source.verify(plan.splits, options)
    assert ids_of_plan(source, plan, options) == list(range(10))
    assert ids(source, options) == list(range(5, 20))


def test_a_plan_says_what_it_pinned_and_holds_no_secret(world, options):
    table = world.create_table()
    table.append(rows(0, 10))
    table.append(rows(10, 5))
    source = IcebergTable("shop.orders", row_filter="id < 12", columns=["id"])
    plan = source.plan(options | {"s3.secret-access-key": "hidden"})
    sizes = sum(file.file_size_in_bytes for file in data_files(table))
    assert plan.source == {
        "kind": "iceberg",
        "table": "shop.orders",
        "table_uuid": str(table.metadata.table_uuid),
        "snapshot_id": table.current_snapshot().snapshot_id,
        "schema_id": 0,
        "files": 2,
        "rows": 15,
        "bytes": sizes,
        "filter": "id < 12",
    }
    assert sum(split.bytes for split in plan.splits) == sizes
    assert b"hidden" not in msgspec.json.encode(plan)
    assert source.describe() == {"iceberg": "shop.orders", "row_filter": "id < 12", "columns": ["id"]}
    assert ids_of_plan(source, plan, options) == list(range(12))


def test_an_empty_table_has_a_schema_and_no_splits(world, options):
    world.create_table()
    source = IcebergTable("shop.orders", columns=["kind", "id"])
    plan = source.plan(options)
    assert plan.splits == ()
    assert source.schema(plan, options).names == ["kind", "id"]
    source.verify(plan.splits, options)


def test_small_files_share_a_split_and_large_ones_stand_alone(world, options):
    table = world.create_table()
    for start in range(0, 60, 10):
        table.append(rows(start, 10))
    table.append(rows(60, 20_000))
    small = data_files(table)[0].file_size_in_bytes
    plan = IcebergTable("shop.orders", max_split_bytes=small * 3 + 100).plan(options)
    assert sorted(len(split.read["files"]) for split in plan.splits) == [1, 3, 3]
    assert len(IcebergTable("shop.orders", max_split_bytes=1).plan(options).splits) == 7
    assert len(IcebergTable("shop.orders").plan(options).splits) == 1
    assert ids(IcebergTable("shop.orders", max_split_bytes=small * 3 + 100), options) == list(range(20_060))


def test_deletes_and_the_filter_hold_in_every_split(world, options):
    table = world.create_table()
    for start in (0, 10, 20):
        table.append(rows(start, 10))
    first, _, third = data_files(table)
    delete_positions(table, {first.file_path: [0, 1], third.file_path: [9]})
    assert ids(IcebergTable("shop.orders", max_split_bytes=1), options) == list(range(2, 29))
    assert ids(IcebergTable("shop.orders", max_split_bytes=1, row_filter="id < 5 or id > 26"), options) == [2, 3, 4, 27, 28]


def test_a_file_that_the_filter_excludes_is_never_opened(world, options):
    table = world.create_table()
    for start in (0, 100):
        table.append(rows(start, 100))
    os.remove(path_of(data_files(table)[0]))
    source = IcebergTable("shop.orders", row_filter="id >= 150")
    plan = source.plan(options)
    source.verify(plan.splits, options)
    assert ids_of_plan(source, plan, options) == list(range(150, 200))


# -- which snapshot --------------------------------------------------------------------------------------------------------


def test_time_travel_by_snapshot_and_by_time(world, options):
    table = world.create_table()
    for start in (0, 10, 20):
        table.append(rows(start, 10))
    first, second, _ = table.metadata.snapshots
    assert ids(IcebergTable("shop.orders", snapshot_id=first.snapshot_id), options) == list(range(10))
    assert ids(IcebergTable("shop.orders", snapshot_id=str(second.snapshot_id)), options) == list(range(20))
    then = datetime.fromtimestamp(second.timestamp_ms / 1000, UTC)
    for moment in (then, then.isoformat(), then.replace(tzinfo=None).isoformat(" "), then.isoformat().replace("+00:00", "Z")):
        assert ids(IcebergTable("shop.orders", as_of=moment), options) == list(range(20))
    assert ids(IcebergTable("shop.orders", as_of=datetime.now(UTC) + timedelta(days=1)), options) == list(range(30))


def test_branches_and_tags(world, options):
    table = world.create_table()
    table.append(rows(0, 10))
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "monday").commit()
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    table.append(rows(10, 10))
    table.append(rows(100, 10), branch="audit")
    assert ids(IcebergTable("shop.orders", branch="monday"), options) == list(range(10))
    assert ids(IcebergTable("shop.orders", branch="audit"), options) == [*range(10), *range(100, 110)]
    assert ids(IcebergTable("shop.orders", branch="main"), options) == list(range(20))


def test_a_snapshot_is_read_with_its_own_schema_and_a_branch_with_the_current_one(world, options):
    table = world.create_table()
    table.append(rows(0, 2))
    then = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(then, "old").create_branch(then, "audit").commit()
    with table.update_schema() as update:
        update.rename_column("value", "price")
        update.delete_column("at")
        update.add_column("added", LongType())
    old, new = ["id", "value", "kind", "at"], ["id", "price", "kind", "added"]
    for source, names in (
        (IcebergTable("shop.orders", snapshot_id=then), old),
        (IcebergTable("shop.orders", as_of=datetime.now(UTC)), old),
        (IcebergTable("shop.orders", branch="old", row_filter="value >= 0"), old),
        (IcebergTable("shop.orders", branch="audit"), new),
        (IcebergTable("shop.orders", row_filter="price >= 0 and added is null"), new),
    ):
        plan = source.plan(options)
        assert source.schema(plan, options).names == names
        assert [list(row) for row in read_all(source, options)] == [names, names]


def test_a_retry_reads_with_the_pinned_schema_although_the_table_evolved_since(world, options):
    table = world.create_table()
    table.append(rows(0, 2))
    source = IcebergTable("shop.orders", columns=["id", "value"], row_filter="value > 0")
    plan = source.plan(options)
    with table.update_schema() as update:
        update.rename_column("value", "price")
    assert [row for split in plan.splits for row in read_split(source, split, options)] == [{"id": 1, "value": 0.25}]
    assert source.schema(plan, options).names == ["id", "value"]


# -- the input changed -----------------------------------------------------------------------------------------------------


def expire_all_but_the_head(table):
    """Expire, and delete the files that no snapshot refers to any more, as an engine does."""
    head = table.current_snapshot().snapshot_id
    before = {file.file_path for snapshot in table.metadata.snapshots for file in data_files(table, snapshot.snapshot_id)}
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != head]).commit()
    for path in before - {file.file_path for file in data_files(table.refresh())}:
        os.remove(path.removeprefix("file://"))


def test_an_expired_snapshot_whose_files_are_gone_fails_by_name(world, options):
    table = world.create_table()
    table.append(rows(0, 10))
    source = IcebergTable("shop.orders")
    plan = source.plan(options)
    gone = path_of(data_files(table)[0])
    expire_all_but_the_head(compact(table))
    with pytest.raises(InputChangedError, match=rf"(?s)1 of 1 files of shop.orders.*{gone}.*was expired.*restart"):
        source.verify(plan.splits, options)
    with pytest.raises(InputChangedError, match=gone):
        read_split(source, plan.splits[0], options)


def test_an_expired_snapshot_whose_files_live_on_is_still_read(world, options):
    table = world.create_table()
    table.append(rows(0, 10))
    source = IcebergTable("shop.orders")
    plan = source.plan(options)
    table.append(rows(10, 10))
    expire_all_but_the_head(table)
    source.verify(plan.splits, options)
    assert ids_of_plan(source, plan, options) == list(range(10))


def test_a_missing_delete_file_is_noticed(world, options):
    table = world.create_table()
    table.append(rows(0, 10))
    delete_positions(table, {data_files(table)[0].file_path: [1]})
    source = IcebergTable("shop.orders")
    plan = source.plan(options)
    os.remove(plan.splits[0].read["files"][0]["deletes"][0][0].removeprefix("file://"))
    with pytest.raises(InputChangedError, match="deletes-"):
        source.verify(plan.splits, options)


def test_a_file_of_another_size_is_noticed(world, options):
    table = world.create_table()
    table.append(rows(0, 10))
    source = IcebergTable("shop.orders")
    plan = source.plan(options)
    with open(path_of(data_files(table)[0]), "ab") as file:
        file.write(b"x")
    with pytest.raises(InputChangedError, match="gone or changed"):
        source.verify(plan.splits, options)


def test_a_table_that_was_created_anew_is_another_table(world, options):
    world.create_table().append(rows(0, 10))
    source = IcebergTable("shop.orders")
    plan = source.plan(options)
    world.catalog.drop_table("shop.orders")
    world.create_table().append(rows(0, 10))
    with pytest.raises(InputChangedError, match="dropped and created anew"):
        source.verify(plan.splits, options)
    with pytest.raises(InputChangedError, match="not the one that was planned"):
        read_split(source, plan.splits[0], options)


# -- refused ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"snapshot_id": 1, "as_of": "2026-01-01"}, "only one of snapshot_id, as_of"),
        ({"snapshot_id": 1, "branch": "b"}, "only one of snapshot_id, branch"),
        ({"since": "yesterday"}, "'last_commit'"),
        ({"since": "last_commit", "snapshot_id": 1}, "head of a branch"),
        ({"since": "last_commit", "as_of": "2026-01-01"}, "head of a branch"),
        ({"columns": "id"}, "columns='id'"),
        ({"columns": []}, "columns="),
        ({"columns": ["id", "id"]}, "named twice"),
        ({"max_split_bytes": 0}, "max_split_bytes=0"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused_when_the_dag_is_parsed(wrong, named):
    with pytest.raises(InvalidInputError, match=named):
        IcebergTable("shop.orders", **wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"snapshot_id": 1}, "shop.orders has no snapshot 1"),
        ({"snapshot_id": "latest"}, "'latest'"),
        ({"as_of": "2001-01-01"}, "no snapshot as of 2001-01-01"),
        ({"as_of": "noon"}, "as_of='noon'"),
        ({"branch": "nope"}, "no branch or tag 'nope'; it has main"),
        ({"row_filter": "id >"}, "row_filter='id >'"),
        ({"row_filter": "kind like '%x'"}, "row_filter=\"kind like '%x'\""),
        ({"row_filter": "nope = 1"}, "nope"),
        ({"row_filter": "id = 'x'"}, "id = 'x'"),
        ({"columns": ["id", "nope"]}, "no column 'nope'"),
        ({"row_filter": "  "}, "row_filter='  '.*rendered to nothing"),
        ({"snapshot_id": ""}, "rendered to nothing"),
        ({"branch": "None"}, "rendered to nothing"),
        ({"as_of": ""}, "rendered to nothing"),
    ],
)
def test_what_cannot_be_read_is_refused_when_it_is_planned(world, options, wrong, named):
    world.create_table().append(rows(0, 3))
    with pytest.raises(InvalidInputError, match=named):
        IcebergTable("shop.orders", **wrong).plan(options)


def test_a_table_that_is_not_there_is_named(world, options):
    world.create_table()
    with pytest.raises(TableMissingError, match=r"shop.nothing does not exist in the catalog 'iceberg_default'"):
        IcebergTable("shop.nothing").plan(options)
    with pytest.raises(InvalidInputError, match="'orders'"):
        IcebergTable("orders").plan(options)


def test_a_catalog_that_does_not_answer_may_be_retried(world, options):
    with pytest.raises(RetryableError, match=r"shop.orders could not be loaded"):
        IcebergTable("shop.orders").plan(options | {"uri": f"sqlite:///{world.root}/no/where.db"})


def test_a_description_is_json_and_tells_apart_what_reads_other_rows():
    sources = [
        IcebergTable("shop.orders"),
        IcebergTable("shop.orders", snapshot_id=1),
        IcebergTable("shop.orders", as_of=datetime(2026, 1, 1, tzinfo=UTC)),
        IcebergTable("shop.orders", branch="audit"),
        IcebergTable("shop.orders", since="last_commit"),
        IcebergTable("shop.orders", row_filter="id = 1"),
        IcebergTable("shop.orders", columns=["id"]),
    ]
    assert len({json.dumps(source.describe(), sort_keys=True) for source in sources}) == len(sources)
