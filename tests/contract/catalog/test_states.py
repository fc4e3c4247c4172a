"""Of tables that are all alike one is read by every reader; one that really differs from them is read by every reader, too."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from protocol.crash.maintenance import foreign_append
from support import readers
from support.readers import assert_same_everywhere, assert_same_in_every_state
from support.states import state_of
from support.world import World, rows


def written(root, files=2):
    """A table that a write of ours has landed in."""
    world = World(root)
    world.create_table()
    world.put_files(files, 5)
    world.commit(world.stage())
    return world


def data_file(world):
    return min(path for path in world.referenced_files() if path.endswith(".parquet"))


def another_value(world):
    """In a file of the same size, of which metadata say the same."""
    path = data_file(world)
    found = pq.read_table(path)
    at = found.column_names.index("value")
    pq.write_table(found.set_column(at, found.field(at), pc.negate(found["value"])), path)


def another_size(world):
    """Of a file, as the manifest has it."""
    path = data_file(world)
    with open(path, "ab") as file:
        file.write(b"PAR1")


def another_metadata(change):
    """One that says something else, in the same place."""

    def made(world):
        path = world.table().metadata_location.removeprefix("file://")
        with open(path) as file:
            document = json.load(file)
        change(document)
        with open(path, "w") as file:
            json.dump(document, file)

    return made


def renamed(world):
    with world.table().update_schema() as update:
        update.rename_column("kind", "sort")


def deleted(world):
    world.table().delete("id = 3")


def without_a_snapshot(document):
    document["current-snapshot-id"] = None
    document["refs"] = {}


def of_another_type(document):
    (field,) = [one for one in document["schemas"][0]["fields"] if one["name"] == "value"]
    field["type"] = "float"


DIFFERENCES = {
    "more rows": foreign_append,
    "a row less": deleted,
    "another value in a file": another_value,
    "a file of another size": another_size,
    "a column of another name": renamed,
    "a column of another type": another_metadata(of_another_type),
    "no current snapshot": another_metadata(without_a_snapshot),
    "another sequence number": another_metadata(lambda document: document.update({"last-sequence-number": 7})),
}


def test_tables_that_were_written_in_the_same_way_are_alike_wherever_they_are(tmp_path):
    assert state_of(written(tmp_path / "one").table()) == state_of(written(tmp_path / "a" / "nother").table())


@pytest.mark.parametrize("change", DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_table_that_really_differs_is_not_alike(tmp_path, change):
    world = written(tmp_path)
    before = state_of(world.table())
    change(world)
    assert state_of(world.table()) != before


def test_the_same_rows_in_other_files_are_not_alike(tmp_path):
    states = {state_of(written(tmp_path / str(n), files).table()) for n, files in enumerate([1, 2])}
    other = World(tmp_path / "appended")
    other.create_table()
    other.table().append(pa.concat_tables([rows(0, 5), rows(5, 5)]).cast(other.table().schema().as_arrow()))
    assert len(states | {state_of(other.table())}) == 3


def test_each_reader_reads_the_first_of_what_is_alike_and_whatever_differs(tmp_path, monkeypatch):
    first, alike, different = (written(tmp_path / str(n)) for n in range(3))
    found = first.table().scan().to_arrow().to_pylist()
    monkeypatch.setattr(readers, "_read", set())
    assert_same_in_every_state(first.table(), found)
    another_value(different)

    def refuses(*_):
        raise ConnectionError("DuckDB was asked")

    monkeypatch.setattr(readers, "_duckdb_table", refuses)
    assert_same_in_every_state(alike.table(), found)
    with pytest.raises(ConnectionError):
        assert_same_everywhere(alike.table(), found)
    with pytest.raises(ConnectionError):
        assert_same_in_every_state(different.table(), different.table().scan().to_arrow().to_pylist())
    # Nor is it enough that it was read when other rows were expected.
    with pytest.raises(ConnectionError):
        assert_same_in_every_state(alike.table(), found[1:])


def test_a_table_that_was_not_as_expected_is_read_by_every_reader_again(tmp_path, monkeypatch):
    world = written(tmp_path)
    found = world.table().scan().to_arrow().to_pylist()
    monkeypatch.setattr(readers, "_read", set())
    with monkeypatch.context() as broken:
        broken.setattr(readers, "_rust_table", lambda *_: rows(0, 1))
        with pytest.raises(AssertionError, match="iceberg-rust"):
            assert_same_in_every_state(world.table(), found)
        with pytest.raises(AssertionError, match="iceberg-rust"):
            assert_same_in_every_state(world.table(), found)
    assert_same_in_every_state(world.table(), found)
