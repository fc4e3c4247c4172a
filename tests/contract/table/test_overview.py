"""What is shown of a checkpoint, and what a person may do to it, whatever the format of its table is."""

from __future__ import annotations

import time

import msgspec
import pytest
from contract.table.both import ALL, BEFORE, Iceberg, Lance, StagedRows, of, only_even
from support.world import ORIGIN

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, now
from airflow_ckpt_provider.checkpoint.documents import Group
from airflow_ckpt_provider.checkpoint.group import bind
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import CheckpointMissingError, DiscardedError, InvalidInputError, RestartRefusedError
from airflow_ckpt_provider.overview.actions import Action, announce, newest, perform
from airflow_ckpt_provider.overview.details import details
from airflow_ckpt_provider.overview.facts import SplitState
from airflow_ckpt_provider.overview.listing import listing
from airflow_ckpt_provider.write.membership import group_id_of

KEY = IdempotenceKey("orders")


@pytest.fixture(params=[Iceberg, Lance, StagedRows], ids=["iceberg", "lance", "staged rows"])
def world(request, tmp_path):
    world = request.param(tmp_path)
    world.put_files()
    world.make()
    return world


def later(world, **changes):
    """Another attempt, which begins at another time than that at which the one before has ended."""
    time.sleep(0.02)
    return world.stage(world.request(**changes))


def do(world, action, key=KEY):
    return perform(action, newest(world.store, key), lambda _: world.as_table(), "ada")


def test_a_store_without_checkpoints_has_an_empty_list(world):
    assert listing(world.store) == []
    with pytest.raises(CheckpointMissingError, match="no checkpoint under the key 'orders'"):
        details(world.store, KEY)


def test_a_write_that_was_killed_shows_what_is_staged_and_what_a_retry_would_write(world):
    world.stage(splits=3)
    (found,) = listing(world.store)
    assert (found.key, found.state, found.splits, found.staged, found.attempts) == ("orders", State.STAGING, 4, 3, 1)
    assert (found.dag_id, found.task_id, found.run_id) == (ORIGIN.dag_id, ORIGIN.task_id, ORIGIN.run_id)
    assert found.rows is None
    shown = details(world.store, KEY)
    assert [split.state for split in shown.splits] == [SplitState.WRITTEN] * 3 + [SplitState.MISSING]
    assert shown.next_attempt.startswith("A retry keeps 3 of 4 splits and writes 1.")
    assert shown.kept is None


def test_a_retry_shows_what_it_did_not_have_to_write_again(world):
    world.stage(splits=3)
    world.commit(later(world))
    (found,) = listing(world.store)
    assert (found.state, found.splits, found.staged, found.rows, found.attempts) == (State.COMMITTED, 4, 4, 400, 2)
    assert found.commit_id == Checkpoint.latest(world.store, KEY).committed().commit_id
    shown = details(world.store, KEY)
    assert [(split.state, split.attempt) for split in shown.splits] == [(SplitState.RECOVERED, 1)] * 3 + [(SplitState.WRITTEN, 2)]
    assert (shown.kept.splits, shown.kept.rows) == (3, 300)
    assert shown.kept.bytes > 0
    assert shown.kept.seconds > 0
    assert [(attempt.number, attempt.staged) for attempt in shown.attempts] == [(1, 3), (2, 1)]
    assert "writes nothing" in shown.next_attempt
    assert shown.problems == []


def test_what_is_shown_is_json_with_states_by_name_and_times_in_utc(world):
    world.stage(splits=1)
    shown = details(world.store, KEY).to_json()
    assert shown["summary"]["state"] == "staging"
    assert shown["summary"]["created_at"].endswith("Z")
    assert msgspec.json.decode(msgspec.json.encode(shown)) == shown


def test_the_list_has_the_newest_generation_of_each_key_and_the_last_change_first(world):
    for key in ("orders/1", "orders/2", "returns/1"):
        world.stage(world.request(key), splits=1)
        time.sleep(0.02)
    do(world, Action.RESTART, IdempotenceKey("orders/1"))
    time.sleep(0.02)
    world.stage(world.request("orders/1"), splits=2)
    found = listing(world.store)
    assert [(one.key, one.generation) for one in found] == [("orders/1", 2), ("returns/1", 1), ("orders/2", 1)]
    assert [one.key for one in listing(world.store, "orders/*")] == ["orders/1", "orders/2"]
    assert [one.key for one in listing(world.store, "returns/1")] == ["returns/1"]
    assert listing(world.store, "nothing") == []


