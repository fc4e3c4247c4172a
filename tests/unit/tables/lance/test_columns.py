"""New columns in a Lance dataset: each row its own values, computed once, in one version, whatever happens to the dataset."""

from __future__ import annotations

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.columns import add_columns, computed, stage_columns, ten_times
from support.lance_types import TYPES
from support.lance_world import LanceWorld
from support.world import rows

from airflow_ckpt_provider.exceptions import InvalidInputError, SchemaMismatchError, TableMovedError
from airflow_ckpt_provider.tables.lance import writer as writing
from airflow_ckpt_provider.transforms import Map
from airflow_ckpt_provider.write import groups


@pytest.fixture
def world(tmp_path):
    world = LanceWorld(tmp_path)
    lance.write_dataset(rows(0, 100), world.uri, max_rows_per_file=25)
    return world


def commit(world, attempt):
    (settled,) = groups.commit([attempt.checkpoint], world.as_table())
    return settled


class Seen:
    """A transform that notes the ids that came to it."""

    def __init__(self):
        self.ids = []

    def __call__(self, batch):
        self.ids += batch["id"].to_pylist()
        return ten_times(batch)

    def since(self):
        ids, self.ids = self.ids, []
        return sorted(ids)


@pytest.mark.parametrize("rows_per_split", [1, 7, 25, 1000])
@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["", "stable"])
@pytest.mark.parametrize("storage_version", ["2.1", "2.2"])
def test_every_row_gets_its_own_values_in_one_version(tmp_path, rows_per_split, stable_row_ids, storage_version):
    world = LanceWorld(tmp_path)
    options = {"enable_stable_row_ids": stable_row_ids, "data_storage_version": storage_version}
    lance.write_dataset(rows(0, 100), world.uri, max_rows_per_file=25, **options)
    world.dataset.delete("id % 10 = 3")
    before = world.dataset.version
    settled = add_columns(world, rows_per_split=rows_per_split)
    assert settled.commit.commit_id == world.dataset.version == before + 1
    assert settled.commit.rows == 90
    assert computed(world) == [n for n in range(100) if n % 10 != 3]
    there = [(fragment.physical_rows, fragment.num_deletions) for fragment in world.dataset.get_fragments()]
    assert there == [(25, 3), (25, 2), (25, 3), (25, 2)]


def test_a_column_that_was_dropped_before_does_not_shine_through(world):
    lance.write_dataset(pa.table({"id": range(100), "old": ["x"] * 100}), world.uri, mode="overwrite")
    world.dataset.drop_columns(["old"])
    add_columns(world)
    assert computed(world) == list(range(100))
    assert world.dataset.schema.names == ["id", "tens", "vector"]
    world.dataset.optimize.compact_files()
    assert computed(world) == list(range(100))


def test_a_retry_computes_only_what_is_missing(world):
    seen = Seen()
    stage_columns(world, function=seen, splits=7)
    first = seen.since()
    attempt = stage_columns(world, function=seen)
    again = seen.since()
    assert attempt.commit is None
    # The first attempt asks what columns there are with a few rows, which are computed once more then.
    assert len(first) == 10 + 60
    assert sorted({*first}) + again == list(range(100))
    commit(world, attempt)
    assert computed(world) == list(range(100))
    assert stage_columns(world, function=seen).commit is not None
    assert seen.since() == []


def test_rows_that_are_added_and_deleted_between_two_attempts(world):
    seen = Seen()
    stage_columns(world, function=seen, splits=5)
    seen.since()
    world.foreign_append(1000, 5)
    world.dataset.delete("id in (2, 99)")
    attempt = stage_columns(world, function=seen)
    assert 99 not in seen.since()
    commit(world, attempt)
    assert computed(world) == [*(n for n in range(100) if n not in (2, 99)), *range(1000, 1005)]


def test_a_compaction_between_two_attempts_asks_for_nothing_anew(world):
    world.dataset.delete("id between 25 and 45")
    seen = Seen()
    stage_columns(world, function=seen, splits=8)
    staged = {*seen.since()}
    world.dataset.optimize.compact_files(target_rows_per_fragment=20)
    attempt = stage_columns(world, function=seen)
    assert not staged & {*seen.since()}
    commit(world, attempt)
    assert computed(world) == [n for n in range(100) if not 25 <= n <= 45]


def test_old_versions_are_cleaned_up_between_two_attempts(world):
    seen = Seen()
    stage_columns(world, function=seen, splits=5)
    world.dataset.delete("id = 60")
    world.foreign_append(1000, 5)
    world.dataset.cleanup_old_versions(retain_versions=1, older_than=None)
    first = seen.since()
    attempt = stage_columns(world, function=seen)
    assert not {*first} & {*seen.since()}
    commit(world, attempt)
    assert computed(world) == [*(n for n in range(100) if n != 60), *range(1000, 1005)]


