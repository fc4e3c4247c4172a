"""A folder of rows by itself: what it stores, who of two commits lands, and what a clean-up takes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from contract.table.both import BEFORE, StagedRows, of
from support.world import rows

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.checkpoint.staged_write import StagedWrite
from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError, NotSupportedYetError
from airflow_ckpt_provider.tables.staged.folder import RowsCommit, RowsFolder, TableFacts
from airflow_ckpt_provider.write.cleanup import clean

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def world(tmp_path):
    world = StagedRows(tmp_path)
    world.put_files()
    world.make()
    return world


def test_the_bytes_of_what_it_stores_stay_what_they_are():
    table = TableFacts.of("0123456789abcdef", pa.schema([("id", pa.int64())]))
    assert table.schema == pa.schema([("id", pa.int64())])
    assert TableFacts.of("", pa.schema([("id", pa.int64())])).fingerprint == table.fingerprint
    files = (StagedFile("file:///rows/data/ckpt-a-g1-s0-b.0.parquet", 512),)
    at = datetime(2026, 1, 1, 12, 30, 15, 250000, UTC)
    commit = RowsCommit(identity="abcdefghABCDEFGH", keys=("orders/1",), committed_at=at, rows=7, files=files)
    for name, content in (("rows_table", msgspec.structs.replace(table, columns="QVJST1c=")), ("rows_commit", commit)):
        assert (GOLDEN / f"{name}.json").read_bytes().rstrip() == msgspec.json.encode(content)


def test_of_commits_of_one_key_that_race_one_lands(world):
    attempt = world.stage()
    with ThreadPoolExecutor(8) as pool:
        landed = [settled.landed_now for (settled,) in pool.map(lambda _: world.commit(attempt), range(8))]
    assert sum(landed) == 1
    assert [row["id"] for row in world.read()] == sorted([*range(400), *BEFORE])


def test_a_clean_up_takes_what_killed_attempts_have_left_and_nothing_that_landed(world):
    killed = world.stage(splits=2)
    (world.place / "data" / "ckpt-0123-g1-s0-other.0.parquet").touch()
    (attempt,) = StagedWrite(killed.checkpoint).names.attempts
    left = world.place / "data" / f"{killed.checkpoint.paths.file_stem('0', f'{attempt}.7')}.parquet"
    left.write_bytes(b"not finished")
    world.commit(world.stage())
    (cleaned,) = clean(killed.checkpoint, lambda _: world.as_table())
    assert (cleaned.files, cleaned.left) == (1, "")
    assert not left.exists()
    assert (world.place / "data" / "ckpt-0123-g1-s0-other.0.parquet").exists()
    assert world.read() == of(range(400), BEFORE)


def test_what_others_write_there_is_refused_by_name(world):
    (world.place / "table.json").write_text("{}")
    with pytest.raises(CorruptObjectError, match=r"rows/table\.json was altered and cannot be read"):
        world.as_table().binding()


def test_what_rows_that_are_only_added_cannot_do_is_refused_before_anything_is_read(world):
    with pytest.raises(InvalidInputError, match="the modes are append"):
        world.stage(world.request(mode="overwrite"))
    world.commit(world.stage())
    with pytest.raises(NotSupportedYetError, match="rows are only added"):
        world.stage(world.request(on_rerun="replace"))


def test_a_folder_keeps_the_columns_that_it_was_made_with(tmp_path):
    place = StagedRows(tmp_path)
    made = place.as_table().make(rows(0, 0).schema)
    again = place.as_table().make(pa.schema([("other", pa.int8())]))
    assert again == made == RowsFolder(place.as_table().identifier).table()
