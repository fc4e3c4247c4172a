"""Each split of an upsert by itself: what it reads, what it leaves alone, what it writes where, and what it refuses."""

from __future__ import annotations

import datetime as dt
import itertools

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, ListType, LongType, NestedField, StringType, TimestampType
from support.replacing import new_table
from support.upserting import add_rows, live_files, rows_of, upsert, upsert_writer, written_files

from airflow_ckpt_provider.exceptions import DuplicateKeyError, InvalidInputError, NullInRequiredColumnError, SchemaMismatchError
from airflow_ckpt_provider.scan.iceberg import IcebergScan
from airflow_ckpt_provider.tables.iceberg.upsert import matched_rows, merge
from airflow_ckpt_provider.tables.iceberg.upsert.keys import key_columns
from airflow_ckpt_provider.tables.iceberg.upsert.plan import plan_matches
from airflow_ckpt_provider.tables.keys import key_batches
from airflow_ckpt_provider.tables.keys.key_batches import buckets_for

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "value", DoubleType()),
    NestedField(4, "region", StringType()),
)


def rows(ids, value: float = 0.0, region: str = "eu") -> pa.RecordBatch:
    ids = list(ids)
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([None if n is None else f"name-{n:06d}" for n in ids], pa.string()),
            "value": pa.array([value] * len(ids), pa.float64()),
            "region": pa.array([region] * len(ids), pa.string()),
        }
    )


def values(found) -> dict[int, float]:
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["value"] for row in found}


def files_of(root) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file() and path.name.startswith("ckpt-u")}


@pytest.fixture
def table(tmp_path):
    """Four files of a hundred ids each."""
    table = new_table(tmp_path, SCHEMA)
    add_rows(table, *([rows(range(start, start + 100))] for start in range(0, 400, 100)))
    return table


def test_only_files_with_a_changed_row_are_rewritten(table):
    done = upsert(table, ["id"], [[rows([5, 1000], 1.0), rows([205], 2.0)], [rows([206], 0.0)]])
    assert done.replaced == {done.targets[0].path, done.targets[2].path}
    assert done.counts == {"updated": 2, "unchanged": 1, "inserted": 1}
    assert values(done.rows) == dict.fromkeys(range(400), 0.0) | {5: 1.0, 205: 2.0, 1000: 1.0}


def test_a_file_in_which_nothing_changes_stays_and_its_rows_are_not_inserted(table):
    done = upsert(table, ["id"], [[rows(range(50, 150))]])
    assert done.replaced == set()
    assert done.counts == {"unchanged": 100}
    assert all(not written.files for written in done.inserted)


def test_files_are_passed_over_by_their_bounds(table):
    done = upsert(table, ["id", "region"], [[rows([150], 1.0)], [rows([350], 1.0)]])
    assert done.matched_paths == [done.targets[1].path, done.targets[3].path]


def test_files_between_the_keys_of_two_splits_are_passed_over(table):
    done = upsert(table, ["name"], [[rows([50, 60])], [rows([350, 360])]])
    assert done.matched_paths == [done.targets[0].path, done.targets[3].path]


def test_a_source_of_null_keys_asks_for_files_with_nulls_only(table):
    add_rows(table, [rows([None])])
    done = upsert(table, ["id"], [[rows([None], 1.0)]])
    assert done.matched_paths == [done.targets[4].path]
    assert done.counts == {"updated": 1}


def test_files_that_came_later_are_matched_if_they_can_hold_a_key(table):
    add_rows(table, [rows([1000, 1001])], [rows([5000])])
    record = upsert_writer(table, ["id"]).write_source([rows([900, 1001])], "ckpt-u").intermediate
    head = table.current_snapshot().snapshot_id
    found = list(plan_matches(table, head, ["id"], [record], table.schema().schema_id))
    assert [scanned.file.rows for scanned in found] == [2]


def test_files_of_an_identity_partition_are_passed_over_by_their_partition(tmp_path):
    spec = PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "region"))
    table = new_table(tmp_path, SCHEMA, spec, {"write.metadata.metrics.default": "none"})
    add_rows(table, [rows(range(10), region="eu")], [rows(range(10), region="us")], [rows(range(10), region=None)])
    writer = upsert_writer(table, ["region", "id"])
    for region in ("us", None):
        record = writer.write_source([rows([3], 1.0, region)], f"ckpt-u{region}").intermediate
        head = table.current_snapshot().snapshot_id
        found = list(plan_matches(table, head, ["region", "id"], [record], table.schema().schema_id))
        assert [row["region"] for scanned in found for row in rows_of(IcebergScan(table), scanned.file)] == [region] * 10


def test_a_row_whose_partition_changes_moves(tmp_path):
    spec = PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "region"))
    table = new_table(tmp_path, SCHEMA, spec)
    add_rows(table, [rows(range(10), region="eu")], [rows(range(10, 20), region="us")])
    done = upsert(table, ["id"], [[rows([3], 1.0, "us"), rows([4], 1.0, "asia")]])
    (written,) = [written for _, written in done.matched if written.replaces]
    assert sorted(path.split("region=")[1].split("/")[0] for path in (file.path for file in written.files)) == ["asia", "eu", "us"]
    moved = {row["id"]: row["region"] for row in done.rows if row["value"] == 1.0}
    assert moved == {3: "us", 4: "asia"}


