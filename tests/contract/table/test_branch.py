"""``branch=``: commits land on the branch, read what it shows, and leave the main branch alone."""

from __future__ import annotations

import pytest
from contract.table.scenes import BEFORE, MODES, NEW, SPECS, append, put, rows, world_with
from protocol.crash.maintenance import forget_the_record
from support.readers import assert_same_everywhere

from airflow_ckpt_provider.exceptions import InvalidInputError, RolledBackError
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.attempt import WriteAttempt

SPEC = SPECS["identity"]
MORE = rows(200, 3)


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = world_with(tmp_path, SPEC)
    monkeypatch.setattr(world, "as_table", lambda name="shop.orders": CatalogTable(world.catalog, name, "audit"))
    put(world, NEW)
    return world


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_new_branch_begins_where_the_main_branch_is(world, mode):
    world.commit(world.stage(mode.request(world)))
    assert_same_everywhere(world.table(), mode.after(BEFORE, NEW, SPEC), branch="audit")
    assert_same_everywhere(world.table(), BEFORE)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_branch_that_is_there_is_written_as_it_is(world, mode):
    table = world.table()
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    append(world.table(), MORE)
    world.commit(world.stage(mode.request(world)))
    # A second one takes what is on the branch, and not what is on the main branch.
    world.commit(world.stage(mode.request(world, on_rerun="replace")))
    assert_same_everywhere(world.table(), mode.after(BEFORE, NEW, SPEC), branch="audit")
    assert_same_everywhere(world.table(), BEFORE + MORE)


def test_a_lost_record_is_found_in_the_history_of_the_branch(world):
    attempt = world.stage()
    world.commit(attempt)
    forget_the_record(world, attempt.checkpoint)
    append(world.table(), MORE)
    assert not world.commit(world.stage())[0].landed_now
    assert_same_everywhere(world.table(), BEFORE + NEW, branch="audit")


def test_a_branch_that_was_removed_is_not_made_again_by_a_retry(world):
    attempt = world.stage()
    world.commit(attempt)
    forget_the_record(world, attempt.checkpoint)
    world.table().manage_snapshots().remove_branch("audit").commit()
    with pytest.raises(RolledBackError):
        world.commit(attempt)
    assert "audit" not in world.table().refs()


def test_a_tag_is_refused_before_anything_is_stored(world):
    table = world.table()
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "audit").commit()
    with pytest.raises(InvalidInputError, match="'audit' is a tag"):
        world.stage()
    assert list((world.root / "store").rglob("*.json")) == []


def test_a_table_without_a_snapshot_has_no_other_branch_than_main(world):
    world.create_table("shop.new")
    with pytest.raises(InvalidInputError, match="no snapshot yet"):
        world.stage(name="shop.new")
    assert list((world.root / "store").rglob("*.json")) == []


def test_a_table_is_created_on_its_main_branch(world):
    with pytest.raises(InvalidInputError, match=r"create shop.new without branch='audit'"):
        world.stage(world.request(mode="create"), name="shop.new")


def test_one_key_is_for_one_branch(world, monkeypatch):
    world.stage()
    main = CatalogTable(world.catalog, "shop.orders")
    with pytest.raises(Exception, match="branch: was 'audit', is now 'main'"):
        WriteAttempt(world.store, main, world.request())


def test_branches_do_not_land_in_one_commit(world):
    first = world.stage(world.request("audited"))
    other = WriteAttempt(world.store, CatalogTable(world.catalog, "shop.orders"), world.request("main"))
    with pytest.raises(InvalidInputError, match="branches"):
        groups.commit([first.checkpoint, other.checkpoint], world.as_table())
