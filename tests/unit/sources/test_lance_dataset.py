"""The source ``LanceDataset`` at a pinned version: what a plan pins, what a retry reads, and what is refused before Spark."""

from __future__ import annotations

import json
import os
import shutil
from datetime import timedelta
from pathlib import Path

import lance
import msgspec
import pyarrow as pa
import pytest
from support.reading import read_all, read_split

from airflow_ckpt_provider.checkpoint.documents import Plan, from_json, to_json
from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError, RetryableError
from airflow_ckpt_provider.scan import lance as reading
from airflow_ckpt_provider.scan import lance_windows
from airflow_ckpt_provider.sources import LanceDataset, Source
from airflow_ckpt_provider.sources.protocol import IncrementalSource

VECTOR = pa.list_(pa.float32(), 4)


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "d.lance")


def rows(start, count):
    ids = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": pa.array([f"kind-{n % 3}" for n in ids]),
            "vector": pa.array([[n, n / 2, 0.0, 1.0] if n % 5 else None for n in ids], VECTOR),
        }
    )


def make(uri, *counts):
    """A dataset with a fragment of each of these numbers of rows, with the ids from 0 on."""
    start = 0
    for count in counts:
        lance.write_dataset(rows(start, count), uri, mode="append" if start else "create")
        start += count
    return lance.dataset(uri)


def ids(source):
    return sorted(row["id"] for row in read_all(source))


def ids_of_plan(source, plan):
    return sorted(row["id"] for split in plan.splits for row in read_split(source, split))


def stored(plan):
    """The plan as a retry finds it in the store."""
    return from_json("plan.json.zst", to_json("plan.json.zst", plan), Plan)


def test_it_is_a_source_that_is_not_incremental(uri):
    assert isinstance(LanceDataset(uri), Source)
    assert not isinstance(LanceDataset(uri), IncrementalSource)
    assert set(LanceDataset.template_fields) == {"uri", "version", "filter", "columns"}


def appended(uri):
    lance.write_dataset(rows(100, 10), uri, mode="append")


def deleted(uri):
    lance.dataset(uri).delete("id < 8")


def updated(uri):
    lance.dataset(uri).update({"id": "id + 1000"})


def compacted(uri):
    lance.dataset(uri).optimize.compact_files()


def overwritten(uri):
    lance.write_dataset(rows(500, 3), uri, mode="overwrite")


def other_columns(uri):
    dataset = lance.dataset(uri)
    dataset.drop_columns(["kind"])
    dataset.alter_columns({"path": "id", "name": "number"})
    dataset.add_columns({"id": "cast(-1 as bigint)"})


def restored(uri):
    lance.dataset(uri, version=1).restore()


MOVES = [appended, deleted, updated, compacted, overwritten, other_columns, restored]


@pytest.mark.parametrize("move", MOVES)
def test_a_retry_reads_the_pinned_version_however_the_dataset_moved_on(uri, move):
    make(uri, 10, 10).delete("id = 3")
    source = LanceDataset(uri, max_split_bytes=1)
    plan = stored(source.plan({}))
    before = [row for split in plan.splits for row in read_split(source, split)]
    assert sorted(row["id"] for row in before) == [0, 1, 2, *range(4, 20)]
    move(uri)
    assert lance.dataset(uri).version > plan.source["version"]
    source.verify(plan.splits, {})
    assert [row for split in plan.splits for row in read_split(source, split)] == before
    assert source.schema(plan, {}) == rows(0, 1).schema


