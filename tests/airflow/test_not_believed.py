"""Who may write to the checkpoint store alone leads no task to another connection, table, branch, mode or commit (I15)."""

from __future__ import annotations

import json
import os
import sqlite3
from types import SimpleNamespace

import msgspec
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from support.forging import PlantedIO, forge, forge_group, forge_header, forge_plan
from support.world import World

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, now
from airflow_ckpt_provider.checkpoint.documents import Commit, Connections, Member, contents_of
from airflow_ckpt_provider.checkpoint.group import bind, bound_group, list_members
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import BindingMismatchError, CorruptObjectError
from airflow_ckpt_provider.hooks.catalog import iceberg_catalog
from airflow_ckpt_provider.operators.cleanup import CheckpointCleanupOperator
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write import groups

pytestmark = [
    pytest.mark.airflow,
    # Airflow's in-process API server, and what it is built on, warn about each other while connections are read.
    pytest.mark.filterwarnings("default"),
]

#: Of a task that is not mapped.
CONTEXT = {"ti": SimpleNamespace(dag_id="shop", task_id="t", run_id="manual__1", map_index=-1)}

#: Each takes up a checkpoint: it opens the table that this is of.
TAKERS = {
    "commit": lambda pointer, **more: CheckpointCommitOperator(task_id="t", checkpoint=pointer, **more).execute(CONTEXT),
    "clean-up": lambda pointer, **more: CheckpointCleanupOperator(
        task_id="t", checkpoint=pointer, discard_unfinished=True, **more
    ).execute(CONTEXT),
    "sensor": lambda pointer, **more: CheckpointSensor(task_id="t", checkpoint=pointer, **more).poke(CONTEXT),
}

take_up = pytest.mark.parametrize("take_up", TAKERS.values(), ids=TAKERS.keys())


