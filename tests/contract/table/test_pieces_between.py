"""What happens between an attempt that leaves pieces and the one that goes on: to the table, the source and the function."""

from __future__ import annotations

import os
import random

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.table.both import FOREIGN, REPLACE, UPSERT, Iceberg, Lance, StableLance, of
from contract.table.test_cleanup import cleaned
from contract.table.test_pieces import (
    ROWS,
    Function,
    Killed,
    as_without_a_crash,
    asked,
    die,
    modal,
    one_split,
    staged_files,
    world,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from support.columns import computed, stage_columns, ten_times
from support.lance_world import LanceWorld
from support.world import rows

from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.pieces import SaveEvery

__all__ = ["modal", "world"]

SAVED = SaveEvery(rows=30, seconds=None)


class Random(Function):
    """What it yields is another number of rows each time."""

    def changed(self, batch):
        return batch.take(pa.array(sorted(random.choices(range(batch.num_rows), k=random.randrange(60))), pa.int64()))


@pytest.mark.parametrize("seed", range(5))
def test_what_a_function_yields_at_random_lands_as_it_was_staged(world, seed):
    random.seed(seed)
    die(world, at=65, function=Random)
    die(world, at=155, function=Random)
    attempt = world.stage(asked(world, Random()))
    sealed = attempt.checkpoint.sealed().rows
    world.commit(attempt)
    assert len([row for row in world.read() if row["id"] < ROWS]) == sealed


@pytest.mark.parametrize("allowed", [None, "null"])
def test_a_table_that_grows_between_two_attempts_gets_the_same_rows(modal, allowed):
    die(modal, at=65)
    modal.widen()
    modal.commit(modal.stage(asked(modal, Function(), missing_columns=allowed)))
    found = [row for row in modal.read() if row["id"] < ROWS and row["id"] not in range(200, 600)]
    assert [row["id"] for row in found] == [*range(ROWS)]


def test_numbers_of_rows_are_those_that_a_filter_leaves(world):
    source = Files(f"{world.input}/*.parquet", filter=[("id", ">=", 50)])
    seen = die(world, at=115, source=source)
    function = Function()
    world.commit(world.stage(asked(world, function, source=source)))
    assert seen + function.seen == [*range(50, ROWS)]
    assert [row["id"] for row in world.read() if row["id"] < ROWS] == [*range(50, ROWS)]


def test_row_groups_before_the_last_piece_are_not_read_again(world):
    """They are garbled meanwhile, so that nobody can read them."""
    path = world.input / "0.parquet"
    pq.write_table(rows(0, ROWS), path, row_group_size=40)
    assert die(world, at=115) == [*range(90)]
    stat, groups_of = path.stat(), pq.ParquetFile(path).metadata
    content = bytearray(path.read_bytes())
    third = groups_of.row_group(2).column(0)
    content[4 : third.dictionary_page_offset or third.data_page_offset] = b"\xff" * (
        (third.dictionary_page_offset or third.data_page_offset) - 4
    )
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    function = Function()
    world.commit(world.stage(asked(world, function)))
    assert function.seen == [*range(90, ROWS)]
    assert [row for row in world.read() if row["id"] < ROWS] == [row | {"kind": str(row["id"] + 1)} for row in of(range(ROWS))]


@pytest.mark.parametrize("row", [0, 1, 39, 40, 75, 80, 119, 120, 121, 160])
def test_rows_from_a_row_on_are_those_that_are_read_without_it(tmp_path, row):
    for number, (first, count) in enumerate([(0, 75), (75, 0), (75, 85)]):
        pq.write_table(rows(first, count), tmp_path / f"{number}.parquet", row_group_size=40)
    source = Files(f"{tmp_path}/*.parquet")
    (split,) = source.plan({}).splits
    begin, batches = source.reader({}).read_near(split, None, row)
    assert [n for batch in batches for n in batch["id"].to_pylist()] == [*range(begin, 160)]
    assert row - 40 < begin <= row


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_function_is_given_the_same_types_of_formats_without_types(world, suffix):
    """The first rows alone would be read as numbers, the last alone as text."""
    (world.input / "0.parquet").unlink()
    line = "{0},{0}" if suffix == "csv" else '{{"id": {0}, "text": "{0}"}}'
    head = ["id,text"] if suffix == "csv" else []
    (world.input / f"0.{suffix}").write_text("\n".join([*head, *(line.format(n) for n in range(ROWS))]) + "\n")
    types = []

    class Typed(Function):
        def changed(self, batch):
            types.append(str(batch.schema))
            (made,) = rows(batch["id"][0].as_py(), batch.num_rows).to_batches()
            return made

    source = Files(f"{world.input}/*.{suffix}", format=suffix)
    die(world, at=115, function=Typed, source=source)
    world.commit(world.stage(asked(world, Typed(), source=source)))
    assert len({*types}) == 1
    assert [row["id"] for row in world.read() if row["id"] < ROWS] == [*range(ROWS)]


@pytest.mark.parametrize("kind", [Iceberg, Lance, StableLance])
@pytest.mark.parametrize("into", [Iceberg, Lance])
def test_a_table_that_is_read_is_read_on_at_what_it_was(tmp_path, kind, into):
    origin = kind(tmp_path / "origin")
    origin.make(range(ROWS))
    (origin.table().delete if kind is Iceberg else origin.dataset.delete)("id < 20")
    world = into(tmp_path / "world")
    world.make(FOREIGN)
    how = {"source": origin.as_source, "options": origin.source_options}
    seen = die(world, at=115, **how)
    (origin.table().delete if kind is Iceberg else origin.dataset.delete)("id < 40")
    origin.add()
    origin.compact()
    function = Function()
    world.commit(world.stage(asked(world, function, **how)))
    assert seen + function.seen == [*range(20, ROWS)]
    assert [row["id"] for row in world.read() if row["id"] < ROWS] == [*range(20, ROWS)]


@pytest.mark.parametrize("changes", [{}, UPSERT], ids=["append", "upsert"])
def test_a_write_that_is_begun_anew_takes_no_piece_of_the_one_before_it(modal, changes):
    die(modal, at=65, **changes)
    function = Function()
    how = changes | REPLACE | {"transform_version": "2"}
    modal.commit(modal.stage(asked(modal, function, **how)))
    assert function.seen == [*range(ROWS)]
    other = {row["id"] for row in modal.read() if row["id"] < ROWS}
    assert other == {*range(ROWS)}
    cleaned(modal)
    assert len(modal.read()) == len({row["id"] for row in modal.read()})


def test_several_splits_that_lost_pieces_are_begun_anew_and_others_go_on(world):
    pq.write_table(rows(0, 60), world.input / "0.parquet")
    for number in range(1, 4):
        pq.write_table(rows(60 * number, 60), world.input / f"{number}.parquet")
    source = Files(f"{world.input}/*.parquet", max_split_bytes=1)
    attempt = world.attempt(asked(world, Function(), source=source))
    found = attempt.next_round()
    work = attempt.begin("test", 1)
    for split, at in zip(sorted(found.missing, key=lambda split: split.id), (45, 105, 165, 225), strict=True):
        work.transform.function = Function(at)
        with pytest.raises(Killed):
            work.run(split, "0")
    for path in staged_files(world)[:2]:
        open(path, "wb").close()
    function = Function()
    world.commit(world.stage(asked(world, function, source=source)))
    assert len(function.seen) == 60 + 60 + 30 + 30
    assert [row["id"] for row in world.read() if row["id"] < 240] == [*range(240)]


def test_pieces_of_an_unfinished_write_outlive_a_clean_up_and_those_of_a_committed_one_do_not(world):
    die(world, at=115)
    before = staged_files(world)
    cleaned(world)
    assert staged_files(world) == before
    function = Function()
    world.commit(world.stage(asked(world, function)))
    assert function.seen == [*range(90, ROWS)]
    cleaned(world)
    assert len(staged_files(world)) == 1
    assert [row["id"] for row in world.read() if row["id"] < ROWS] == [*range(ROWS)]


def test_a_clean_up_that_discards_removes_the_files_of_pieces(world):
    die(world, at=115)
    assert len(staged_files(world)) == 3
    cleaned(world, discard_unfinished=True)
    assert staged_files(world) == []


def test_rows_of_more_partitions_than_files_are_open_land_once(tmp_path):
    world = one_split(Iceberg, tmp_path)
    pq.write_table(rows(0, 900), world.input / "0.parquet")
    world.create_table(spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id")))
    table = pq.read_table(world.input / "0.parquet")
    spread = table.set_column(0, table.schema.field(0), pa.array([n % 300 for n in range(900)]))
    pq.write_table(spread, world.input / "0.parquet")
    with pytest.raises(Killed):
        world.stage(asked(world, Function(299), save=100))
    world.commit(world.stage(asked(world, Function(), save=100)))
    assert world.ids() == sorted([*range(300)] * 3)


@pytest.mark.parametrize("save", [1, 7])
def test_a_piece_for_each_row_lands_as_one_file(world, save):
    die(world, at=115, save=save)
    world.commit(world.stage(asked(world, Function(), save=save)))
    assert len(staged_files(world)) == 1
    assert [row["id"] for row in world.read() if row["id"] < ROWS] == [*range(ROWS)]


def test_an_upsert_in_pieces_leaves_what_one_at_once_does(modal, tmp_path):
    for at in (35, 95, 155):
        die(modal, at, **UPSERT)
    modal.add()
    modal.commit(modal.stage(asked(modal, Function(), **UPSERT)))
    other = as_without_a_crash(modal, type(modal), tmp_path, Function, made=(range(200, 600),), **UPSERT)
    other.add()
    assert modal.read() == other.read()


class Columns:
    """Computes columns, and may be killed."""

    def __init__(self, at=None):
        self.at, self.seen = at, []

    def __call__(self, batch):
        ids = batch["id"].to_pylist()
        if self.at in ids:
            raise Killed
        self.seen += ids
        return ten_times(batch)


@pytest.fixture(params=[False, True], ids=["", "stable"])
def dataset(request, tmp_path):
    world = LanceWorld(tmp_path)
    lance.write_dataset(rows(0, 300), world.uri, enable_stable_row_ids=request.param)
    world.dataset.delete("id % 10 = 3")
    return world


ALL_COLUMNS = [n for n in range(300) if n % 10 != 3]


def between(world, change, gone=()):
    """Columns are computed in pieces, and the dataset changes between two attempts."""
    with pytest.raises(Killed):
        stage_columns(world, function=Columns(200), rows_per_split=1000, save_every=SAVED, transform_version="1")
    change(world)
    function = Columns()
    attempt = stage_columns(world, function=function, rows_per_split=1000, save_every=SAVED, transform_version="1")
    groups.commit([attempt.checkpoint], world.as_table())
    assert computed(world) == [n for n in ALL_COLUMNS if n not in gone]
    return function


def test_columns_are_computed_on_behind_the_last_piece(dataset):
    function = between(dataset, lambda _: None)
    assert len(function.seen) < 130


def test_columns_of_rows_that_are_deleted_between_two_attempts(dataset):
    between(dataset, lambda world: world.dataset.delete("id in (2, 5, 250)"), gone=(2, 5, 250))


def test_columns_of_rows_that_are_compacted_between_two_attempts(dataset):
    between(dataset, lambda world: world.dataset.optimize.compact_files())