def test_deletes_between_stage_and_commit_need_nothing(world):
    attempt = stage_columns(world)
    world.dataset.delete("id % 2 = 1")
    world.dataset.delete("id between 25 and 30")
    commit(world, attempt)
    assert computed(world) == [n for n in range(0, 100, 2) if not 25 <= n <= 30]


def test_rows_that_are_added_between_stage_and_commit_have_no_values_and_are_told_of(world, caplog):
    attempt = stage_columns(world)
    world.foreign_append(1000, 5)
    commit(world, attempt)
    assert computed(world) == list(range(100))
    assert world.ids() == [*range(100), *range(1000, 1005)]
    assert "5 rows were added" in caplog.text


def update(world):
    world.dataset.update({"kind": "'other'"}, where="id in (3, 30)")


def compact(world):
    world.dataset.optimize.compact_files(target_rows_per_fragment=1000)


def upsert(world):
    world.dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(95, 10))


@pytest.mark.parametrize("change", [update, compact, upsert])
def test_rows_that_are_moved_between_stage_and_commit_are_computed_by_a_cleared_stage(world, change):
    seen = Seen()
    attempt = stage_columns(world, function=seen)
    seen.since()
    change(world)
    before = world.dataset.version
    with pytest.raises(TableMovedError, match=r"computes what the change affects"):
        commit(world, attempt)
    assert world.dataset.version == before
    attempt = stage_columns(world, function=seen)
    assert len(seen.since()) == {compact: 0, update: 2, upsert: 10}[change]
    commit(world, attempt)
    assert world.dataset.version == before + 1
    assert computed(world) == world.ids()


def test_rows_that_are_added_and_rows_that_are_deleted_between_stage_and_commit(world, caplog):
    """One fragment loses all of its rows."""
    attempt = stage_columns(world)
    world.foreign_append(1000, 5)
    world.dataset.delete("id < 25 or id in (30, 1003)")
    commit(world, attempt)
    assert computed(world) == [*range(25, 30), *range(31, 100)]
    assert "4 rows were added" in caplog.text


def test_whether_rows_were_moved_between_stage_and_commit_must_be_there_to_be_seen(world):
    attempt = stage_columns(world)
    world.foreign_append(1000, 5)
    world.dataset.delete("id = 30")
    world.dataset.cleanup_old_versions(retain_versions=1, older_than=None)
    with pytest.raises(TableMovedError):
        commit(world, attempt)
    commit(world, stage_columns(world))
    assert computed(world) == world.ids()


def test_a_foreign_column_that_takes_the_ids_in_between(world):
    attempt = stage_columns(world)
    world.dataset.add_columns({"foreign": "id + 1"})
    commit(world, attempt)
    assert computed(world) == list(range(100))
    assert all(row["foreign"] == row["id"] + 1 for row in world.dataset.to_table().to_pylist())


def test_a_foreign_column_of_the_same_name_in_between(world):
    attempt = stage_columns(world)
    world.dataset.add_columns({"tens": "id + 1"})
    with pytest.raises(SchemaMismatchError, match=r"Somebody else added 'tens'"):
        commit(world, attempt)
    world.dataset.drop_columns(["tens"])
    commit(world, attempt)
    assert computed(world) == list(range(100))


def test_two_keys_that_add_columns_at_once_both_land(world):
    one = stage_columns(world)
    other = stage_columns(world, key="other", function=lambda batch: pa.record_batch({"plus": pc.add(batch["id"], 1)}))
    commit(world, one)
    commit(world, other)
    assert computed(world) == list(range(100))
    assert all(row["plus"] == row["id"] + 1 for row in world.dataset.to_table().to_pylist())


def test_an_index_stays_and_finds_rows(world):
    world.dataset.create_scalar_index("id", "BTREE")
    add_columns(world)
    dataset = world.dataset
    assert [index.field_names for index in dataset.describe_indices()] == [["id"]]
    assert dataset.stats.index_stats("id_idx")["num_indexed_rows"] == 100
    assert dataset.to_table(filter="id = 42")["tens"].to_pylist() == [420]


