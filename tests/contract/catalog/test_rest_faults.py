"""A REST catalog whose commits go wrong: whatever it answers, one snapshot, and a retry finds it."""

from __future__ import annotations

import time

import pytest
from contract.catalog.landed import assert_landed, assert_nothing_landed
from contract.catalog.modes import FAULTED, SWAPS
from support.rest_catalog import AFTER, AWAY, BEFORE, REFUSED, SILENT, ZOMBIE
from support.world import World

from airflow_ckpt_provider.exceptions import CommitRefusedError, InvalidInputError, OutcomeUnknownError, RetryableError
from airflow_ckpt_provider.tables.catalogs import CONNECT_TIMEOUT, READ_TIMEOUT, BoundedRestCatalog
from airflow_ckpt_provider.write import commit_loop, groups


@pytest.fixture(params=SWAPS, ids=lambda mode: mode.name)
def mode(request):
    return request.param


@pytest.fixture
def world(rest_server, mode, tmp_path):
    world = World(tmp_path, {"type": "rest", "uri": rest_server.uri})
    mode.prepare(world)
    rest_server.commits.clear()
    return world


@pytest.fixture
def impatient(monkeypatch):
    """The commit gives up at once, as it does after ten minutes without a usable answer."""
    monkeypatch.setattr(commit_loop, "PATIENCE_S", 0.0)


def landed(world, mode):
    """Committed, the rows are there once, and committing again finds that; the first outcome."""
    (first,) = world.commit(mode.stage(world))
    (again,) = world.commit(mode.stage(world))
    assert again.landed_now is False
    assert again.commit.commit_id == first.commit.commit_id
    assert_landed(world, mode)
    return first


@pytest.mark.parametrize("fault", AFTER)
def test_a_commit_that_was_applied_is_found_whatever_was_answered(world, mode, rest_server, fault):
    rest_server.faults.append(fault)
    landed(world, mode)
    assert rest_server.commits == [f"{fault} 200"]


@pytest.mark.parametrize("fault", BEFORE)
def test_a_commit_that_was_not_applied_is_sent_again(world, mode, rest_server, fault):
    rest_server.faults.append(fault)
    assert landed(world, mode).landed_now
    assert rest_server.commits == [f"{fault} -", "200"]


@pytest.mark.parametrize("mode", FAULTED, ids=lambda mode: mode.name, indirect=True)
def test_a_chain_of_faults_ends_in_one_snapshot(world, mode, rest_server):
    rest_server.faults.extend(["503 before", "drop before", ZOMBIE, "garbage before", "504 after"])
    landed(world, mode)
    # The request of which nobody knew anything more was applied after the one that landed, and its base was gone.
    assert rest_server.commits == ["503 before -", "drop before -", "zombie -", "garbage before -", "504 after 200"]
    assert rest_server.zombies == [409]


def test_a_request_that_is_applied_after_the_one_that_landed_is_rejected_by_its_base(world, mode, rest_server):
    rest_server.faults.append(ZOMBIE)
    assert landed(world, mode).landed_now
    assert rest_server.commits == ["zombie -", "200"]
    assert rest_server.zombies == [409]


def test_a_request_that_is_applied_after_the_try_gave_up_is_found_by_the_retry(world, mode, rest_server, impatient):
    rest_server.faults.append(ZOMBIE)
    with pytest.raises(OutcomeUnknownError, match=r"'orders' to shop\.orders.*CommitStateUnknownException.*retry the commit task"):
        world.commit(mode.stage(world))
    assert_nothing_landed(world, mode)
    rest_server.release_zombies()
    assert rest_server.zombies == [200]
    assert landed(world, mode).landed_now is False
    assert len(rest_server.commits) == 1


@pytest.mark.parametrize("fault", BEFORE)
def test_a_try_that_gave_up_is_of_unknown_outcome_and_the_retry_lands_it(world, mode, rest_server, fault, impatient):
    rest_server.faults.append(fault)
    with pytest.raises(OutcomeUnknownError, match=r"(?s)'orders' to shop\.orders.*retry the commit task"):
        world.commit(mode.stage(world))
    assert_nothing_landed(world, mode)
    assert landed(world, mode).landed_now


