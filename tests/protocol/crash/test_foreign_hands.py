"""What others may do to the table, the store or the key between two attempts must never end in a green commit without its rows."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.update import RemovePartitionSpecsUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType
from support.world import ORIGIN, World

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, now
from airflow_ckpt_provider.checkpoint.documents import Group
from airflow_ckpt_provider.checkpoint.group import bind
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    InvalidInputError,
    RestartRefusedError,
    RolledBackError,
    SchemaMismatchError,
)
from airflow_ckpt_provider.write import groups

pytestmark = pytest.mark.crash

IDS = list(range(40))


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files(2, 20)
    return world


def one_row(batch):
    return batch.slice(0, 1)


def no_rows(batch):
    return batch.slice(0, 0)


def test_files_of_a_partition_spec_that_was_removed_are_not_committed_and_the_table_stays_readable(tmp_path):
    world = World(tmp_path)
    world.create_table(spec=PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind")))
    world.put_files(2, 20)
    attempt = world.stage()
    table = world.table()
    old = table.spec().spec_id
    with table.update_spec() as update:
        update.remove_field("kind")
    world.catalog.commit_table(world.table(), (), (RemovePartitionSpecsUpdate(spec_ids=[old]),))
    with pytest.raises(SchemaMismatchError, match="partition spec"):
        world.commit(attempt)
    assert world.ids() == []


def test_one_key_in_two_stores_is_an_error_for_the_second_and_not_a_green_loss(world):
    world.commit(world.stage())
    world.store = CheckpointStore.at(str(world.root / "another-store"))
    with pytest.raises(BindingMismatchError, match="another checkpoint store"):
        world.stage(world.request(transform=one_row))
    assert world.ids() == IDS


def test_a_table_that_was_set_back_to_older_metadata_is_not_reported_as_committed(world):
    older = world.table().metadata_location
    attempt = world.stage()
    world.commit(attempt)
    world.catalog.drop_table("shop.orders")
    world.catalog.register_table("shop.orders", older)
    with pytest.raises(RolledBackError, match="set back"):
        world.attempt().verify_commit()
    with pytest.raises(RolledBackError, match="set back"):
        world.commit(attempt)


@pytest.mark.parametrize("key", ["None", 20260101])
def test_a_key_that_renders_to_nothing_or_to_no_text_is_refused(key):
    with pytest.raises(InvalidInputError, match=str(key)):
        IdempotenceKey(key)


def test_a_restart_for_another_table_stops_if_a_commit_began_meanwhile(world):
    world.create_table("shop.others")
    first = world.stage()
    # The commit binds its group after the restart looked, and before it puts its tombstone.
    members = (first.checkpoint.member,)
    first.checkpoint.discard("restart")
    stream = first.checkpoint.header.stream
    bind(first.checkpoint, Group(id=groups.group_id_of(members), members=members, stream=stream, bound_at=now(), horizon=0))
    with pytest.raises(RestartRefusedError, match="under way"):
        world.stage(name="shop.others")


def test_an_empty_newer_generation_notices_that_the_earlier_one_landed(world):
    first = world.stage()
    world.commit(first)
    (world.root / "store" / first.checkpoint.paths.commit).unlink()
    first.checkpoint.discard("too late: its commit had landed")
    with pytest.raises(RestartRefusedError, match="has landed"):
        world.stage(world.request(transform=no_rows))
    assert world.ids() == IDS


class EvolvesJustBeforeTheSwap(SqlCatalog):
    """Somebody makes a new column required between our last look and our swap."""

    done = False

    def commit_table(self, table, requirements, updates):
        if not self.done:
            self.done = True
            with self.load_table(table.name()).update_schema(allow_incompatible_changes=True) as update:
                update.add_column("needed", LongType(), required=True)
        return super().commit_table(table, requirements, updates)


def test_a_schema_that_changes_just_before_the_swap_is_noticed(world):
    attempt = world.stage()
    catalog = EvolvesJustBeforeTheSwap("iceberg_default", **world.catalog.properties)
    with pytest.raises(SchemaMismatchError, match="needed"):
        groups.commit([attempt.checkpoint], world.as_table(catalog=catalog))
    assert world.table().current_snapshot() is None


def test_two_runs_that_asked_for_a_restart_do_not_discard_each_other_for_ever(world):
    generations = [
        world.stage(world.request(restart_token=token), splits=1).checkpoint.header.generation
        for token in ("run 1", "run 2", "run 1", "run 2", "run 1")
    ]
    assert generations == [1, 2, 2, 2, 2]


def test_instances_of_one_mapped_task_with_one_key_do_not_restart_each_other(world):
    world.stage(splits=1)
    sibling = msgspec.structs.replace(ORIGIN, map_index=1)
    with pytest.raises(RestartRefusedError, match="map index"):
        world.stage(world.request(transform=one_row, on_change="restart", origin=sibling))
    assert Checkpoint.latest(world.store, IdempotenceKey("orders")).header.generation == 1


def test_a_filter_with_a_set_has_one_fingerprint_in_every_process():
    code = (
        "from airflow_ckpt_provider.sources import Files; from airflow_ckpt_provider.checkpoint.documents import fingerprint\n"
        "print(fingerprint(Files('/in/*', filter=[('kind', 'in', {'a', 'b', 'c', 'd'})]).describe()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(found) == 1