@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_any_type_beside_deleted_rows_and_nulls(tmp_path, name):
    kind, values, *_ = TYPES[name]
    world = LanceWorld(tmp_path)
    lance.write_dataset(rows(0, 12), world.uri, max_rows_per_file=6)
    world.dataset.delete("id in (0, 4, 11)")

    def value(number):
        return None if number % 4 == 3 else values[number % 3]

    def made(ids):
        return pa.array([value(number) for number in ids], kind)

    add_columns(world, function=lambda batch: pa.record_batch({"new": made(batch["id"].to_pylist())}), rows_per_split=3)
    found = world.dataset.to_table(columns=["id", "new"])
    world.dataset.validate()
    assert found["id"].to_pylist() == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    # Lance gives back some types in another layout.
    expected = made(found["id"].to_pylist())
    assert found["new"].to_pylist() == pa.chunked_array([expected]).cast(found["new"].type).to_pylist()


def minus(batch):
    return pa.record_batch({"tens": pc.multiply(batch["id"], -10), "vector": ten_times(batch)["vector"]})


@pytest.mark.parametrize("rows_per_split", [3, 1000], ids=["joined", "as it is"])
def test_columns_of_json_wherever_it_is(world, rows_per_split):
    def documents(batch):
        texts = [None if number % 3 == 0 else f'{{"n":{number}}}' for number in batch["id"].to_pylist()]
        doc = pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))
        inside = pa.StructArray.from_arrays([doc], fields=[pa.field("doc", doc.type)])
        return pa.record_batch({"doc": doc, "inside": inside})

    world.dataset.delete("id % 10 = 4")
    add_columns(world, function=documents, rows_per_split=rows_per_split)
    expected = [None if number % 3 == 0 else f'{{"n":{number}}}' for number in range(100) if number % 10 != 4]
    found = world.dataset.to_table().sort_by("id")
    assert found["doc"].to_pylist() == expected
    assert [one["doc"] for one in found["inside"].to_pylist()] == expected
    assert world.dataset.to_table(filter="json_get_int(doc, 'n') = 7")["id"].to_pylist() == [7]
    world.dataset.validate()


def test_a_replacement_computes_the_columns_anew(world, caplog):
    add_columns(world)
    world.dataset.create_scalar_index("tens", "BTREE")
    world.foreign_append(1000, 5)
    world.dataset.optimize.compact_files()
    before = world.dataset.version
    settled = add_columns(world, function=minus, on_rerun="replace", on_change="restart")
    assert settled.commit.commit_id == before + 1
    dataset = world.dataset
    dataset.validate()
    # An index is over values, and these are others.
    assert dataset.describe_indices() == []
    assert "The index tens_idx" in caplog.text
    assert all(row["tens"] == -10 * row["id"] for row in dataset.to_table().to_pylist())
    assert dataset.to_table(filter="tens = -50")["id"].to_pylist() == [5]
    assert dataset.to_table(filter="tens = 50").num_rows == 0
    assert dataset.schema.names == [*rows(0, 1).schema.names, "tens", "vector"]
    dataset.optimize.compact_files()
    assert all(row["tens"] == -10 * row["id"] for row in world.dataset.to_table().to_pylist())


def test_a_replacement_takes_no_column_of_others(world):
    add_columns(world)
    world.dataset.add_columns({"mine": "id + 1"})

    def takes(batch):
        return pa.record_batch({"mine": batch["id"]})

    with pytest.raises(InvalidInputError, match=r"'mine', which the dataset .* has already"):
        stage_columns(world, function=takes, on_rerun="replace", on_change="restart")


@pytest.mark.parametrize("compacted", [False, True], ids=["", "compacted"])
def test_a_replacement_takes_no_column_of_the_same_name_that_somebody_else_made_anew(world, compacted):
    add_columns(world)
    staged = stage_columns(world, function=minus, on_rerun="replace", on_change="restart")
    world.dataset.drop_columns(["tens"])
    world.dataset.add_columns({"tens": "concat('n', cast(id as string))"})
    if compacted:
        world.dataset.optimize.compact_files()
    with pytest.raises(SchemaMismatchError, match="Somebody else added 'tens'"):
        commit(world, staged)
    with pytest.raises(InvalidInputError, match=r"'tens', which the dataset .* has already"):
        stage_columns(world, on_rerun="replace", on_change="restart", restart_token="now")
    assert world.dataset.to_table(columns=["tens"])["tens"].to_pylist()[:2] == ["n0", "n1"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: batch, r"returned 'id', which the dataset .* has already"),
        (lambda batch: pa.record_batch({"x": batch["id"].slice(1)}), r"returned 9 rows for 10"),
        (lambda _: None, r"returned 0 rows for 10"),
        (lambda batch: pa.record_batch({"x": pa.nulls(batch.num_rows)}), r"'x' has no type"),
        (lambda batch: batch.select([]), r"returned no column"),
        (lambda batch: pa.record_batch({"_rowid": batch["id"]}), r"'_rowid' has a reserved name"),
        (lambda batch: pa.record_batch({"x": batch["id"], "__checkpoint_row": batch["id"]}), r"'__checkpoint_row' has a reserved"),
    ],
)
def test_a_transform_that_cannot_be_is_refused_before_anything_is_written(world, function, message):
    before = world.data_and_sidecars()
    with pytest.raises((InvalidInputError, SchemaMismatchError), match=message):
        stage_columns(world, function=function)
    assert world.data_and_sidecars() == before
    assert len(world.versions()) == 1


