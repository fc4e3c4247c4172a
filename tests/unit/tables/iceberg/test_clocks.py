"""The clocks of those who write to a table disagree: its times never go back, and every reader still takes it."""

from __future__ import annotations

import itertools
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.readers import assert_same_everywhere
from support.world import World, rows

from airflow_ckpt_provider.exceptions import RetryableError
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.attempt import WriteAttempt

HOUR_MS = 3_600_000


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files(2, 10)
    return world


def append_with_a_clock_ahead(world, monkeypatch, start=1000):
    """Somebody whose clock is three hours ahead appends five rows."""
    true = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: true() + 3 * 3600)
        table = world.table()
        table.append(rows(start, 5).cast(table.schema().as_arrow()))


def assert_in_order(table):
    metadata = table.metadata
    for times in (
        [entry.timestamp_ms for entry in metadata.snapshot_log],
        [entry.timestamp_ms for entry in metadata.metadata_log] + [metadata.last_updated_ms],
        [one.timestamp_ms for one in sorted(metadata.snapshots, key=lambda one: one.sequence_number)],
    ):
        assert all(before <= after for before, after in itertools.pairwise(times)), times


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_commit_behind_the_last_one_of_a_clock_ahead_has_a_later_time(world, monkeypatch, mode):
    append_with_a_clock_ahead(world, monkeypatch)
    last = world.table().metadata.last_updated_ms
    assert last > time.time() * 1000 + 2 * HOUR_MS
    (settled,) = world.commit(world.stage(world.request(mode=mode)))
    assert settled.landed_now
    assert world.table().current_snapshot().timestamp_ms == last + 1
    (again,) = world.commit(world.stage(world.request(mode=mode)))
    assert again.commit == settled.commit
    world.commit(world.stage(world.request("more")))
    table = world.table()
    assert_in_order(table)
    own = 20 if mode == "append" else 0
    both = pa.concat_tables([rows(1000, 5), rows(0, 20), rows(0, 20)] if own else [rows(0, 20), rows(0, 20)])
    assert_same_everywhere(table, both)


def test_a_commit_on_a_branch_has_a_later_time_than_what_others_committed_to_another(world, monkeypatch):
    before = world.table()
    before.append(rows(500, 5).cast(before.schema().as_arrow()))
    before.manage_snapshots().create_branch(before.current_snapshot().snapshot_id, "audit").commit()
    append_with_a_clock_ahead(world, monkeypatch)
    last = world.table().metadata.last_updated_ms
    attempt = sealed_for(world, "audit")
    groups.commit([attempt.checkpoint], table_of(world, "audit"))
    table = world.table()
    assert table.snapshot_by_name("audit").timestamp_ms > last
    assert_in_order(table)
    assert_same_everywhere(table, pa.concat_tables([rows(500, 5), rows(0, 20)]), branch="audit")


def table_of(world, branch):
    return CatalogTable(world.catalog, "shop.orders", branch)


def sealed_for(world, branch):
    attempt = WriteAttempt(world.store, table_of(world, branch), world.request())
    while (found := attempt.next_round()) is not None:
        work = attempt.begin("none", 1)
        for split in found.missing:
            work.run(split, "0")
    attempt.seal()
    return attempt


def test_columns_are_not_changed_with_a_time_far_before_the_last_one(world, monkeypatch):
    append_with_a_clock_ahead(world, monkeypatch)
    before = world.table().metadata_location
    pq.write_table(rows(0, 10).append_column("more", pa.array(["x"] * 10)), world.input / "0.parquet")
    with pytest.raises(
        RetryableError, match=r"shop\.orders has a time 1\d{4} s ahead of this machine's clock.*Nothing was changed"
    ):
        world.stage(world.request(evolve_schema=True))
    assert world.table().metadata_location == before


def test_columns_are_changed_a_moment_after_a_commit_of_a_clock_that_is_a_little_ahead(world, monkeypatch):
    true = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: true() + 20)
        table = world.table()
        table.append(rows(1000, 5).cast(table.schema().as_arrow()))
    for number in range(2):
        path = world.input / f"{number}.parquet"
        pq.write_table(rows(10 * number, 10).append_column("more", pa.array(["x"] * 10)), path)
    world.commit(world.stage(world.request(evolve_schema=True)))
    wide = [row | {"more": "x"} for row in rows(0, 20).to_pylist()]
    assert_same_everywhere(world.table(), [*rows(1000, 5).to_pylist(), *wide])
