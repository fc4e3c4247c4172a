"""Columns that a Lance dataset is given before a write: of any type, and only such as can be."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest
from support.lance_types import TYPES
from support.lance_world import LanceWorld
from support.world import rows

from airflow_ckpt_provider.exceptions import RetryableError, SchemaMismatchError
from airflow_ckpt_provider.tables.lance.evolution import evolve


@pytest.fixture
def world(tmp_path):
    world = LanceWorld(tmp_path)
    world.create_dataset(1000, 5)
    world.put_files(2, 3)
    return world


def adding(name, values, kind=None, **field):
    def transform(batch):
        made = pa.array([values[n % len(values)] for n in batch["id"].to_pylist()], kind)
        return batch.append_column(pa.field(name, made.type, **field), made)

    return transform


@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_any_type(tmp_path, name):
    kind, values, *version = TYPES[name]
    world = LanceWorld(tmp_path)
    lance.write_dataset(rows(1000, 5), world.uri, data_storage_version=version[0] if version else "2.2")
    world.put_files(2, 3)
    world.commit(world.stage(world.request(evolve_schema=True, transform=adding("extra", values, kind))))
    found = world.dataset.to_table(columns=["id", "extra"]).sort_by("id")
    world.dataset.validate()
    expected = pa.chunked_array([pa.array([values[n % len(values)] for n in range(6)] + [None] * 5, kind)])
    assert found["extra"].to_pylist() == expected.cast(found["extra"].type).to_pylist()


def test_a_column_that_is_required_in_the_rows_is_optional_in_the_dataset(world):
    world.commit(world.stage(world.request(evolve_schema=True, transform=adding("extra", [1, 2], nullable=False))))
    assert world.dataset.schema.field("extra").nullable
    assert world.dataset.count_rows("extra is null") == 5


REFUSED = {
    "no type": (adding("extra", [None]), r"'extra' has no type, because it is null everywhere"),
    "a blob": (
        adding("extra", [b"x"], pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        r"'extra' is a blob, which is not supported",
    ),
    "a type that Lance does not have": (adding("extra", [None, 1], pa.decimal32(5, 1)), r"'extra' is decimal32"),
    "a name that Lance needs": (adding("_rowaddr", [1]), r"'_rowaddr' has a reserved name"),
    "a name that is needed here": (adding("__checkpoint_row", [1]), r"'__checkpoint_row' has a reserved name"),
    "a wider type": (
        lambda batch: batch.set_column(2, "kind", pa.array([1] * batch.num_rows)),
        r"'kind' is int64, the table has string",
    ),
}


@pytest.mark.parametrize(("transform", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_before_anything_changes(world, transform, message):
    with pytest.raises(SchemaMismatchError, match=rf"(?s)no new columns make them fit.*{message}.*Add columns under new names"):
        world.stage(world.request(evolve_schema=True, transform=transform))
    assert len(world.versions()) == 1
    assert world.data_and_sidecars() == {f"{world.root}/orders.lance/data/{file.path}" for file in _files(world.dataset)}


def _files(dataset):
    return [file for fragment in dataset.get_fragments() for file in fragment.data_files()]


def test_an_index_stays_as_it_is(world):
    world.dataset.create_scalar_index("id", "BTREE")
    world.commit(world.stage(world.request(evolve_schema=True, transform=adding("extra", ["a"]))))
    dataset = world.dataset
    assert dataset.stats.index_stats("id_idx")["num_indexed_rows"] == 5
    assert dataset.to_table(filter="id = 1003")["id"].to_pylist() == [1003]
    assert dataset.to_table(filter="id = 3")["extra"].to_pylist() == ["a"]


def test_it_gives_up_where_others_commit_all_the_time(world, monkeypatch):
    monkeypatch.setattr("airflow_ckpt_provider.tables.evolution.time.sleep", lambda _: None)

    def load():
        """The dataset as it is now, and somebody who is faster."""
        found = world.dataset
        world.foreign_append(count=1)
        return found

    with pytest.raises(RetryableError, match=r"(?s)10 tries.*preempted.*a retry tries again"):
        evolve(load, world.uri, pa.schema([*rows(0, 1).schema, pa.field("extra", pa.string())]))
    assert world.dataset.schema.names == rows(0, 1).schema.names


@pytest.mark.parametrize(
    "name",
    ["_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version", "__checkpoint_row"],
)
def test_a_dataset_is_not_created_with_a_reserved_name_and_a_member_may_have_it(tmp_path, name):
    world = LanceWorld(tmp_path)
    world.put_files(2, 3)
    with pytest.raises(SchemaMismatchError, match=f"{name!r} has a reserved name.*Rename it"):
        world.stage(world.request(mode="create", transform=adding(name, [7])))
    assert not world.exists
    assert world.data_and_sidecars() == set()
    world.commit(world.stage(world.request(mode="create", on_change="restart", transform=adding("s", [{name: 7}]))))
    assert [row["s"] for row in world.table_rows()] == [{name: 7}] * 6
    assert world.dataset.to_table(with_row_id=True).num_rows == 6


PLACE = pa.struct([pa.field("city", pa.string(), nullable=False), pa.field("n", pa.int64())])


def placed(batch):
    """Every other place is missing, and so is its required city, where nobody sees it: so Arrow reads it from Parquet."""
    ids = batch["id"].to_pylist()
    loose = pa.struct([("city", pa.string()), ("n", pa.int64())])
    city = pa.array([None if number % 2 else "x" for number in ids], pa.string())
    column = pa.StructArray.from_arrays([city, batch["id"]], fields=list(loose), mask=pa.array([number % 2 == 1 for number in ids]))
    return batch.append_column(pa.field("place", loose), column)


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable row ids"])
@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_rows_whose_optional_struct_is_null_are_written_though_a_member_is_required(tmp_path, mode, stable):
    world = LanceWorld(tmp_path)
    there = rows(4, 4)
    there = there.append_column(pa.field("place", PLACE), pa.array([{"city": "y", "n": 1}] * 4, PLACE))
    lance.write_dataset(there, world.uri, enable_stable_row_ids=stable)
    world.put_files(2, 3)
    parameters = {"upsert_keys": ["id"]} if mode == "upsert" else {}
    world.commit(world.stage(world.request(mode=mode, parameters=parameters, transform=placed)))
    found = [(row["id"], row["place"]) for row in world.table_rows() if row["place"] != {"city": "y", "n": 1}]
    assert found == [(number, None if number % 2 else {"city": "x", "n": number}) for number in range(6)]
    assert len(world.ids()) == {"append": 10, "overwrite": 6, "upsert": 8}[mode]
    world.dataset.validate()


def with_json(batch):
    texts = [None if number % 3 == 0 else f'{{"n":{number}}}' for number in batch["id"].to_pylist()]
    return batch.append_column("doc", pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string())))


@pytest.mark.parametrize("when_matched", ["update", "ignore"])
@pytest.mark.parametrize("stable", [False, True], ids=["", "stable row ids"])
def test_json_is_upserted(tmp_path, stable, when_matched):
    world = LanceWorld(tmp_path)
    there = with_json(rows(2, 5).combine_chunks().to_batches()[0])
    lance.write_dataset(pa.Table.from_batches([there]), world.uri, enable_stable_row_ids=stable)
    world.put_files(2, 3)
    parameters = {"upsert_keys": ["id"], "when_matched": when_matched}
    world.commit(world.stage(world.request(mode="upsert", parameters=parameters, transform=with_json)))
    found = world.dataset.to_table().sort_by("id")
    assert found.schema.field("doc").type == pa.json_()
    assert found["doc"].to_pylist() == [None if number % 3 == 0 else f'{{"n":{number}}}' for number in range(7)]
    assert world.dataset.to_table(filter="json_get_int(doc, 'n') = 4")["id"].to_pylist() == [4]
    world.dataset.validate()