@pytest.mark.parametrize("rows_per_split", [5, 1000], ids=["joined", "as it is"])
def test_a_fragment_of_more_rows_than_files_of_rows_have_gets_one_file(world, monkeypatch, rows_per_split):
    """Others make such fragments, by max_rows_per_file or a compaction."""
    monkeypatch.setattr(writing, "FILE_ROWS", 7)
    add_columns(world, rows_per_split=rows_per_split)
    assert computed(world) == list(range(100))


def test_numbers_of_columns_that_the_dataset_has_forgotten_are_not_given_again(world):
    """It remembers the highest that it ever gave, and takes no commit that gives one of those to a new column."""
    add_columns(world)
    world.dataset.optimize.compact_files()
    world.foreign_append(1000, 5)
    world.dataset.optimize.compact_files()
    add_columns(world, function=minus, on_rerun="replace", on_change="restart")
    world.foreign_append(2000, 5)
    world.dataset.delete("id < 2000")
    add_columns(world, on_rerun="replace", on_change="restart")
    assert computed(world) == list(range(2000, 2005))


def test_a_column_of_others_that_has_the_name_of_the_place_is_not_read_and_not_in_the_way(world):
    world.dataset.add_columns({"__checkpoint_row": "id + 1"})
    with pytest.raises(InvalidInputError, match=r"read_columns names '__checkpoint_row'.*Rename the column"):
        stage_columns(world, read=("id", "__checkpoint_row"))
    add_columns(world)
    assert computed(world) == list(range(100))


def test_a_column_to_read_that_is_not_there(world):
    with pytest.raises(InvalidInputError, match=r"read_columns names 'text', which the dataset .* Its columns are: id"):
        stage_columns(world, read=("text",))


def test_a_dataset_without_rows(tmp_path):
    world = LanceWorld(tmp_path)
    lance.write_dataset(rows(0, 1).slice(0, 0), world.uri)
    with pytest.raises(InvalidInputError, match=r"has no rows"):
        stage_columns(world)


def test_files_that_nobody_refers_to_carry_the_name_of_their_attempt(world):
    add_columns(world, rows_per_split=10)
    left = world.files_on_disk() - {path.removeprefix("file://") for path in world.referenced_files()}
    # The parts of which files were joined: four fragments of three ranges.
    assert len(left) == 12
    assert all("/ckpt-" in path for path in left)


BLOB = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def lengths(batch):
    return pa.record_batch({"length": [len(one) for one in batch["b"].to_pylist()]})


BLOBS = [(BLOB, version) for version in ("2.1", "2.2", "2.3")] + [(lance.blob_field("b"), version) for version in ("2.2", "2.3")]


@pytest.mark.parametrize(("field", "version"), BLOBS)
def test_blobs_of_any_kind_are_given_to_the_transform_and_stay_what_they_are(tmp_path, field, version):
    """Also of those that no row could be written with."""
    world = LanceWorld(tmp_path)
    blobs = [b"x" * 1000 * n for n in range(30)]
    values = blobs if field is BLOB else lance.blob_array(blobs)
    data = pa.table({"id": range(30), "b": values}, schema=pa.schema([("id", pa.int64()), field]))
    lance.write_dataset(data, world.uri, data_storage_version=version)
    world.dataset.delete("id = 3")
    add_columns(world, function=lengths, read=("b",))
    dataset = world.dataset
    dataset.validate()
    left = [n for n in range(30) if n != 3]
    assert dataset.to_table(columns=["id", "length"]).to_pylist() == [{"id": n, "length": 1000 * n} for n in left]
    assert [blob.readall() for blob in dataset.take_blobs("b", indices=range(29))] == [blobs[n] for n in left]


def test_a_function_of_rows_computes_columns(tmp_path):
    world = LanceWorld(tmp_path)
    world.create_dataset(count=25)

    def values(id):  # noqa: A002 - a column
        return {"tens": 10 * id, "vector": [id, -id]}

    add_columns(world, function=Map(values, output={"tens": pa.int64(), "vector": pa.list_(pa.int64())}))
    assert computed(world) == world.ids()
    assert len(world.ids()) == 25