def test_a_header_that_cannot_be_read_is_a_line_that_says_so_and_hides_no_other(world):
    world.stage(world.request("broken"), splits=1)
    world.stage(splits=1)
    broken = Checkpoint.latest(world.store, IdempotenceKey("broken"))
    path = world.root / "store" / broken.paths.header
    path.write_bytes(path.read_bytes()[:-20])
    found = {one.key: one for one in listing(world.store)}
    assert found["orders"].problem == ""
    assert found[""].state is None
    assert broken.paths.header in found[""].problem
    assert found[""].folder == broken.paths.root.rstrip("/")


def test_a_plan_that_cannot_be_read_is_a_problem_beside_what_can(world):
    world.stage(splits=2)
    checkpoint = Checkpoint.latest(world.store, KEY)
    (world.root / "store" / checkpoint.paths.plan()).write_bytes(b"nothing of ours")
    shown = details(world.store, KEY)
    assert shown.summary.staged == 2
    assert any(checkpoint.paths.plan() in problem for problem in shown.problems)
    assert shown.splits == []


def test_a_restart_gives_up_what_is_staged_and_the_next_attempt_writes_everything_once(world):
    world.stage(splits=3)
    checkpoint = newest(world.store, KEY)
    said = announce(Action.RESTART, checkpoint, lambda _: world.as_table())
    assert "3 staged splits" in said
    assert checkpoint.discarded() is None
    assert "Clear the task 'stage' now." in do(world, Action.RESTART)
    assert details(world.store, KEY).discarded_because == "restart was asked for by ada"
    assert "opens generation 2" in details(world.store, KEY).next_attempt
    world.commit(later(world))
    assert world.read() == of(ALL, BEFORE)
    shown = details(world.store, KEY)
    assert (shown.summary.generation, shown.generations) == (2, [1, 2])
    assert [split.state for split in shown.splits] == [SplitState.WRITTEN] * 4
    assert details(world.store, KEY, 1).summary.state is State.DISCARDED


def test_a_discarded_write_is_not_committed_and_not_discarded_twice(world):
    attempt = world.stage()
    do(world, Action.DISCARD)
    with pytest.raises(DiscardedError, match="discard was asked for by ada"):
        world.commit(attempt)
    assert world.read() == of(BEFORE)
    with pytest.raises(DiscardedError):
        do(world, Action.DISCARD)


@pytest.mark.parametrize("action", [Action.RESTART, Action.DISCARD])
def test_what_has_landed_is_not_given_up_even_if_the_store_lost_the_record(world, action):
    world.commit(world.stage())
    checkpoint = newest(world.store, KEY)
    (world.root / "store" / checkpoint.paths.commit).unlink()
    with pytest.raises(RestartRefusedError, match=r'is committed to .*on_rerun="replace"'):
        do(world, action)
    assert checkpoint.discarded() is None
    assert world.read() == of(ALL, BEFORE)


@pytest.mark.parametrize("action", [Action.RESTART, Action.DISCARD])
def test_what_a_commit_may_still_land_is_not_given_up(world, action):
    attempt = world.stage()
    checkpoint = attempt.checkpoint
    members = (checkpoint.member,)
    facts = {"stream": checkpoint.header.stream, "bound_at": now(), "horizon": 0}
    bind(checkpoint, Group(id=group_id_of(members), members=members, **facts))
    with pytest.raises(RestartRefusedError, match=r"was begun at .* Clear its commit task"):
        do(world, action)
    assert checkpoint.discarded() is None


def test_a_continuation_keeps_what_is_staged_and_the_corrected_function_goes_on(world):
    world.stage(world.request(transform=only_even), splits=3)
    said = do(world, Action.CONTINUE)
    assert "keeps its 3 staged splits" in said
    checkpoint = newest(world.store, KEY)
    assert checkpoint.discarded() is None
    assert [code.transform for code in details(world.store, KEY).codes] == [checkpoint.header.transform]


def test_a_write_without_a_transform_has_no_code_to_go_on_with(world):
    world.stage(splits=3)
    with pytest.raises(InvalidInputError, match="has no transform"):
        do(world, Action.CONTINUE)
    assert details(world.store, KEY).codes == []
