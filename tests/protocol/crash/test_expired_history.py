"""The table's history is cut or turned back between attempts: absence of the snapshot is not proof of anything (I10)."""

from __future__ import annotations

import msgspec
import pyarrow.parquet as pq
import pytest
from protocol.crash.exactly_once import own_snapshots
from protocol.crash.maintenance import (
    FOREIGN,
    expire_all_but_the_head,
    foreign_append,
    forget_commits,
    forget_the_record,
    roll_back_to,
)
from support.world import ORIGIN, World, rows

from airflow_ckpt_provider.exceptions import HistoryExpiredError, RolledBackError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.iceberg.history import REMEMBERED

pytestmark = pytest.mark.crash

IDS = list(range(40))


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files(2, 20)
    return world


def landed_without_record(world):
    """A commit whose process died between the table and the commit record."""
    attempt = world.stage()
    world.commit(attempt)
    forget_the_record(world, attempt.checkpoint)
    return attempt


def committed_under(world, key, start, task_id=ORIGIN.task_id):
    """A later write, of one row, of the same task or of another."""
    folder = world.input / key
    folder.mkdir()
    pq.write_table(rows(start, 1), folder / "0.parquet")
    origin = msgspec.structs.replace(ORIGIN, task_id=task_id)
    world.commit(world.stage(world.request(key, source=Files(f"{folder}/*.parquet"), origin=origin)))
    return [start]


def state_of(world):
    return world.table().metadata


def test_a_landed_commit_is_not_repeated_after_its_snapshot_expired(world):
    attempt = landed_without_record(world)
    foreign = foreign_append(world)
    expire_all_but_the_head(world)
    assert own_snapshots(world) == []
    (again,) = world.commit(attempt)
    assert again.landed_now is False
    assert again.commit.rows == 40
    assert world.ids() == IDS + foreign


def test_a_stage_that_runs_again_after_its_snapshot_expired_reports_the_commit(world):
    landed_without_record(world)
    foreign = foreign_append(world)
    expire_all_but_the_head(world)
    assert world.stage().commit is not None
    assert world.ids() == IDS + foreign


def test_expired_history_without_the_property_fails_closed_and_changes_nothing(world):
    attempt = landed_without_record(world)
    foreign_append(world)
    expire_all_but_the_head(world)
    forget_commits(world)
    before = state_of(world)
    with pytest.raises(HistoryExpiredError, match=r"'orders'.*shop\.orders.*Nothing was changed.*mark the task as success"):
        world.commit(attempt)
    with pytest.raises(HistoryExpiredError):
        world.attempt()
    assert state_of(world) == before
    assert attempt.checkpoint.committed() is None


def test_a_property_that_was_removed_and_begun_anew_by_another_key_takes_up_what_history_shows(world):
    attempt = landed_without_record(world)
    forget_commits(world)
    later = committed_under(world, "later", 500)
    foreign = foreign_append(world)
    expire_all_but_the_head(world)
    (again,) = world.commit(attempt)
    assert again.landed_now is False
    assert world.ids() == IDS + later + foreign


def test_a_property_removed_after_expiry_and_begun_anew_by_another_key_fails_closed(world):
    attempt = landed_without_record(world)
    foreign = foreign_append(world)
    expire_all_but_the_head(world)
    forget_commits(world)
    later = committed_under(world, "later", 500)
    with pytest.raises(HistoryExpiredError):
        world.commit(attempt)
    assert world.ids() == IDS + later + foreign


def test_a_commit_that_never_landed_lands_after_history_expired_if_the_property_reaches_back(world, runs):
    # Bound, and killed before the table was touched.
    bound = runs.run(world, fatal=30).effects
    assert bound[-1] == "after put g1/group.json"
    later = committed_under(world, "later", 500)
    foreign = foreign_append(world)
    expire_all_but_the_head(world)
    (landed,) = world.commit(world.stage())
    assert landed.landed_now is True
    assert world.ids() == IDS + later + foreign


def test_a_commit_bound_before_and_expired_history_of_foreign_writers_only_fails_closed(world, runs):
    runs.run(world, fatal=30)
    foreign_append(world, FOREIGN)
    foreign_append(world, FOREIGN + 5)
    expire_all_but_the_head(world)
    before = state_of(world)
    with pytest.raises(HistoryExpiredError):
        world.attempt()
    assert state_of(world) == before


def test_history_that_expired_before_the_first_commit_was_begun_does_not_matter(world):
    first = foreign_append(world, FOREIGN)
    second = foreign_append(world, FOREIGN + 5)
    expire_all_but_the_head(world)
    (landed,) = world.commit(world.stage())
    assert landed.landed_now is True
    assert world.ids() == IDS + first + second


def test_a_commit_followed_by_more_than_the_property_holds_and_expiry_fails_closed(world):
    attempt = landed_without_record(world)
    later = [n for number in range(REMEMBERED) for n in committed_under(world, f"later-{number}", 500 + number)]
    expire_all_but_the_head(world)
    before = state_of(world)
    with pytest.raises(HistoryExpiredError):
        world.commit(attempt)
    assert state_of(world) == before
    assert world.ids() == IDS + later


def test_a_commit_followed_by_as_many_as_the_property_holds_is_still_found(world):
    attempt = landed_without_record(world)
    later = [n for number in range(REMEMBERED - 1) for n in committed_under(world, f"later-{number}", 500 + number)]
    expire_all_but_the_head(world)
    (again,) = world.commit(attempt)
    assert again.landed_now is False
    assert world.ids() == IDS + later


def test_a_commit_is_found_whatever_other_tasks_commit_meanwhile(world):
    attempt = landed_without_record(world)
    foreign = foreign_append(world)
    later = [n for number in range(3) for n in committed_under(world, f"later-{number}", 500 + number, f"task-{number}")]
    expire_all_but_the_head(world)
    (again,) = world.commit(attempt)
    assert again.landed_now is False
    assert world.ids() == sorted([*IDS, *later, *foreign])


def test_a_commit_that_was_rolled_back_is_not_repeated(world):
    foreign = foreign_append(world)
    base = world.table().current_snapshot().snapshot_id
    attempt = landed_without_record(world)
    roll_back_to(world, base)
    before = state_of(world)
    with pytest.raises(RolledBackError, match=r"'orders'.*rolled back.*another\s+idempotence key"):
        world.commit(attempt)
    assert state_of(world) == before
    assert world.ids() == foreign


def test_a_recorded_commit_that_was_rolled_back_is_reported_by_the_stage(world):
    foreign_append(world)
    base = world.table().current_snapshot().snapshot_id
    world.commit(world.stage())
    roll_back_to(world, base)
    with pytest.raises(RolledBackError):
        world.attempt().verify_commit()
