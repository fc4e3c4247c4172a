"""What a write promises, on every catalog: one snapshot, exact rows, and errors that say what to do."""

from __future__ import annotations

import pytest
from contract.catalog.landed import assert_landed, assert_nothing_landed
from contract.catalog.modes import TABLE

from airflow_ckpt_provider.exceptions import (
    OutcomeUnknownError,
    RetryableError,
    RolledBackError,
    TableExistsError,
    TableMissingError,
)
from airflow_ckpt_provider.write import commit_loop, groups
from airflow_ckpt_provider.write.cleanup import clean


@pytest.fixture
def impatient(monkeypatch):
    """The commit gives up at once, as it does after ten minutes without a usable answer."""
    monkeypatch.setattr(commit_loop, "PATIENCE_S", 0.0)


def test_a_write_lands_in_one_snapshot_and_a_repeated_commit_finds_it(world, mode):
    (first,) = world.commit(mode.stage(world))
    (again,) = world.commit(mode.stage(world))
    assert (first.landed_now, again.landed_now) == (True, False)
    assert again.commit.commit_id == first.commit.commit_id == world.table().current_snapshot().snapshot_id
    assert_landed(world, mode)


def test_the_record_lost_the_table_still_tells_that_the_write_has_landed(world, mode):
    attempt = mode.stage(world)
    (first,) = world.commit(attempt)
    (record,) = world.root.glob("store/*/g1/commit.json")
    record.unlink()
    (again,) = world.commit(attempt)
    assert again.commit.commit_id == first.commit.commit_id
    assert again.landed_now is False
    assert_landed(world, mode)


def test_a_clean_up_removes_what_a_killed_attempt_left_and_no_more(world, mode):
    attempt = mode.stage(world)
    work = attempt.begin("a test", 1)
    split = attempt.checkpoint.plans()[0].splits[0]
    work.writer.write(work.reader.read(split, None), work.paths.file_stem(split.id, f"{work.attempt_id}.killed"))
    world.commit(attempt)
    (one,) = clean(attempt.checkpoint, lambda _: world.as_table())
    # At least a data file and its manifest, or the staged source file of an upsert.
    assert (one.files >= 1, one.left) == (True, "")
    assert_landed(world, mode)
    (again,) = clean(attempt.checkpoint, lambda _: world.as_table())
    assert again.files == 0


def test_a_table_that_is_not_there_is_an_error_that_names_it(world, mode):
    with pytest.raises(TableMissingError, match=r"shop\.nothing does not exist in the catalog 'iceberg_default'"):
        world.as_table("shop.nothing").load()
    with pytest.raises(TableMissingError, match=r"nowhere\.nothing does not exist in the catalog 'iceberg_default'"):
        world.as_table("nowhere.nothing").load()


def test_a_table_dropped_after_the_stage_gets_no_rows(world, mode):
    attempt = mode.stage(world)
    if mode.creates:
        world.commit(attempt)
    world.catalog.drop_table(TABLE)
    with pytest.raises((TableMissingError, RolledBackError), match=r"shop\.orders"):
        world.commit(attempt)
    assert world.catalog.list_tables("shop") == []


def test_a_table_dropped_and_created_anew_after_the_stage_gets_no_rows(world, mode):
    attempt = mode.stage(world)
    if not mode.creates:
        world.catalog.drop_table(TABLE)
    world.create_table(TABLE)
    with pytest.raises((TableMissingError, TableExistsError), match=r"shop\.orders"):
        world.commit(attempt)
    assert world.table().snapshots() == []


def test_a_catalog_that_does_not_answer_fails_the_try_and_the_retry_lands_the_write(world, mode, backend):
    attempt = mode.stage(world)
    with backend.away() as catalog, pytest.raises(RetryableError, match=r"shop\.orders"):
        groups.commit([attempt.checkpoint], world.as_table(catalog=catalog))
    assert_nothing_landed(world, mode)
    (landed,) = world.commit(mode.stage(world))
    assert landed.landed_now
    assert_landed(world, mode)


def goes_away_at_the_first_commit(world, backend):
    """A catalog that does not answer the first request to commit, and all others."""
    catalog = world.catalog
    commit_table, asked = catalog.commit_table, []

    def commit_or_not(*request):
        asked.append(request)
        if len(asked) > 1:
            return commit_table(*request)
        with backend.away() as gone:
            return gone.commit_table(*request)

    catalog.commit_table = commit_or_not
    return catalog


def test_a_catalog_that_does_not_answer_a_commit_is_asked_again(world, mode, backend):
    attempt = mode.stage(world)
    (landed,) = groups.commit([attempt.checkpoint], world.as_table(catalog=goes_away_at_the_first_commit(world, backend)))
    assert landed.landed_now
    assert_landed(world, mode)


def test_a_commit_that_was_never_answered_fails_the_try_and_the_retry_lands_it(world, mode, backend, impatient):
    attempt = mode.stage(world)
    # A catalog that is back by then with its connections cut does not answer the last look either.
    with pytest.raises((OutcomeUnknownError, RetryableError), match=r"shop\.orders"):
        groups.commit([attempt.checkpoint], world.as_table(catalog=goes_away_at_the_first_commit(world, backend)))
    assert_nothing_landed(world, mode)
    world.commit(mode.stage(world))
    assert_landed(world, mode)