def test_several_target_rows_with_one_key_are_all_updated(tmp_path):
    table = new_table(tmp_path, SCHEMA, PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "part")))
    add_rows(table, [rows([1, 2]), rows([1])], [rows([1, 3])])
    done = upsert(table, ["id"], [[rows([1, 9], 5.0)]])
    assert sorted((row["id"], row["value"]) for row in done.rows) == [(1, 5.0), (1, 5.0), (1, 5.0), (2, 0.0), (3, 0.0), (9, 5.0)]
    assert done.counts == {"updated": 3, "inserted": 1}


def test_an_empty_table_takes_all_rows(tmp_path):
    table = new_table(tmp_path, SCHEMA)
    done = upsert(table, ["id"], [[rows(range(5))], []])
    assert done.matched == []
    assert done.counts == {"inserted": 5}
    assert done.sources[1].intermediate is None


def test_with_matched_rows_ignored_no_file_is_rewritten_and_only_keys_are_read(table, tmp_path):
    done = upsert(table, ["id"], [[rows([5, 1000], 1.0)]], update=False)
    assert done.replaced == set()
    assert values(done.rows) == dict.fromkeys(range(400), 0.0) | {1000: 1.0}


def test_with_other_rows_ignored_nothing_is_inserted_and_no_sidecar_is_written(table):
    done = upsert(table, ["id"], [[rows([5, 1000], 1.0)]], insert=False)
    assert {written.intermediate for _, written in done.matched} == {None}
    assert values(done.rows) == dict.fromkeys(range(400), 0.0) | {5: 1.0}


def test_duplicates_are_refused_with_examples_also_across_splits_and_buckets(table):
    splits = [[rows([1, 2, 3, 7])], [rows([7, 8, 1]), rows([7])]]
    writer = upsert_writer(table, ["id", "name"], buckets=5)
    records = [writer.write_source(split, f"ckpt-u{number}").intermediate for number, split in enumerate(splits)]
    messages = []
    for bucket in range(5):
        try:
            writer.check_unique(bucket, records)
        except DuplicateKeyError as error:
            messages.append(str(error))
    said = "\n".join(messages)
    assert "('id', 'name')" in said
    assert "(1, 'name-000001'): 2 rows" in said
    assert "(7, 'name-000007'): 3 rows" in said
    assert "(8," not in said


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "shown"),
    [
        (DoubleType(), pa.float64(), float("nan"), "(nan): 2 rows"),
        (DoubleType(), pa.float64(), 0.5, "(0.5): 2 rows"),
        (LongType(), pa.int64(), None, "(null): 2 rows"),
        (TimestampType(), pa.timestamp("us"), dt.datetime(2026, 1, 1, 12), "(2026-01-01T12:00:00): 2 rows"),  # noqa: DTZ001
        (StringType(), pa.string(), "x" * 500, "x" * 70 + "...): 2 rows"),
    ],
)
def test_an_example_is_shown_as_a_person_writes_it(tmp_path, kind, arrow, value, shown):
    table = new_table(tmp_path, Schema(NestedField(1, "k", kind)))
    with pytest.raises(DuplicateKeyError) as raised:
        upsert(table, ["k"], [[pa.record_batch({"k": pa.array([value, value], arrow)})]])
    assert shown.replace("x" * 70, "x" * 70) in str(raised.value)


def test_a_source_in_which_most_keys_are_null_is_refused_before_it_fills_the_memory(table, monkeypatch):
    monkeypatch.setattr(key_batches, "PORTION_BYTES", 1000)
    loaded = []
    joined = key_batches._joined
    monkeypatch.setattr(key_batches, "_joined", lambda parts, columns: loaded.append(len(parts)) or joined(parts, columns))
    splits = [[rows([None] * 20)] for _ in range(100)]
    with pytest.raises(DuplicateKeyError):
        upsert(table, ["id"], splits)
    assert max(loaded) < 10


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([], "not a list of column names"),
        ("id", "not a list of column names"),
        (["id", "id"], "'id' more than once"),
        (["nope"], "'nope', which the table shop.orders does not have at its top level. Its columns are: id, tags"),
        (["tags"], "'tags' of shop.orders is a list<string>"),
    ],
)
def test_keys_that_cannot_be_are_refused(keys, said):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "tags", ListType(3, StringType(), element_required=False)))
    with pytest.raises(InvalidInputError, match=said):
        key_columns(schema, keys, "shop.orders")


def test_source_rows_are_brought_to_the_table_s_types(tmp_path):
    table = new_table(tmp_path, Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "value", DoubleType())))
    add_rows(table, [pa.record_batch({"id": pa.array([1, 2]), "value": pa.array([0.0, 0.0])})])
    small = pa.record_batch({"value": pa.array([0.5, 0.5], pa.float32()), "id": pa.array([1, 3], pa.int16())})
    done = upsert(table, ["id"], [[small]])
    assert values(done.rows) == {1: 0.5, 2: 0.0, 3: 0.5}