def test_a_plan_says_what_it_pinned_and_holds_no_secret(uri):
    dataset = make(uri, 10, 5)
    source = LanceDataset(uri, filter="id < 12", columns=["id"])
    plan = source.plan({"secret_access_key": "hidden"})
    sizes = sum(file.file_size_bytes for one in dataset.get_fragments() for file in one.metadata.files)
    made_at = plan.source.pop("made_at")
    assert plan.source == {
        "kind": "lance",
        "dataset": f"file://{uri}",
        "version": 2,
        "fragments": 2,
        "bytes": sizes,
        "filter": "id < 12",
    }
    assert sum(split.bytes for split in plan.splits) == sizes
    assert {split.read["made_at"] for split in plan.splits} == {made_at}
    assert b"hidden" not in msgspec.json.encode(plan)
    assert source.describe() == {"lance": f"file://{uri}", "filter": "id < 12", "columns": ["id"]}
    assert ids_of_plan(source, plan) == list(range(12))


def test_a_description_is_json_and_tells_apart_what_reads_other_rows(uri):
    sources = [
        LanceDataset(uri),
        LanceDataset(uri, version=1),
        LanceDataset(uri, filter="id = 1"),
        LanceDataset(uri, columns=["id"]),
        LanceDataset(uri, columns=["id", "kind"]),
        LanceDataset(uri + "2"),
    ]
    assert len({json.dumps(source.describe(), sort_keys=True) for source in sources}) == len(sources)
    # A template renders to text.
    assert LanceDataset(uri, version="1").describe() == LanceDataset(uri, version=1).describe()


def test_small_fragments_share_a_split_and_a_large_one_stands_alone(uri):
    dataset = make(uri, 10, 10, 10, 10, 5000, 10)
    small = dataset.get_fragments()[0].metadata.files[0].file_size_bytes
    plan = LanceDataset(uri, max_split_bytes=small * 3 + 200).plan({})
    assert [list(split.read["fragments"]) for split in plan.splits] == [[0, 1, 2], [3], [4], [5]]
    assert len(LanceDataset(uri, max_split_bytes=1).plan({}).splits) == 6
    assert len(LanceDataset(uri).plan({}).splits) == 1
    assert ids(LanceDataset(uri, max_split_bytes=small * 3 + 200)) == list(range(5050))


def test_rows_of_a_split_come_in_their_order(uri):
    make(uri, 3000, 20_000)
    source = LanceDataset(uri)
    assert [row["id"] for row in read_all(source)] == list(range(23_000))
    assert [row["id"] for row in read_all(LanceDataset(uri, filter="id % 2 = 1"))] == list(range(1, 23_000, 2))


def test_an_older_version_is_read_with_its_own_columns(uri):
    dataset = make(uri, 10, 10)
    dataset.drop_columns(["kind"])
    for version in (1, "1"):
        source = LanceDataset(uri, version=version)
        plan = source.plan({})
        assert plan.source["version"] == 1
        assert source.schema(plan, {}).names == ["id", "kind", "vector"]
        assert ids_of_plan(source, plan) == list(range(10))
    assert LanceDataset(uri).plan({}).source["version"] == 3
    assert ids(LanceDataset(uri)) == list(range(20))


def test_deleted_rows_are_not_read_and_the_filter_holds_in_every_split(uri):
    dataset = make(uri, 10, 10, 10)
    dataset.delete("id in (0, 1, 29)")
    dataset.delete("id >= 10 and id < 20")
    assert ids(LanceDataset(uri, max_split_bytes=1)) == [*range(2, 10), *range(20, 29)]
    assert ids(LanceDataset(uri, max_split_bytes=1, filter="id < 5 or id > 26")) == [2, 3, 4, 27, 28]
    assert ids(LanceDataset(uri, filter="kind = 'kind-0' and vector is not null")) == [3, 6, 9, 21, 24, 27]
    assert ids(LanceDataset(uri, filter="id < 0")) == []


def test_columns_are_read_in_the_order_that_was_asked_for(uri):
    make(uri, 3)
    source = LanceDataset(uri, columns=["vector", "id"])
    plan = source.plan({})
    assert source.schema(plan, {}) == pa.schema([("vector", VECTOR), ("id", pa.int64())])
    assert [list(row) for row in read_all(source)] == [["vector", "id"]] * 3
    assert ids(LanceDataset(uri, columns=["id"], filter="kind = 'kind-1'")) == [1]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.int8()], ids=str)
