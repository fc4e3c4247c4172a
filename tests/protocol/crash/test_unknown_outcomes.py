"""A commit whose outcome the client cannot know: whatever the catalog answered, the table's history decides."""

from __future__ import annotations

import pytest
from protocol.crash.exactly_once import assert_exactly_once, own_snapshots
from protocol.crash.faulty_catalog import FaultyCatalog
from support.world import World

from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import CommitRefusedError, OutcomeUnknownError
from airflow_ckpt_provider.write import commit_loop, groups

pytestmark = pytest.mark.crash

IDS = list(range(40))


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files(2, 20)
    return world


@pytest.fixture
def impatient(monkeypatch):
    """The commit gives up at once, as it does after ten minutes without a usable answer."""
    monkeypatch.setattr(commit_loop, "PATIENCE_S", 0.0)


def commit_through(world, catalog, attempt):
    return groups.commit([attempt.checkpoint], world.as_table(catalog=catalog))


@pytest.mark.parametrize(
    ("faults", "requests"),
    [
        (["reply_lost_after_landing"], 1),
        (["landed_but_reported_as_conflict"], 1),
        (["landed_but_reported_as_forbidden"], 1),
        (["fails_before_applying"], 2),
        (["fails_before_applying", "fails_before_applying", "reply_lost_after_landing"], 3),
        (["applied_later"], 2),
        (["applied_later", "zombies_applied_first"], 2),
        (["applied_later", "applied_later", "zombies_applied_first"], 3),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_one_snapshot_whatever_the_catalog_answers(world, faults, requests):
    catalog = FaultyCatalog(world, *faults)
    settled = commit_through(world, catalog, world.stage())
    catalog.apply_zombies()
    assert catalog.requests == requests
    assert settled[0].commit.commit_id == world.table().current_snapshot().snapshot_id
    assert_exactly_once(world, IDS)


def test_a_zombie_request_that_is_applied_after_the_commit_is_rejected_by_its_base(world):
    catalog = FaultyCatalog(world, "applied_later")
    commit_through(world, catalog, world.stage())
    assert len(catalog.apply_zombies()) == 1
    assert_exactly_once(world, IDS)


@pytest.mark.usefixtures("impatient")
def test_a_zombie_request_that_lands_after_the_task_gave_up_is_found_by_the_retry(world):
    catalog = FaultyCatalog(world, "applied_later")
    with pytest.raises(OutcomeUnknownError, match=r"'orders'.*shop\.orders.*retry the commit"):
        commit_through(world, catalog, world.stage())
    assert own_snapshots(world) == []
    assert catalog.apply_zombies() == []
    (again,) = world.commit(world.stage())
    assert again.landed_now is False
    assert_exactly_once(world, IDS)


@pytest.mark.usefixtures("impatient")
def test_a_zombie_request_that_lands_before_the_stage_runs_again_is_reported_as_committed(world):
    catalog = FaultyCatalog(world, "applied_later")
    with pytest.raises(OutcomeUnknownError):
        commit_through(world, catalog, world.stage())
    catalog.apply_zombies()
    assert world.attempt().state is State.COMMITTED
    assert_exactly_once(world, IDS)


def test_a_refused_commit_changes_nothing_says_so_and_succeeds_once_it_is_allowed(world):
    attempt = world.stage()
    with pytest.raises(CommitRefusedError, match=r"'orders'.*not allowed to write.*stays staged"):
        commit_through(world, FaultyCatalog(world, "forbidden"), attempt)
    assert own_snapshots(world) == []
    world.commit(attempt)
    assert_exactly_once(world, IDS)


def test_a_refusal_after_a_lost_reply_is_not_believed(world):
    catalog = FaultyCatalog(world, "applied_later", "forbidden")
    attempt = world.stage()
    with pytest.raises(CommitRefusedError):
        commit_through(world, catalog, attempt)
    assert catalog.apply_zombies() == []
    world.commit(attempt)
    assert_exactly_once(world, IDS)