@pytest.mark.parametrize("mode", SWAPS[:1], ids=lambda mode: mode.name, indirect=True)
@pytest.mark.parametrize("fault", AFTER)
def test_a_try_that_gives_up_looks_into_the_table_a_last_time(world, mode, rest_server, fault, impatient):
    rest_server.faults.append(fault)
    landed(world, mode)


def test_a_catalog_that_goes_away_with_its_answer_fails_the_try_and_the_retry_finds_the_commit(world, mode, rest_server, impatient):
    rest_server.faults.append(AWAY)
    attempt = mode.stage(world)
    with pytest.raises(RetryableError, match=r"shop\.orders"):
        world.commit(attempt)
    rest_server.reachable = True
    assert landed(world, mode).landed_now is False
    assert rest_server.commits == [f"{AWAY} 200"]


def bounded(world):
    """The catalog, with time-outs of a fraction of a second."""
    return BoundedRestCatalog("iceberg_default", **world.catalog.properties, **{CONNECT_TIMEOUT: "300", READ_TIMEOUT: "300"})


@pytest.mark.parametrize("fault", SILENT)
def test_a_commit_that_is_never_answered_is_looked_for_after_a_time_out(world, mode, rest_server, fault):
    rest_server.faults.append(fault)
    attempt = mode.stage(world)
    began = time.monotonic()
    (settled,) = groups.commit([attempt.checkpoint], world.as_table(catalog=bounded(world)))
    assert time.monotonic() - began < 10
    assert settled.commit.commit_id is not None
    assert_landed(world, mode)
    assert rest_server.commits == ([f"{fault} 200"] if fault == "silence after" else [f"{fault} -", "200"])


@pytest.mark.parametrize("mode", SWAPS[:1], ids=lambda mode: mode.name, indirect=True)
def test_a_catalog_that_falls_silent_fails_the_try_and_the_retry_finds_the_commit(world, mode, rest_server, impatient):
    rest_server.faults.append("silence before")
    with pytest.raises(OutcomeUnknownError, match=r"'orders' to shop\.orders.*[Tt]imed? ?out.*retry the commit task"):
        groups.commit([mode.stage(world).checkpoint], world.as_table(catalog=bounded(world)))
    assert landed(world, mode).landed_now


@pytest.mark.parametrize("mode", SWAPS[:1], ids=lambda mode: mode.name, indirect=True)
@pytest.mark.parametrize("value", ["soon", "0", "-1", "inf", ""])
def test_a_time_out_that_is_no_time_is_refused(world, mode, value):
    with pytest.raises(InvalidInputError, match=READ_TIMEOUT):
        BoundedRestCatalog("iceberg_default", **world.catalog.properties, **{READ_TIMEOUT: value})


@pytest.mark.parametrize("fault", REFUSED)
@pytest.mark.parametrize("mode", SWAPS[:1], ids=lambda mode: mode.name, indirect=True)
def test_a_commit_that_landed_and_was_answered_by_a_refusal_is_found(world, mode, rest_server, fault):
    fault = fault.replace("before", "after")
    rest_server.faults.append(fault)
    landed(world, mode)
    assert rest_server.commits[0] == f"{fault} 200"


@pytest.mark.parametrize("fault", REFUSED)
def test_a_commit_that_is_not_allowed_is_refused_and_lands_once_it_is(world, mode, rest_server, fault):
    # A client whose token is refused fetches another and sends the request a second time.
    rest_server.faults.extend([fault, fault])
    attempt = mode.stage(world)
    began = time.monotonic()
    with pytest.raises(CommitRefusedError, match=r"commit of the key 'orders' to shop\.orders was refused.*stays staged.*clear"):
        world.commit(attempt)
    assert time.monotonic() - began < 10
    rest_server.faults.clear()
    assert_nothing_landed(world, mode)
    assert landed(world, mode).landed_now
