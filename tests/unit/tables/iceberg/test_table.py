"""Which Iceberg tables are accepted, what a write is bound to, and what is left in a table's metadata for later."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from support.appending import append, arrow_schema, commit, header_of, require_files, sealed_of, write, writer_of
from support.samples import MANIFEST
from support.world import SCHEMA, World, rows

from airflow_ckpt_provider.exceptions import (
    InvalidInputError,
    RowCountError,
    SchemaMismatchError,
    StagedFileMissingError,
    TableMissingError,
    UnsupportedTableError,
)
from airflow_ckpt_provider.tables.iceberg.history import LARGEST, REMEMBERED, RememberedCommit, RememberedCommits
from airflow_ckpt_provider.tables.iceberg.manifest import FACTS_ENTRY, StagedManifest
from airflow_ckpt_provider.tables.iceberg.upsert.bounds import KeyBounds
from airflow_ckpt_provider.tables.iceberg.upsert.facts import FACTS, facts_of
from airflow_ckpt_provider.tables.iceberg.upsert.sidecar import MatchSidecar
from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFile

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# -- stored formats -------------------------------------------------------------------------------------------------------


def test_a_staged_manifest_is_remembered_as_it_always_was():
    golden = (GOLDEN / "staged_manifest.json").read_bytes().strip()
    assert msgspec.json.encode(MANIFEST.to_json()) == golden
    assert StagedManifest.from_json(json.loads(golden)) == MANIFEST


def test_a_manifest_and_a_staged_source_file_say_of_themselves_what_they_always_said():
    assert FACTS_ENTRY == FACTS.decode() == "airflow.checkpoint.facts"
    assert MANIFEST.facts == "3580859842b48e01ae0aa55d66397aacbce649733d9cca97f4237bd3a61b9c83"
    bounds = (KeyBounds("AQAAAAAAAAA=", "CQAAAAAAAAA=", values=True, nulls=False, nans=False),)
    source = SourceFile(path="s3://warehouse/a-source.parquet", bytes=7, rows=5, key_bytes=40, buckets=1, bounds=bounds)
    assert facts_of(source) == b"4307f7199cc15f522185a97f2b578eebcb9ac3d4dab3726db9f6c66f617051a5"
    sidecar = MatchSidecar(path="s3://warehouse/a-matched.parquet", bytes=7, rows=3, sources=("s3://warehouse/a-source.parquet",))
    assert facts_of(sidecar) == b"aa09da0e788198b67c1227571b47183f1d1bf1aca37066d1592b18abe20e7bf4"


KEPT = {
    "iceberg_source_file.json": SourceFile(
        path="s3://warehouse/a-source.parquet", bytes=7, rows=5, key_bytes=40, buckets=1,
        bounds=(KeyBounds("AQAAAAAAAAA=", "CQAAAAAAAAA=", values=True, nulls=False, nans=False),),
    ),
    "iceberg_sidecar.json": MatchSidecar(path="s3://warehouse/a-matched.parquet", bytes=7, rows=3, sources=("s3://warehouse/a-source.parquet",)),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_later_rounds_of_an_upsert_read_is_written_and_read_as_it_always_was(name):
    golden = (GOLDEN / name).read_bytes().strip()
    assert msgspec.json.encode(KEPT[name].to_json()) == golden
    assert msgspec.json.decode(golden, type=SourceFile | MatchSidecar) == KEPT[name]


def test_the_memory_in_a_table_property_is_written_as_it_always_was():
    first = RememberedCommit("0f" * 16, 4611686018427387904, 1767270615250, 4, "AAAAAAAAbbbbbbbb")
    remembered = RememberedCommits(3, (first, RememberedCommit("1e" * 16, 7, 1767270615251, 5, "AAAAAAAAbbbbbbbbCCCCCCCCdddddddd")))
    golden = (GOLDEN / "remembered_commits.json").read_bytes().strip()
    assert msgspec.json.encode(remembered) == golden
    assert msgspec.json.decode(golden, type=RememberedCommits) == remembered


@pytest.mark.parametrize(
    "text", [b"{}", b'{"since":1}', b'{"since":1,"commits":[],"extra":1}', b'{"since":1,"commits":[["a",1,2,3]]}']
)
def test_a_memory_that_is_not_whole_is_no_memory(text):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=RememberedCommits)


def test_a_full_memory_forgets_the_oldest_and_says_from_where_on_it_is_complete():
    remembered = RememberedCommits(0, ())
    for number in range(1, REMEMBERED + 11):
        remembered = remembered.adding(RememberedCommit(f"{number:032x}", number, number, number, "AAAAAAAAbbbbbbbb"))
    assert len(remembered.commits) == REMEMBERED
    assert remembered.since == 10
    assert remembered.find(f"{10:032x}") is None
    assert remembered.find(f"{11:032x}").snapshot_id == 11


@pytest.mark.parametrize("members", [500, 5_000, 10_000])
def test_a_memory_of_commits_of_many_members_is_bounded_in_bytes_and_still_tells_from_where_on_it_is_complete(members):
    remembered = RememberedCommits(0, ())
    largest = 1 << 62
    for number in range(1, REMEMBERED + 1):
        remembered = remembered.adding(RememberedCommit(f"{number:032x}", largest, 1 << 43, number, "A" * 16 * members))
        assert len(msgspec.json.encode(remembered)) <= LARGEST
    assert remembered.commits[-1].sequence_number == REMEMBERED
    assert remembered.since == REMEMBERED - len(remembered.commits)
    assert len(remembered.commits) == min(REMEMBERED, LARGEST // (16 * members + 144))


def test_a_commit_of_more_members_than_a_memory_may_have_bytes_is_remembered_alone():
    before = RememberedCommits(0, ()).adding(RememberedCommit("0f" * 16, 1, 1, 1, "A" * 16))
    remembered = before.adding(RememberedCommit("1e" * 16, 2, 2, 2, "A" * 16 * 20_000))
    assert [commit.snapshot_id for commit in remembered.commits] == [2]
    assert remembered.since == 1


# -- tables ---------------------------------------------------------------------------------------------------------------


def test_a_table_that_does_not_exist_is_named_with_what_to_do(world):
    world.create_table()
    with pytest.raises(TableMissingError, match=r"shop\.nothing does not exist .*Create it first"):
        world.as_table("shop.nothing").binding()


def test_a_namespace_that_does_not_exist_has_no_table(world):
    with pytest.raises(TableMissingError, match=r"nowhere\.nothing"):
        world.as_table("nowhere.nothing").binding()


@pytest.mark.parametrize("name", ["orders", "", ".orders", "shop.", "shop..orders"])
def test_a_name_without_a_namespace_is_refused(world, name):
    with pytest.raises(InvalidInputError, match=r"namespace\.table"):
        world.as_table(name)


def test_a_version_1_table_is_refused_with_how_to_upgrade_it(world):
    world.create_table(properties={"format-version": "1"})
    with pytest.raises(UnsupportedTableError, match=r"shop\.orders has format version 1.*upgrade_table_version\(2\)"):
        world.as_table().binding()
    with world.table().transaction() as transaction:
        transaction.upgrade_table_version(2)
    append(world, rows(0, 10))
    assert world.ids() == list(range(10))


def test_a_version_3_table_is_refused(world):
    table = world.create_table()
    metadata = Path(table.metadata_location.removeprefix("file://"))
    facts = json.loads(metadata.read_text())
    metadata.write_text(json.dumps(facts | {"format-version": 3, "next-row-id": 0}))
    with pytest.raises(UnsupportedTableError, match=r"shop\.orders has format version 3.*Use a v2 table"):
        world.as_table().binding()


@pytest.mark.parametrize("file_format", ["orc", "avro"])
def test_a_table_of_other_files_than_parquet_is_refused(world, file_format):
    world.create_table(properties={"write.format.default": file_format})
    with pytest.raises(UnsupportedTableError, match=f"shop.orders wants {file_format} files"):
        world.as_table().binding()


def test_rows_that_do_not_fit_are_refused_before_any_is_read(world):
    world.create_table()
    columns = world.as_table().state(world.as_table().binding()).columns
    with pytest.raises(SchemaMismatchError, match=r"shop\.orders") as refused:
        columns.require_fit(pa.schema([("id", pa.string()), ("extra", pa.int8())]))
    assert "column 'id' is string, the table has int64" in str(refused.value)
    assert "column 'extra' is not in the table" in str(refused.value)
    columns.require_fit(rows(0, 1).schema)


def test_a_table_that_was_dropped_and_created_anew_is_another_table(world):
    world.create_table()
    old = header_of(world.as_table())
    world.catalog.drop_table("shop.orders")
    world.create_table()
    with pytest.raises(TableMissingError, match=r"shop\.orders was dropped and created anew"):
        writer_of(world.as_table(), old)


def test_all_attempts_write_with_the_schema_and_spec_that_were_bound(world):
    world.create_table()
    bound = header_of(world.as_table())
    with world.table().update_schema() as update:
        update.add_column("added", StringType())
    with world.table().update_spec() as update:
        update.add_identity("kind")
    writer = writer_of(world.as_table(), bound)
    assert writer.schema.names == ["id", "value", "kind", "at"]
    written = writer.write(rows(0, 10).to_batches(), "ckpt-x")
    commit(world, [written])
    append(world, rows(10, 10))
    assert world.ids() == list(range(20))
    assert {task.file.spec_id for task in world.table().scan().plan_files()} == {0, 1}


# -- commits --------------------------------------------------------------------------------------------------------------


def test_an_append_is_one_snapshot_whose_summary_counts_what_was_added(world):
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind"))
    world.create_table(spec=spec)
    written = write(world, rows(0, 100), rows(100, 50), rows(150, 0))
    snapshot = commit(world, written).current_snapshot()
    assert len(world.table().snapshots()) == 1
    assert {
        name: snapshot.summary[name] for name in ("added-records", "added-data-files", "total-records", "changed-partition-count")
    } == {
        "added-records": "150",
        "added-data-files": "6",
        "total-records": "150",
        "changed-partition-count": "3",
    }
    assert snapshot.summary["added-files-size"] == str(sum(one.bytes for one in written))
    assert [manifest.added_rows_count for manifest in snapshot.manifests(world.table().io)] == [100, 50]


def test_appends_pile_up_with_those_of_others(world):
    world.create_table()
    append(world, rows(0, 10))
    world.table().append(rows(10, 10).cast(arrow_schema(SCHEMA)))
    append(world, rows(20, 10))
    assert world.ids() == list(range(30))
    assert [snapshot.summary["total-records"] for snapshot in world.table().snapshots()] == ["10", "20", "30"]


def test_totals_that_disagree_with_the_manifests_are_not_committed(world):
    world.create_table()
    (written,) = write(world, rows(0, 10))
    with pytest.raises(RowCountError, match=r"11 rows are sealed for shop\.orders, but the staged manifests hold 10"):
        commit(world, [written._replace(rows=11)])
    assert world.table().snapshots() == []


def test_a_commit_loads_the_table_once_and_the_catalog_does_once_more(world, monkeypatch):
    world.create_table()
    world.put_files(2, 10)
    attempt = world.stage()
    load_table, loads = SqlCatalog.load_table, []
    monkeypatch.setattr(SqlCatalog, "load_table", lambda catalog, name: loads.append(name) or load_table(catalog, name))
    world.commit(attempt)
    assert len(loads) == 2
    assert world.ids() == list(range(20))


@pytest.mark.parametrize("damage", ["data file gone", "data file cut", "manifest gone"])
def test_a_staged_file_that_is_gone_or_cut_is_named_before_a_commit(world, damage):
    world.create_table()
    written, other = write(world, rows(0, 10), rows(10, 10))
    uri = written.manifest["path"] if damage == "manifest gone" else written.files[0].path
    path = Path(uri.removeprefix("file://"))
    if damage == "data file cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(StagedFileMissingError, match=f"1 of 4 staged files of shop.orders are gone or damaged, for instance {uri}"):
        require_files([sealed_of(world.as_table(), [written, other])], world.as_table())
    require_files([sealed_of(world.as_table(), [other])], world.as_table())


def test_the_bounds_of_partitions_travel_with_the_manifest(world):
    schema = Schema(NestedField(1, "n", LongType()))
    world.create_table("shop.ours", schema, PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "n")))
    (written,) = write(world, pa.table({"n": [3, None, -1]}), name="shop.ours")
    staged = StagedManifest.from_json(written.manifest)
    (summary,) = staged.summaries
    assert (summary.contains_null, base64.b64decode(summary.lower)[0], base64.b64decode(summary.upper)[0]) == (True, 0xFF, 3)
    assert staged.partitions == ("n=-1", "n=3", "n=null")
