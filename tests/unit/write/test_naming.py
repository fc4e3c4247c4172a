"""An error for which Spark repeats a task says where in its input that was: the split, its file, and the rows that were done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet
from support.foreign import options_of
from support.lance_world import LanceWorld
from support.world import World, rows

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources import Files, IcebergTable, LanceDataset
from airflow_ckpt_provider.write.naming import in_input, naming
from airflow_ckpt_provider.write.pieces import SaveEvery

if TYPE_CHECKING:
    import pyarrow as pa


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "world")
    world.create_table()
    return world


def until(at: int, error: type[Exception] = ConnectionError):
    """A transform that does not get over a row."""

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        if at in batch["id"].to_pylist():
            raise error("no luck today")
        return batch

    return transform


def note_of(world, source, transform, **changes):
    """The note of the error of a write of one split."""
    request = world.request(source=source, transform=transform, transform_version="1", **changes)
    with pytest.raises(ConnectionError, match="no luck today") as caught:
        world.stage(request)
    (note,) = caught.value.__notes__
    return note


def test_the_file_and_its_row_groups_are_named(world, tmp_path):
    path = tmp_path / "in.parquet"
    parquet.write_table(rows(0, 60), path, row_group_size=10)
    source = Files(str(path), max_split_bytes=1)
    assert note_of(world, source, until(25)) == f"(in split 000002: {path} (row group 2))"


def test_of_many_files_that_one_is_named_at_which_the_task_was(world, tmp_path):
    for number in range(5):
        parquet.write_table(rows(number * 10, 10), tmp_path / f"{number}.parquet")
    note = note_of(world, Files(str(tmp_path / "*.parquet")), until(45))
    assert note == f"(in split 000000, behind row 40 of its input: {tmp_path}/4.parquet)"


def test_of_many_files_that_were_not_begun_the_first_are_named(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.csv").write_text("id\n1\n")
    source = Files(str(tmp_path), format="csv")
    (split,) = source.plan({}).splits
    names = ", ".join(f"{tmp_path}/{number}.csv" for number in range(3))
    assert in_input(split, source.reader({}), 0) == f": {names} and 2 more"


def test_rows_that_are_done_are_counted_also_those_of_earlier_attempts(world, tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("id\n" + "".join(f"{number}\n" for number in range(100)))
    every = SaveEvery(rows=10, seconds=None)
    for at in (35, 62):
        note = note_of(world, Files(str(path), format="csv"), until(at), save_every=every, on_change="continue")
        assert note == f"(in split 000000, behind row {at // 10 * 10} of its input: {path})"


def test_data_files_of_an_iceberg_table_are_named(world, tmp_path):
    other = World(tmp_path / "other")
    other.create_table()
    other.table().append(rows(0, 10).cast(other.table().schema().as_arrow()))
    note = note_of(world, IcebergTable("shop.orders"), until(5), options=options_of(other))
    assert note.startswith("(in split 000000: file:///")
    assert note.endswith(".parquet)")


def test_fragments_of_a_lance_dataset_are_named(world, tmp_path):
    other = LanceWorld(tmp_path / "other")
    other.create_dataset(0, 10)
    note = note_of(world, LanceDataset(other.uri), until(5))
    assert note == f"(in split 000000: fragment 0 of file://{other.uri})"


def test_an_error_that_no_retry_can_cure_says_itself_what_is_wrong(world, tmp_path):
    parquet.write_table(rows(0, 6), tmp_path / "in.parquet")
    with pytest.raises(InvalidInputError) as caught:
        world.stage(world.request(source=Files(str(tmp_path)), transform=until(3, InvalidInputError), transform_version="1"))
    assert not hasattr(caught.value, "__notes__")


class ReadOnlyError(Exception):
    """Takes no note."""

    def add_note(self, note: str) -> None:
        raise AttributeError(note)


@pytest.mark.parametrize("error", [ReadOnlyError("no luck today"), ConnectionError("no luck today")])
def test_the_error_that_came_first_is_raised_whatever_becomes_of_its_note(error):
    def unknown() -> str:
        raise ValueError("nobody knows")

    with pytest.raises(type(error)) as caught, naming("000000", unknown):
        raise error
    assert caught.value is error


def test_a_note_has_no_password():
    error = ConnectionError("no luck today")
    with pytest.raises(ConnectionError), naming("000000", lambda: ": s3://key:hidden@lake/1.parquet"):
        raise error
    assert error.__notes__ == ["(in split 000000: s3://***@lake/1.parquet)"]