def test_rows_that_do_not_fit_are_refused_and_leave_no_file(table, tmp_path):
    writer = upsert_writer(table, ["id"])
    wrong = pa.record_batch({"id": pa.array([1]), "other": pa.array([1])})
    with pytest.raises(SchemaMismatchError, match="other"):
        writer.write_source(itertools.chain([rows([1])] * 3, [wrong]), "ckpt-u")
    assert files_of(tmp_path) == set()


def test_a_null_in_a_required_key_is_refused(tmp_path):
    table = new_table(tmp_path, Schema(NestedField(1, "id", LongType(), required=True)))
    with pytest.raises(NullInRequiredColumnError, match="'id'"):
        upsert(table, ["id"], [[pa.record_batch({"id": pa.array([None], pa.int64())})]])


def test_a_match_that_fails_leaves_no_file(table, tmp_path):
    writer = upsert_writer(table, ["id"])
    record = writer.write_source([rows([5], 1.0)], "ckpt-uS").intermediate
    (target, *_) = [scanned.file for scanned in live_files(table)]
    table.io.delete(target.path)
    before = files_of(tmp_path)
    with pytest.raises(FileNotFoundError):
        writer.match([target], [record], "ckpt-uM")
    assert files_of(tmp_path) == before


def test_a_split_that_lost_its_race_removes_all_it_wrote(table, tmp_path):
    writer = upsert_writer(table, ["id"])
    source = writer.write_source([rows([5], 1.0)], "ckpt-uS")
    (target, *_) = [scanned.file for scanned in live_files(table)]
    before = files_of(tmp_path)
    matched = writer.match([target], [source.intermediate], "ckpt-uM")
    assert len(files_of(tmp_path) - before) == 3  # the file, its manifest, and the sidecar
    writer.remove(matched)
    assert files_of(tmp_path) == before
    writer.remove(source)
    assert files_of(tmp_path) == set()


def test_every_file_is_named_after_its_split(table, tmp_path):
    def names() -> set[str]:
        return {path.name for path in tmp_path.rglob("*") if path.is_file()}

    before = names()
    done = upsert(table, ["id"], [[rows([5, 1000], 1.0)]], stem="ckpt-u")
    ((group, _),) = done.matched
    rewritten = group.paths.index(done.targets[0].path)
    assert sorted(names() - before) == [
        "ckpt-u-i0-00000.parquet",
        "ckpt-u-i0.avro",
        f"ckpt-u-m0-f{rewritten}-00000.parquet",
        "ckpt-u-m0-matched.parquet",
        "ckpt-u-m0.avro",
        "ckpt-u-s0-source.parquet",
    ]


def test_a_renamed_and_an_added_column_and_a_wider_key(tmp_path):
    table = new_table(tmp_path, Schema(NestedField(1, "id", IntegerType()), NestedField(2, "old name", StringType())))
    add_rows(table, [pa.record_batch({"id": pa.array([1, 2, 3], pa.int32()), "old name": pa.array(["a", "b", "c"])})])
    with table.update_schema() as update:
        update.rename_column("old name", "new name")
        update.add_column("more", LongType())
        update.update_column("id", LongType())
    source = pa.record_batch(
        {"id": pa.array([2, 2**40]), "new name": pa.array(["b", "z"]), "more": pa.array([None, 7], pa.int64())}
    )
    done = upsert(table, ["id"], [[source]])
    assert done.counts == {"unchanged": 1, "inserted": 1}
    changed = upsert(table, ["id"], [[source.set_column(2, "more", pa.array([5, 7]))]], stem="ckpt-u2")
    assert changed.counts == {"updated": 1, "inserted": 1}
    assert {row["id"]: (row["new name"], row["more"]) for row in changed.rows} == {
        1: ("a", None),
        2: ("b", 5),
        3: ("c", None),
        2**40: ("z", 7),
    }


@pytest.mark.parametrize("buckets", [1, 3])
def test_keys_in_many_portions_and_rows_that_were_spilled_give_the_same(table, monkeypatch, buckets):
    monkeypatch.setattr(key_batches, "PORTION_BYTES", 2000)
    monkeypatch.setattr(matched_rows, "HELD_BYTES", 300)
    monkeypatch.setattr(merge, "_BYTES", 300)
    splits = [[rows([n for n in range(0, 800, 2) if n % 7 == split], split + 1.0)] for split in range(7)]
    done = upsert(table, ["id", "name"], splits, buckets=buckets)
    assert values(done.rows) == dict.fromkeys(range(400), 0.0) | {n: n % 7 + 1.0 for n in range(0, 800, 2)}
    assert done.counts == {"updated": 200, "inserted": 200}


def test_rewritten_rows_keep_their_order(table):
    done = upsert(table, ["id"], [[rows([50], 1.0)]])
    ((_, written),) = done.matched
    assert [row["id"] for file in written_files(table, written) for row in rows_of(IcebergScan(table), file)] == list(range(100))


def test_buckets_grow_with_the_source():
    assert [buckets_for(size) for size in (0, 1, 128 << 20, (128 << 20) + 1, 1 << 50)] == [1, 1, 1, 2, 64]
