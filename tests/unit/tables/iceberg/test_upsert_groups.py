"""Which files of a table an upsert matches together, what a plan says of them, and what becomes of each of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from support.replacing import delete_positions, new_table
from support.upserting import add_rows, live_files, rows_of, upsert, upsert_writer, written_files

from airflow_ckpt_provider.checkpoint.documents import part_of
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.scan.data_files import DeleteFile, ScanFile
from airflow_ckpt_provider.scan.iceberg import IcebergScan, Scanned
from airflow_ckpt_provider.tables.iceberg.upsert.grouping import FileGroup, GroupSize, grouped
from airflow_ckpt_provider.tables.keys import key_batches

GOLDEN = Path(__file__).parent / "golden" / "iceberg_file_group.json"

MIB = 1 << 20

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "value", StringType()))


def rows(ids, value: str = "old") -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(list(ids), pa.int64()), "value": pa.array([value] * len(ids), pa.string())})


def scanned(name: str, size: int = 1, partition: int | None = None, deletes=(), **facts) -> Scanned:
    """A file of a snapshot, as far as groups depend on it."""
    file = ScanFile(path=f"s3://warehouse/{name}", bytes=size, rows=1, deletes=tuple(deletes), **({"spec_id": 0} | facts))
    return Scanned(file, SimpleNamespace(data_file=SimpleNamespace(partition=Record(partition))))


def paths_of(groups) -> set[frozenset[str]]:
    return {frozenset(group.paths) for group in groups}


# -- which files are matched together ----------------------------------------------------------------------------------------


#: Files by their names: bytes and partition.
FILES = st.dictionaries(st.integers(0, 10**6).map(str), st.tuples(st.integers(1, 100), st.integers(0, 4)), min_size=1, max_size=300)


@settings(max_examples=150, deadline=None)
@given(files=FILES, data=st.data(), size=st.builds(GroupSize, st.integers(1, 400), st.integers(1, 20)))
def test_a_file_that_is_added_or_removed_changes_no_group_but_its_own(files, data, size):
    names = sorted(files)
    changed = data.draw(st.sampled_from(names))
    with_it = {group.id: set(group.paths) for group in grouped((scanned(name, *files[name]) for name in names), size)}
    others = [scanned(name, *files[name]) for name in reversed(names) if name != changed]
    without = {group.id: set(group.paths) for group in grouped(others, size)}
    assert sorted(path for paths in with_it.values() for path in paths) == sorted(f"s3://warehouse/{name}" for name in names)
    # Added: of all groups that there were, at most one is planned anew, in parts.
    gone, new = [without[one] for one in without.keys() - with_it.keys()], [with_it[one] for one in with_it.keys() - without.keys()]
    assert {path for paths in new for path in paths} - {f"s3://warehouse/{changed}"} == {path for paths in gone for path in paths}
    assert len(gone) <= 1
    # Removed: what is planned anew is one group, and no more than one split reads.
    for paths in gone:
        assert len(paths) == 1 or sum(size.weight(files[path.rpartition("/")[2]][0]) for path in paths) <= size.target


def test_small_files_share_groups_and_large_ones_do_not():
    small = [scanned(f"small-{number}", 10_000) for number in range(2000)]
    large = [scanned(f"large-{number}", 65 * MIB) for number in range(100)]
    groups = list(grouped([*small, *large], GroupSize()))
    alone = [group for group in groups if len(group.names) == 1]
    # A small file counts as what it costs to open it: 32 of them are a group, if all are full.
    assert len(alone) == 100
    assert 2000 / 32 <= len(groups) - 100 <= 2000 / 12
    assert max(len(group.names) for group in groups) <= 32
    assert len(list(grouped(small, GroupSize(open_cost=1)))) == 2


def test_files_of_a_partition_are_matched_together():
    files = [scanned(f"{partition}-{number}", 1, partition) for number in range(16) for partition in range(64)]
    groups = list(grouped(files, GroupSize(16, 1)))
    partitions = [{path.rpartition("/")[2].partition("-")[0] for path in group.paths} for group in groups]
    assert all(len(group) == 1 for group in partitions)
    assert len(groups) == 64


def test_a_group_has_one_partition_spec_and_one_format():
    kinds = [("PARQUET", 0), ("PARQUET", 1), ("ORC", 0)]
    files = [scanned(f"{number}", format=kinds[number % 3][0], spec_id=kinds[number % 3][1]) for number in range(30)]
    assert sorted((group.format, group.spec_id, len(group.names)) for group in grouped(files, GroupSize())) == [
        ("ORC", 0, 10),
        ("PARQUET", 0, 10),
        ("PARQUET", 1, 10),
    ]


def test_a_row_that_is_deleted_from_a_file_changes_the_id_of_its_group_only():
    files = [scanned(f"{number}") for number in range(500)]
    before = {group.id: group for group in grouped(files, GroupSize())}
    files[77] = scanned("77", deletes=[DeleteFile("s3://warehouse/d.puffin", 7, "PUFFIN")])
    after = {group.id: group for group in grouped(files, GroupSize())}
    (gone,), (new,) = before.keys() - after.keys(), after.keys() - before.keys()
    assert before[gone].paths == after[new].paths
    assert len(after) > 10


def test_the_size_of_groups_is_that_of_the_tables_properties():
    assert GroupSize.of({}) == GroupSize(128 * MIB, 4 * MIB)
    assert GroupSize.of({"read.split.target-size": "1000", "read.split.open-file-cost": "0"}) == GroupSize(1000, 1)
    # Opening a file may be called free; that a retry repeats a split is not.
    assert max(len(group.names) for group in grouped([scanned(f"{n}") for n in range(5000)], GroupSize(128 * MIB, 1))) <= 1024


# -- what a plan says of them ------------------------------------------------------------------------------------------------


GROUP = FileGroup.of(
    [
        ScanFile(path="s3://warehouse/data/day=1/a.orc", bytes=7, rows=3, spec_id=1, format="ORC", constants=((4, "2026-01-01"),)),
        ScanFile(
            path="s3://warehouse/data/day=2/b.orc", bytes=8, rows=4, spec_id=1, format="ORC", constants=((4, "2026-01-02"),),
            deletes=(DeleteFile("s3://warehouse/data/d.puffin", 9, "PUFFIN"),),
        ),
    ]
)  # fmt: skip


def test_a_group_is_stored_and_named_as_it_always_was():
    golden = GOLDEN.read_bytes().strip()
    assert msgspec.json.encode(GROUP) == golden
    assert part_of(json.loads(golden), FileGroup) == GROUP
    assert GROUP.id == "d6076869c96e68ee"


_CONSTANTS = st.sampled_from([(), ((4, "a"),), ((4, "b"), (5, 7))])
_DELETES = st.lists(st.sampled_from([DeleteFile(f"s3://d/{n}", n, "PARQUET") for n in range(4)]), unique=True, max_size=3)


_DRAWN = st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), _CONSTANTS, _DELETES)


@settings(max_examples=100, deadline=None)
@given(st.lists(_DRAWN, min_size=1, unique_by=lambda file: file[:2]))
def test_a_group_gives_back_the_files_that_it_was_made_of(drawn):
    files = [
        ScanFile(path=f"{folder}/{name}", bytes=name, rows=3, spec_id=0, constants=constants, deletes=tuple(deletes))
        for folder, name, constants, deletes in drawn
    ]
    stored = msgspec.json.decode(msgspec.json.encode(FileGroup.of(files)))
    assert part_of(stored, FileGroup).files() == files


@pytest.mark.parametrize(
    "forged",
    [
        {"names": []},
        {"names": ["day=1/a.orc", "day=1/a.orc"]},
        {"bytes": [7]},
        {"rows": [7, -1]},
        {"constants_of": [0]},
        {"constants_of": [0, 2]},
        {"deletes_of": [[2, [0]]]},
        {"deletes_of": [[1, [1]]]},
    ],
    ids=str,
)
def test_a_group_that_no_plan_of_ours_has_is_refused(forged):
    with pytest.raises(CorruptObjectError, match="cannot be read"):
        part_of(msgspec.to_builtins(GROUP) | forged, FileGroup)


# -- what becomes of each file -----------------------------------------------------------------------------------------------


def test_each_file_of_a_group_is_rewritten_by_itself_and_only_if_a_row_of_it_changes(tmp_path):
    table = new_table(tmp_path, SCHEMA)
    add_rows(table, *([rows(range(start, start + 10))] for start in range(0, 50, 10)))
    done = upsert(table, ["id"], [[rows([5, 31, 49, 70], "new")], [rows([12], "old")]])
    ((_, written),) = done.matched
    assert done.replaced == {done.targets[number].path for number in (0, 3, 4)}
    assert written.counts == {"updated": 3, "unchanged": 1}
    # Rows that lay together still do, in their order.
    kept = {tuple(row["id"] for row in rows_of(IcebergScan(table), file)) for file in written_files(table, written)}
    assert kept == {tuple(range(start, start + 10)) for start in (0, 30, 40)}
    assert {row["id"]: row["value"] for row in done.rows} == dict.fromkeys(range(50), "old") | dict.fromkeys((5, 31, 49, 70), "new")


def test_files_of_one_group_may_have_other_columns_types_deletes_and_partitions(tmp_path):
    table = new_table(tmp_path, Schema(NestedField(1, "id", IntegerType()), NestedField(2, "kind", StringType())))
    table = _partitioned(table)
    for kind, ids in (("a", [1, 2, 3]), ("b", [4, 5, 6])):
        add_rows(table, [pa.record_batch({"id": pa.array(ids, pa.int32()), "kind": [kind] * 3})])
    with table.update_schema() as update:
        update.update_column("id", LongType())
        update.add_column("more", LongType())
    add_rows(table, [pa.record_batch({"id": pa.array([7, 8], pa.int64()), "kind": ["a"] * 2, "more": pa.array([7, 8])})])
    delete_positions(table, live_files(table)[0].file.path, [1])
    source = pa.record_batch({"id": pa.array([2, 3, 5, 8]), "kind": ["a", "a", "c", "a"], "more": pa.array([None, 30, 50, 8])})
    done = upsert(table, ["id"], [[source]])
    assert len(done.matched) == 1
    assert len(done.matched_paths) == 3
    assert done.counts == {"updated": 2, "unchanged": 1, "inserted": 1}
    found = sorted((row["id"], row["kind"], row["more"]) for row in done.rows)
    assert [row[:2] for row in found] == [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "c"), (6, "b"), (7, "a"), (8, "a")]
    assert [row[2] for row in found] == [None, None, 30, None, 50, None, 7, 8]


def _partitioned(table):
    with table.update_spec() as update:
        update.add_field("kind", IdentityTransform(), "kind")
    assert table.spec().fields
    return table


def test_a_match_that_fails_at_a_later_file_leaves_none_of_the_earlier_ones(tmp_path, monkeypatch):
    table = new_table(tmp_path, SCHEMA)
    add_rows(table, *([rows(range(start, start + 10))] for start in range(0, 50, 10)))
    writer = upsert_writer(table, ["id"])
    record = writer.write_source([rows(range(50), "new")], "ckpt-uS").intermediate
    files = [one.file for one in live_files(table)]
    before = {path.name for path in tmp_path.rglob("ckpt-u*")}
    data = files[3].path.removeprefix("file://")

    class Lost(IcebergScan):
        def read(self, file, first_group=0):
            if file == files[3]:
                Path(data).unlink(missing_ok=True)
            return super().read(file, first_group)

    # The storage loses the file when its rows are read, after its keys.
    monkeypatch.setattr(writer, "_read_all", Lost(table))
    with pytest.raises(FileNotFoundError):
        writer.match(files, [record], "ckpt-uM")
    assert {path.name for path in tmp_path.rglob("ckpt-u*")} == before


def test_files_are_searched_one_by_one_where_that_reads_fewer_keys(tmp_path, monkeypatch):
    """Sources of ordered keys, each of which one file of the group can hold: no file is searched for the keys of all."""
    monkeypatch.setattr(key_batches, "PORTION_BYTES", 3000)
    table = new_table(tmp_path, SCHEMA)
    add_rows(table, *([rows(range(start, start + 100))] for start in range(0, 400, 100)))
    splits = [[rows(range(start, start + 100, 2), "new")] for start in range(0, 2000, 100)]
    done = upsert(table, ["id"], splits, buckets=4)
    assert len(done.matched) == 1
    assert done.counts == {"updated": 200, "inserted": 800}
    expected = {n: "new" if n % 2 == 0 else "old" for n in range(400)} | dict.fromkeys(range(400, 2000, 2), "new")
    assert {row["id"]: row["value"] for row in done.rows} == expected
