"""A restart while an earlier commit of the key is under way: the rows are there in one version, or the restart is refused."""

from __future__ import annotations

import hashlib

import pytest
from protocol.crash.exactly_once import assert_exactly_once, generations, own_snapshots
from protocol.crash.faulty_catalog import FaultyCatalog
from protocol.crash.maintenance import expire_all_but_the_head, foreign_append, forget_the_record, roll_back_to
from protocol.crash.run_to import marked
from support.world import World

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.exceptions import (
    CorruptObjectError,
    DiscardedError,
    HistoryExpiredError,
    OutcomeUnknownError,
    RestartRefusedError,
)
from airflow_ckpt_provider.write import commit_loop, groups
from airflow_ckpt_provider.write.cleanup import clean

pytestmark = pytest.mark.crash

IDS = list(range(40))


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files(2, 20)
    return world


@pytest.fixture
def in_flight(world, monkeypatch):
    """A commit of the first generation that the catalog has received, and applies when told to."""
    monkeypatch.setattr(commit_loop, "PATIENCE_S", 0.0)
    catalog = FaultyCatalog(world, "applied_later")
    with pytest.raises(OutcomeUnknownError):
        groups.commit([world.stage().checkpoint], world.as_table(catalog=catalog))
    return catalog


def restarted(world):
    return world.stage(world.request(transform=marked, on_change="restart"))


def kinds(world):
    return set(world.table().scan().to_arrow()["kind"].to_pylist())


def test_the_newer_generation_wins_if_it_lands_first(world, in_flight):
    world.commit(restarted(world))
    assert len(in_flight.apply_zombies()) == 1
    assert kinds(world) == {"marked"}
    assert_exactly_once(world, IDS)


def test_the_newer_generation_is_refused_if_the_older_commit_landed_while_it_was_staged(world, in_flight):
    newer = restarted(world)
    in_flight.apply_zombies()
    with pytest.raises(RestartRefusedError, match=r"'orders'.*landed after all.*nothing was changed"):
        world.commit(newer)
    assert "marked" not in kinds(world)
    assert world.ids() == IDS


def test_the_newer_generation_is_refused_if_the_older_commit_landed_and_expired_since(world, in_flight):
    newer = restarted(world)
    in_flight.apply_zombies()
    foreign = foreign_append(world)
    expire_all_but_the_head(world)
    with pytest.raises(RestartRefusedError):
        world.commit(newer)
    assert world.ids() == IDS + foreign


def test_the_newer_generation_fails_closed_if_history_and_property_cannot_tell(world, in_flight):
    newer = restarted(world)
    foreign = foreign_append(world) + foreign_append(world, 2_000_000)
    expire_all_but_the_head(world)
    with pytest.raises(HistoryExpiredError, match=r"'orders'.*shop\.orders"):
        world.commit(newer)
    assert world.ids() == foreign


def test_the_newer_generation_lands_if_the_older_commit_was_rolled_back(world, in_flight):
    foreign = foreign_append(world)
    base = world.table().current_snapshot().snapshot_id
    # The request in flight carries a base that is gone; it is the first generation's own retry that lands and is taken back.
    assert len(in_flight.apply_zombies()) == 1
    first = world.attempt()
    world.commit(first)
    forget_the_record(world, first.checkpoint)
    newer_than = generations(world, "orders")[0]
    newer_than.discard("as a restart does")
    roll_back_to(world, base)
    world.commit(restarted(world))
    assert world.ids() == IDS + foreign
    assert kinds(world) >= {"marked"}


def test_the_older_generation_cannot_be_committed_any_more_after_a_restart(world, in_flight):
    older = generations(world, "orders")[0]
    newer = restarted(world)
    with pytest.raises(DiscardedError, match=r"Generation 1 of the key 'orders' was discarded.*newer stage run"):
        groups.commit([older], world.as_table())
    world.commit(newer)
    with pytest.raises(DiscardedError):
        groups.commit([older], world.as_table())
    assert_exactly_once(world, IDS)


def test_a_restart_of_a_landed_write_is_refused_and_the_original_goes_on(world):
    attempt = world.stage()
    world.commit(attempt)
    forget_the_record(world, attempt.checkpoint)
    with pytest.raises(RestartRefusedError, match=r"'orders', generation 1, is committed as snapshot \d+ of shop\.orders"):
        restarted(world)
    assert world.stage().commit is not None
    assert_exactly_once(world, IDS)


def test_the_same_restart_token_is_served_once_however_often_it_is_retried(world):
    world.stage()
    for splits in (1, None, None):
        attempt = world.stage(world.request(restart_token="manual__2"), splits=splits)
    world.commit(attempt)
    assert [one.header.restart_token for one in generations(world, "orders")] == [None, "manual__2"]
    assert_exactly_once(world, IDS)


def test_three_generations_land_once(world, in_flight):
    second = world.stage(world.request(restart_token="second"))
    catalog = FaultyCatalog(world, "applied_later")
    with pytest.raises(OutcomeUnknownError):
        groups.commit([second.checkpoint], world.as_table(catalog=catalog))
    third = world.stage(world.request(restart_token="third"))
    catalog.apply_zombies()
    assert len(in_flight.apply_zombies()) == 1
    with pytest.raises(RestartRefusedError):
        world.commit(third)
    assert len(own_snapshots(world)) == 1
    assert world.ids() == IDS


@pytest.mark.timeout(30)
@pytest.mark.parametrize("replaces", [1, 2, 3])
def test_a_forged_header_that_replaces_itself_or_a_later_generation_ends_in_an_error(world, in_flight, replaces):
    """Whoever writes it can compute its checksum: commits, retries and clean-ups would go round in a circle."""
    newer = restarted(world) if replaces > 1 else world.stage()
    path = world.root / "store" / newer.checkpoint.paths.header
    body = path.read_bytes().split(b',"sha256"')[0].replace(b'"replaces":null', b'"replaces":%d' % replaces)
    path.write_bytes(body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n')
    with pytest.raises(CorruptObjectError, match=r"header\.json.*only an earlier one"):
        world.stage()
    with pytest.raises(CorruptObjectError, match=r"header\.json"):
        Checkpoint.latest(world.store, newer.checkpoint.key)
    with pytest.raises(CorruptObjectError, match=r"header\.json"):
        list(clean(newer.checkpoint, lambda _: world.as_table()))
