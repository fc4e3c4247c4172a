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
    monkeypatch.setattr("airflow_ckpt_provider.tables.once.time.sleep", lambda _: None)

    def load():
        """The dataset as it is now, and somebody who is faster."""
        found = world.dataset
        world.foreign_append(count=1)
        return found

    with pytest.raises(RetryableError, match=r"(?s)10 tries.*preempted.*a retry tries again"):
        evolve(load, world.uri, pa.schema([*rows(0, 1).schema, pa.field("extra", pa.string())]))
    assert world.dataset.schema.names == rows(0, 1).schema.names