@pytest.fixture
def world(dag_world):
    dag_world.put_files(2, 10)
    return dag_world


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another catalog, behind a connection of its own, with a table of the same name."""
    other = World(tmp_path / "elsewhere")
    other.create_table()
    catalog = {"type": "sql", "uri": f"sqlite:///{other.root}/catalog.db", "warehouse": f"file://{other.root}/warehouse"}
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", json.dumps({"conn_type": "iceberg", "extra": catalog}))
    # A SQL catalog knows its tables by its name, which is the connection's id.
    with sqlite3.connect(other.root / "catalog.db") as database:
        for table in ("iceberg_tables", "iceberg_namespace_properties"):
            database.execute(f"UPDATE {table} SET catalog_name = 'elsewhere'")
    return other


def table_elsewhere():
    """The table behind the other connection."""
    return iceberg_catalog("elsewhere").load_table("shop.orders")


def handed_over(world, key="orders", **changes):
    """A sealed checkpoint and the reference to it, as Airflow keeps it."""
    attempt = world.stage(world.request(key, **changes))
    checkpoint = attempt.checkpoint
    return checkpoint, reference(checkpoint, checkpoint.sealed(), State.SEALED, recovered=0, written=2)


@take_up
def test_a_header_with_another_connection_is_refused_and_both_are_named(world, elsewhere, take_up):
    checkpoint, pointer = handed_over(world)
    forge_group(checkpoint, checkpoint.member)
    forge_header(checkpoint, connections={"table": "elsewhere"}, table={"uuid": str(table_elsewhere().metadata.table_uuid)})
    with pytest.raises(AirflowFailException, match=r"'iceberg_default' by the reference, 'elsewhere' by the store"):
        take_up(pointer)
    assert table_elsewhere().scan().to_arrow().num_rows == 0
    assert world.ids() == []


@take_up
def test_with_a_bare_key_the_connection_of_the_operator_is_opened_and_no_other(world, elsewhere, take_up):
    checkpoint, _ = handed_over(world)
    forge_group(checkpoint, checkpoint.member)
    forge_header(checkpoint, connections={"table": "elsewhere"}, table={"uuid": str(table_elsewhere().metadata.table_uuid)})
    with pytest.raises(AirflowFailException, match=r"connection 'elsewhere', and this task was given iceberg_conn_id='iceberg_def"):
        take_up("orders")
    assert table_elsewhere().scan().to_arrow().num_rows == 0


@take_up
@pytest.mark.parametrize("format_", ["iceberg", "lance"])
def test_a_header_with_another_table_is_refused_and_both_are_named(world, take_up, format_):
    checkpoint, pointer = handed_over(world)
    other = world.create_table("shop.salaries")
    forge_group(checkpoint, checkpoint.member)
    table = {"identifier": "shop.salaries", "uuid": str(other.metadata.table_uuid)}
    if format_ == "lance":
        table = {"format": "lance", "identifier": f"file://{world.root}/salaries.lance", "uuid": ""}
    forge_header(checkpoint, table=table)
    with pytest.raises(AirflowFailException, match=r"'shop.orders' by the reference, '.*salaries"):
        take_up(pointer)
    with pytest.raises(AirflowFailException, match=r"bound to the table .*salaries.*, and this task was given table='shop.orders'"):
        take_up("orders", table="shop.orders")
    assert world.ids("shop.salaries") == []


@take_up
@pytest.mark.parametrize(
    "forged",
    [
        {"mode": "overwrite"},
        {"table": {"branch": "audit"}},
        {"table": {"uuid": "00000000-0000-0000-0000-000000000000"}},
        {"parameters": {"overwrite_filter": "id >= 0"}},
        {"transform_version": "2"},
        {"connections": {"spark": "expensive"}},
    ],
    ids=lambda forged: next(iter(forged)),
)
def test_no_other_member_of_the_header_is_believed_either(world, take_up, forged):
    checkpoint, pointer = handed_over(world)
    forge_group(checkpoint, checkpoint.member)
    forge_header(checkpoint, **forged)
    with pytest.raises(AirflowFailException, match=r"by the reference, .* by the store"):
        take_up(pointer)
    assert world.ids() == []


@take_up
def test_a_header_that_replaces_itself_is_no_header(world, take_up):
    checkpoint, pointer = handed_over(world)
    forge_group(checkpoint, checkpoint.member)
    forge_header(checkpoint, replaces=1)
    with pytest.raises(AirflowFailException, match=r"header\.json .* is not a valid header document"):
        take_up(pointer)
    assert world.ids() == []


@take_up
def test_a_reference_of_another_store_connection_than_the_operators_is_refused(world, monkeypatch, take_up):
    _, pointer = handed_over(world)
    other = {"conn_type": "checkpoint", "host": f"file://{world.root}/store"}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER_STORE", json.dumps(other))
    with pytest.raises(AirflowFailException, match=r"'checkpoint_default', and this task was given .*='other_store'"):
        take_up(pointer, checkpoint_conn_id="other_store")


@take_up
def test_a_reference_to_another_key_than_lies_there_is_refused(world, take_up):
    checkpoint, pointer = handed_over(world)
    handed_over(world, "other")
    forge_header(checkpoint, key="other")
    with pytest.raises(AirflowFailException, match=r"belongs to the key 'other'.* and not to 'orders'"):
        take_up(pointer)


def test_a_commit_by_reference_or_key_lands_where_the_dag_says(world, elsewhere):
    _, pointer = handed_over(world)
    _, by_key = handed_over(world, "by key")
    landed = TAKERS["commit"](pointer)
    assert {name: landed[name] for name in pointer if name not in {"state", "splits"}}.items() <= pointer.items()
    TAKERS["commit"]("by key", table="shop.orders")
    assert world.ids() == sorted([*range(20), *range(20)])
    assert TAKERS["sensor"](by_key)
    assert TAKERS["clean-up"]("by key", iceberg_conn_id="iceberg_default")["files"] == 0


def test_a_key_of_another_connection_is_committed_if_the_operator_names_that(world, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", os.environ["AIRFLOW_CONN_ICEBERG_DEFAULT"])
    handed_over(world, connections=Connections(table="lake", spark="spark_default", checkpoint="checkpoint_default"))
    with pytest.raises(AirflowFailException, match="pass iceberg_conn_id as the stage has it"):
        TAKERS["commit"]("orders")
    # The catalog of the connection "lake" has another name, and so no such table: what counts is which one is opened.
    with pytest.raises(AirflowFailException, match=r"shop.orders does not exist in the catalog 'lake'"):
        TAKERS["commit"]("orders", iceberg_conn_id="lake")


# -- a table that is to be created -----------------------------------------------------------------------------------------


@pytest.fixture
def to_be(world):
    """A sealed write that creates its table, and the reference to it."""
    PlantedIO.ran_with.clear()
    request = world.request(mode="create", parameters={"table_properties": {"read.split.target-size": "1", "team": "orders"}})
    checkpoint = world.stage(request, name="shop.made").checkpoint
    forge_group(checkpoint, checkpoint.member)
    pointer = reference(checkpoint, checkpoint.sealed(), State.SEALED, recovered=0, written=2)
    return world, request, checkpoint, pointer


PLANTED = {
    "code that opens files": {"py-io-impl": "support.forging.PlantedIO"},
    "code that says where files are": {"write.py-location-provider.impl": "support.forging.PlantedIO"},
    "another endpoint": {"s3.endpoint": "http://stranger.example", "py-io-impl": "support.forging.PlantedIO"},
    "another place for data": {"write.data.path": "s3://stranger/data"},
    "another catalog": {"uri": "http://stranger.example"},
}

planted = pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED.keys())


def forge_creation(checkpoint, properties=None, **changes):
    """Change the metadata of the table to be."""
    creation = dict(checkpoint.header.table.creation) | changes
    creation["properties"] = creation["properties"] | (properties or {})
    forge_header(checkpoint, table={"creation": creation})


@take_up
@planted
def test_no_property_of_a_table_to_be_steers_whoever_takes_it_up(to_be, take_up, planted):
    world, _, checkpoint, pointer = to_be
    forge_creation(checkpoint, planted)
    with pytest.raises(AirflowFailException, match=r"header: .* by the reference"):
        take_up(pointer)
    with pytest.raises(AirflowFailException, match=f"property '{min(planted)}'"):
        take_up("orders", table="shop.made")
    assert PlantedIO.ran_with == []
    assert not world.catalog.table_exists("shop.made")


@planted
def test_no_property_of_a_table_to_be_steers_a_retry_of_the_stage(to_be, planted):
    world, request, checkpoint, _ = to_be
    forge_creation(checkpoint, planted)
    with pytest.raises(CorruptObjectError, match=r"properties: .*by the store, .* by the DAG"):
        world.stage(request, name="shop.made")
    assert PlantedIO.ran_with == []


def test_files_of_a_table_to_be_are_opened_as_its_catalog_says(to_be):
    """Also where nothing has looked at the header yet."""
    world, _, checkpoint, _ = to_be
    forge_creation(checkpoint, PLANTED["code that opens files"])
    forged = Checkpoint.latest(checkpoint.store, checkpoint.key)
    table = world.as_table("shop.made").load_bound(forged.header.table)
    assert type(table.io).__name__ == "PyArrowFileIO"
    assert PlantedIO.ran_with == []


@take_up
def test_a_table_to_be_is_where_its_catalog_puts_it_and_has_no_history(to_be, take_up):
    world, request, checkpoint, _ = to_be
    snapshot = {"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": "file:///etc/passwd", "summary": {"operation": "append"}}
    for changes, said in (
        ({"location": f"file://{world.root}/elsewhere"}, "location: .*elsewhere' by the store"),
        ({"snapshots": [snapshot]}, "has snapshots before it is created"),
        ({"location": 7}, "in a way that is none"),
    ):
        forge_creation(checkpoint, **changes)
        with pytest.raises(AirflowFailException, match=said):
            take_up("orders")
        with pytest.raises(CorruptObjectError, match=said):
            world.stage(request, name="shop.made")
    assert not world.catalog.table_exists("shop.made")


def test_a_table_is_created_with_the_properties_that_the_dag_gives_it(to_be):
    world, _, _, pointer = to_be
    with pytest.raises(AirflowFailException, match="property 'team'"):
        TAKERS["commit"]("orders", table="shop.made")
    TAKERS["commit"](pointer)
    assert world.ids("shop.made") == list(range(20))
    assert world.table("shop.made").properties["team"] == "orders"


# -- what a key alone does not say -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("forged", [{"mode": "overwrite"}, {"replaces": 1, "generation": 2}], ids=["overwrite", "replacement"])
def test_a_key_alone_removes_no_rows_of_the_table(world, forged):
    """A generation with nothing staged that takes the place of all, or of what the key has landed, planted whole."""
    landed, _ = handed_over(world)
    groups.commit([landed], world.as_table())
    generation, key = forged.get("generation", 1), "orders" if "replaces" in forged else "planted"
    paths = CheckpointPaths(IdempotenceKey(key).hash, generation)
    header = msgspec.structs.replace(landed.header, key=key, created_at=now(), **forged)
    for name, document, changes in (
        (paths.header, header, {}),
        (paths.plan(), landed.plan(), {"splits": ()}),
        (paths.seal(), landed.sealed(), {"splits": 0, "rows": 0, "bytes": 0, "files": 0, "manifests": ()}),
    ):
        forge(world.store, name, document, **changes)
    with pytest.raises(AirflowFailException, match="A key alone does not say so"):
        TAKERS["commit"](key, table="shop.orders")
    with pytest.raises(AirflowFailException, match=rf"of the mode '{header.mode}', and this task was given mode='upsert'"):
        TAKERS["commit"](key, table="shop.orders", mode="upsert")
    if "replaces" in forged:
        with pytest.raises(AirflowFailException, match="in place of an earlier generation"):
            TAKERS["commit"](key, table="shop.orders", mode="append")
    assert world.ids() == list(range(20))


def test_a_key_lands_an_overwrite_if_the_dag_names_the_mode(world):
    handed_over(world, "by key", mode="overwrite")
    for mode in ("overwrite", None):
        # The second time it is there already.
        TAKERS["commit"]("by key", table="shop.orders", mode=mode)
    assert world.ids() == list(range(20))


@pytest.mark.parametrize("named", ["staged", "nosuch"])
@take_up
def test_a_key_alone_leads_to_no_table_of_a_format_that_only_the_store_names(world, tmp_path, take_up, named):
    checkpoint, _ = handed_over(world)
    planted = tmp_path / "planted"
    forge_header(checkpoint, connections={"table": ""}, table={"format": named, "identifier": f"file://{planted}"})
    with pytest.raises(AirflowFailException, match=f"format '{named}', which no stage writes"):
        take_up("orders")
    assert not planted.exists()


def test_a_key_alone_is_not_committed_to_a_branch_that_only_the_store_names(world):
    checkpoint, pointer = handed_over(world)
    forge_header(checkpoint, table={"branch": "audit"})
    with pytest.raises(AirflowFailException, match=r"to the branch 'audit' of shop\.orders, and a key alone means 'main'"):
        TAKERS["commit"]("orders", table="shop.orders")
    assert set(world.table().metadata.refs) <= {"main"}
    with pytest.raises(AirflowFailException, match=r"'main' by the reference, 'audit' by the store"):
        TAKERS["commit"](pointer)


@take_up
def test_a_checkpoint_of_another_branch_than_the_operator_names_is_refused_and_both_are_named(world, take_up):
    _, pointer = handed_over(world)
    for given in (pointer, "orders"):
        with pytest.raises(
            AirflowFailException, match=r"the branch 'main' of shop\.orders, and this task was given branch='audit'"
        ):
            take_up(given, branch="audit")


def test_a_key_lands_on_the_branch_that_the_dag_names(world, monkeypatch):
    groups.commit([handed_over(world)[0]], world.as_table())
    monkeypatch.setattr(world, "as_table", lambda name="shop.orders": CatalogTable(world.catalog, name, "audit"))
    handed_over(world, "by key")
    TAKERS["commit"]("by key", table="shop.orders", branch="audit")
    # The second time it is there already.
    assert not TAKERS["commit"]("by key", table="shop.orders")["commit"]["landed_now"]
    table = world.table()
    assert table.scan(snapshot_id=table.metadata.refs["audit"].snapshot_id).to_arrow().num_rows == 40
    assert world.ids() == list(range(20))


# -- what was sealed -------------------------------------------------------------------------------------------------------


def lie(checkpoint, what):
    """Change documents of a sealed write so that they agree with each other, and no longer say what its stage has staged."""
    plan, records, seal = checkpoint.plan(), checkpoint.staged(["000000", "000001"]), checkpoint.sealed()
    kept = records[1]
    match what:
        case "a split without rows":
            empty = msgspec.structs.replace(records[0], rows=0, bytes=0, files=(), manifest=None)
            forge(checkpoint.store, checkpoint.paths.staged("000000"), empty)
            records = [empty, kept]
        case "a file that is not planned":
            plan, records = msgspec.structs.replace(plan, splits=plan.splits[1:]), [kept]
            forge_plan(checkpoint, splits=plan.splits)
        case "another listing":
            plan = msgspec.structs.replace(plan, source=plan.source | {"files": 7})
            forge_plan(checkpoint, source=plan.source)
    if what != "another listing":
        left = {"splits": len(records), "rows": kept.rows, "bytes": kept.bytes, "files": 1, "manifests": (kept.manifest,)}
        seal = msgspec.structs.replace(seal, **left)
    forge(checkpoint.store, checkpoint.paths.seal(), seal, contents=contents_of(plan, records))


@pytest.mark.parametrize("what", ["a split without rows", "a file that is not planned", "another listing"])
def test_a_consistent_lie_about_what_was_staged_is_refused_by_the_reference(world, what):
    checkpoint, pointer = handed_over(world)
    lie(checkpoint, what)
    with pytest.raises(AirflowFailException, match="is not what the reference of its stage says"):
        TAKERS["commit"](pointer)
    assert world.ids() == []


def test_a_record_or_plan_that_its_seal_does_not_cover_is_refused_by_the_reference(world):
    checkpoint, pointer = handed_over(world)
    (record,) = checkpoint.staged(["000000"])
    forge(checkpoint.store, checkpoint.paths.staged("000000"), msgspec.structs.replace(record, missing=("note",)))
    with pytest.raises(AirflowFailException, match="is not what the reference of its stage says"):
        TAKERS["commit"](pointer)
    assert world.ids() == []


def test_what_a_later_try_of_the_stage_has_sealed_is_committed_by_its_own_reference(world):
    """An upsert is sealed anew when the table has moved."""
    request = {"mode": "upsert", "parameters": {"upsert_keys": ["id"]}}
    _, first = handed_over(world, **request)
    groups.commit([handed_over(world, "others")[0]], world.as_table())
    checkpoint, second = handed_over(world, **request)
    assert checkpoint.store.exists(checkpoint.paths.seal(2))
    with pytest.raises(AirflowFailException, match="If the stage has run again since, clear it"):
        TAKERS["commit"](first)
    TAKERS["commit"](second)
    assert world.ids() == list(range(20))


# -- the stage, and groups -------------------------------------------------------------------------------------------------


def test_a_retry_of_the_stage_refuses_a_header_with_another_connection_and_names_both(world):
    checkpoint, _ = handed_over(world)
    forge_header(checkpoint, connections={"table": "elsewhere"})
    with pytest.raises(BindingMismatchError, match=r"connection of the table: was 'elsewhere', is now 'iceberg_default'"):
        world.attempt()


def test_a_group_of_another_table_or_mode_is_not_landed_with_the_named_checkpoint(world):
    world.create_table("shop.salaries")
    mine, _ = handed_over(world)
    theirs = world.stage(world.request("theirs"), name="shop.salaries").checkpoint
    replacing = world.stage(world.request("replacing", mode="overwrite")).checkpoint
    for victim in (theirs, replacing):
        forge_group(mine, mine.member, victim.member)
        with pytest.raises(BindingMismatchError, match=f"begun together with the key '{victim.key}'"):
            groups.commit([mine], world.as_table())
        assert bound_group(victim) is None
    assert world.ids() == []


@pytest.mark.parametrize("listed", ["in the group", "beside it"])
def test_a_group_of_the_store_lands_no_checkpoint_that_the_task_was_not_told_to_commit(world, listed):
    """Another sealed key of the same table and mode, which has a commit task of its own, with checks of its own."""
    mine, pointer = handed_over(world)
    theirs, their_pointer = handed_over(world, "theirs")
    members = sorted([mine.member, theirs.member])
    if listed == "in the group":
        forge_group(mine, *members)
    else:
        group = groups.Group(id=groups.group_id_of(members), members=tuple(members), stream="s", bound_at=now(), horizon=0)
        list_members(mine, group)
        bind(mine, group)
    for given in (pointer, "orders"):
        with pytest.raises(AirflowException, match=r"key 'orders' to .* begun together with 'theirs', and this task was not told"):
            TAKERS["commit"](given, table="shop.orders")
    assert (bound_group(theirs), theirs.committed(), world.ids()) == (None, None, [])
    TAKERS["commit"]([pointer, their_pointer])
    assert world.ids() == sorted([*range(20), *range(20)])


def test_a_group_that_has_landed_is_found_by_each_of_its_members_alone(world):
    mine, pointer = handed_over(world)
    theirs, their_pointer = handed_over(world, "theirs")
    groups.commit([mine, theirs], world.as_table())
    for one, given in ((mine, pointer), (theirs, their_pointer)):
        (world.root / "store" / one.paths.commit).unlink()
        assert not TAKERS["commit"](given)["commit"]["landed_now"]
    assert world.ids() == sorted([*range(20), *range(20)])


def test_checks_look_at_what_only_the_store_says_has_changed_nothing(world):
    source = Files(f"{world.input}/none-*.parquet")
    checkpoint, pointer = handed_over(world, "empty", source=source)
    group_id = groups.group_id_of([checkpoint.member])
    forge_group(checkpoint, checkpoint.member)
    forge(checkpoint.store, checkpoint.paths.commit, Commit(group=group_id, commit_id=None, committed_at=now(), rows=0))
    with pytest.raises(AirflowFailException, match="there must be rows"):
        TAKERS["commit"](pointer, checks=[{"there must be rows": lambda staged: staged.rows > 0}])
    assert TAKERS["commit"](pointer)["commit"]["snapshot_id"] is None


def test_a_group_that_a_checkpoint_is_no_member_of_is_not_landed_in_its_name(world):
    mine, _ = handed_over(world)
    theirs, _ = handed_over(world, "theirs")
    forge_group(mine, theirs.member)
    with pytest.raises(CorruptObjectError, match="a commit that it is no part of"):
        groups.commit([mine], world.as_table())
    assert (bound_group(theirs), world.ids()) == (None, [])


def test_a_commit_that_landed_for_others_is_not_taken_for_ones_own(world):
    theirs, _ = handed_over(world, "theirs")
    (landed,) = groups.commit([theirs], world.as_table())
    mine, _ = handed_over(world)
    forge_group(mine, mine.member, group_id=landed.commit.group)
    with pytest.raises(CorruptObjectError, match="a commit that it is no part of"):
        groups.commit([mine], world.as_table())


@pytest.mark.parametrize("bound", [True, False], ids=["bound", "not bound"])
@pytest.mark.parametrize("snapshot", ["none", "theirs"])
def test_a_record_of_a_commit_that_never_was_is_not_believed(world, bound, snapshot):
    theirs, _ = handed_over(world, "theirs")
    (landed,) = groups.commit([theirs], world.as_table())
    mine, pointer = handed_over(world)
    group_id = groups.group_id_of([mine.member])
    if bound:
        forge_group(mine, mine.member)
    snapshot_id = None if snapshot == "none" else landed.commit.commit_id
    forge(mine.store, mine.paths.commit, Commit(group=group_id, commit_id=snapshot_id, committed_at=now(), rows=20))
    for taker in ("commit", "sensor"):
        for given in (pointer, "orders"):
            with pytest.raises(AirflowFailException, match=r"CorruptObjectError|RolledBackError"):
                TAKERS[taker](given)
    attempt = world.attempt()
    with pytest.raises(Exception, match=r"says that the key 'orders' is committed|does not show it any more"):
        attempt.verify_commit()


def test_the_digest_of_a_header_is_that_of_what_is_stored(world):
    checkpoint, pointer = handed_over(world)
    again = Checkpoint.latest(checkpoint.store, checkpoint.key)
    assert again.header.digest == checkpoint.header.digest == pointer["header"]
    other = msgspec.structs.replace(checkpoint.header, source_fingerprint="another")
    assert other.digest != pointer["header"]
    assert Member(key="orders", generation=1) == checkpoint.member