def test_vectors_are_read_as_vectors(uri, kind):
    data = pa.table({"v": pa.array([[1, 2, 3], None, [4, 5, 6]], pa.list_(pa.int8(), 3)).cast(pa.list_(kind, 3))})
    lance.write_dataset(data, uri)
    source = LanceDataset(uri)
    plan = source.plan({})
    batches = list(source.reader({}).read(plan.splits[0], None))
    assert pa.Table.from_batches(batches) == data
    assert batches[0].schema == source.schema(plan, {}) == data.schema


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_blobs_are_read_as_what_they_hold(uri, version):
    schema = pa.schema([("id", pa.int64()), pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    data = pa.table({"id": [1, 2], "b": [b"x" * 100_000, None]}, schema=schema)
    lance.write_dataset(data, uri, data_storage_version=version)
    source = LanceDataset(uri)
    plan = source.plan({})
    assert source.schema(plan, {}).field("b").type == pa.large_binary()
    assert read_all(source) == data.to_pylist()


def test_wide_rows_come_in_small_batches(uri, monkeypatch):
    monkeypatch.setattr(reading, "_BATCH_BYTES", 1 << 20)
    lance.write_dataset(pa.table({"id": range(500), "b": [os.urandom(20_000) for _ in range(500)]}), uri)
    source = LanceDataset(uri)
    (split,) = source.plan({}).splits
    batches = list(source.reader({}).read(split, None))
    assert max(batch.nbytes for batch in batches) < 1.1 * (1 << 20)
    assert sum(batch.num_rows for batch in batches) == 500


FILTERS = [None, "id < 30", "id >= 90", "id % 7 = 3 or id = 0", "kind = 'kind-1' and id > 40", "id = 55", "id > 1000"]


@pytest.mark.parametrize("indexed", [False, True], ids=["", "indexed"])
@pytest.mark.parametrize("stable", [False, True], ids=["", "stable row ids"])
@pytest.mark.parametrize("gone", [None, "id % 3 = 0", "id < 50"])
@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_a_large_fragment_is_read_in_windows_of_the_same_rows(uri, monkeypatch, where, gone, stable, indexed):
    lance.write_dataset(rows(0, 100), uri, enable_stable_row_ids=stable)
    if gone is not None:
        lance.dataset(uri).delete(gone)
    if indexed:
        lance.dataset(uri).create_scalar_index("id", "BTREE")
    expected = lance.dataset(uri).to_table(filter=where).to_pylist()
    size = sum(file.stat().st_size for file in (Path(uri) / "data").iterdir())
    for window in (1, 7, 99, 1000):
        monkeypatch.setattr(lance_windows, "_WINDOW_BYTES", size * window // 100)
        assert list(read_all(LanceDataset(uri, filter=where))) == expected
        names = ["vector", "id"]
        found = list(read_all(LanceDataset(uri, filter=where, columns=names)))
        assert [[row[name] for name in names] for row in found] == [[row[name] for name in names] for row in expected]
        assert all(list(row) == names for row in found)


def test_a_dataset_without_rows_has_a_schema_and_no_splits(uri):
    lance.write_dataset(rows(0, 0), uri, schema=rows(0, 0).schema)
    source = LanceDataset(uri, columns=["kind", "id"])
    plan = source.plan({})
    assert plan.splits == ()
    assert source.schema(plan, {}).names == ["kind", "id"]
    source.verify(plan.splits, {})


def test_a_path_is_taken_as_it_is_written(tmp_path):
    uri = str(tmp_path / "a %41 b#ü.lance")
    make(uri, 3)
    assert ids(LanceDataset(uri)) == [0, 1, 2]
    assert ids(LanceDataset("file://" + uri)) == [0, 1, 2]


# -- the input changed -----------------------------------------------------------------------------------------------------

WHAT_TO_DO = r'(?s)Version 2 of file://.*d\.lance.*is gone.*cleaned up.*made anew.*\{"checkpoint": "restart"\}.*give it a tag'


def clean_up(uri):
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)


def cleaned_up(uri):
    appended(uri)
    clean_up(uri)


def cleaned_up_after_compaction(uri):
    compacted(uri)
    clean_up(uri)


def removed(uri):
    shutil.rmtree(uri)


def made_anew_with_fewer_versions(uri):
    removed(uri)
    make(uri, 10)


def made_anew(uri):
    removed(uri)
    make(uri, 10, 10)


@pytest.mark.parametrize("change", [cleaned_up, cleaned_up_after_compaction, removed, made_anew_with_fewer_versions, made_anew])
def test_a_version_that_is_gone_fails_by_name_and_says_what_to_do(uri, change):
    make(uri, 10, 10)
    source = LanceDataset(uri)
    plan = source.plan({})
    change(uri)
    with pytest.raises(InputChangedError, match=WHAT_TO_DO):
        source.verify(plan.splits, {})
    with pytest.raises(InputChangedError, match=WHAT_TO_DO):
        read_split(source, plan.splits[0])


def test_a_version_with_a_tag_outlives_the_clean_up(uri):
    dataset = make(uri, 10, 10)
    source = LanceDataset(uri)
    plan = source.plan({})
    dataset.tags.create("being-read", 2)
    appended(uri)
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    source.verify(plan.splits, {})
    assert ids_of_plan(source, plan) == list(range(20))


# -- refused ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"columns": "id"}, "columns='id'"),
        ({"columns": []}, "columns="),
        ({"columns": ["id", "id"]}, "named twice"),
        ({"max_split_bytes": 0}, "max_split_bytes=0"),
    ],
    ids=str,
)
def test_parameters_that_cannot_work_are_refused_when_the_dag_is_parsed(uri, wrong, named):
    with pytest.raises(InvalidInputError, match=named):
        LanceDataset(uri, **wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"version": 9}, "no version 9 of Lance dataset at file://"),
        ({"version": "latest"}, "version='latest'.*must be a positive number"),
        ({"version": 0}, "must be a positive number"),
        ({"version": -1}, "must be a positive number"),
        ({"version": ""}, "rendered to nothing"),
        ({"version": "None"}, "rendered to nothing"),
        ({"filter": "id >"}, "filter='id >'.*does not fit"),
        ({"filter": "nope = 1"}, "nope"),
        ({"filter": "id"}, "filter='id'"),
        ({"filter": " "}, "filter=' '.*rendered to nothing"),
        ({"filter": ""}, "filter=''.*rendered to nothing"),
        ({"columns": ["id", "nope"]}, "nope"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused_when_it_is_planned(uri, wrong, named):
    make(uri, 3)
    with pytest.raises(InvalidInputError, match=named):
        LanceDataset(uri, **wrong).plan({})


def test_a_dataset_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"no Lance dataset at file://.*nothing\.lance"):
        LanceDataset(f"{tmp_path}/nothing.lance").plan({})


def test_a_place_that_cannot_be_stored_is_refused():
    for wrong, named in (("d.lance", "relative path"), ("s3://key:secret@bucket/d", "credential"), ("ftp://host/d", "ftp")):
        with pytest.raises(InvalidInputError, match=named):
            LanceDataset(wrong).plan({})


def test_a_storage_that_does_not_answer_may_be_retried():
    options = {"endpoint": "http://127.0.0.1:1", "region": "us-east-1", "allow_http": "true", "client_max_retries": "0"}
    options |= {"access_key_id": "x", "secret_access_key": "x"}
    with pytest.raises(RetryableError, match=r"s3://bucket/d\.lance could not be opened"):
        LanceDataset("s3://bucket/d.lance").plan(options)
