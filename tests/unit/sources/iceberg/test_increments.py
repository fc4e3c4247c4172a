"""``since="last_commit"``: each appended row once over any history, and an error wherever that cannot be promised."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import LongType
from support.foreign import compact, data_files, delete_positions, options_of, rows
from support.reading import read_split
from support.world import World

from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError
from airflow_ckpt_provider.sources import IcebergTable
from airflow_ckpt_provider.sources.iceberg.increments import appended_files
from airflow_ckpt_provider.sources.iceberg.pinning import pin


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


class Consumer:
    """A task that reads what is new, as the lead of the write does: the mark moves when what was read is committed."""

    def __init__(self, world, **changes):
        self.options = options_of(world)
        self.source = IcebergTable("shop.orders", since="last_commit", **changes)
        self.mark = None

    def plan(self):
        return self.source.plan_since(self.options, self.mark)

    def read(self, plan):
        self.source.verify(plan.splits, self.options)
        return [row["id"] for split in plan.splits for row in read_split(self.source, split, self.options)]

    def run(self):
        plan = self.plan()
        found = self.read(plan)
        assert plan.increment.begin == self.mark
        self.mark = plan.increment.end
        return sorted(found)


def test_the_first_run_reads_everything_and_each_later_one_what_was_appended(world):
    table = world.create_table()
    table.append(rows(0, 10))
    table.append(rows(10, 10))
    table.delete("id < 5")
    consumer = Consumer(world)
    assert consumer.run() == list(range(5, 20))
    assert consumer.mark == {
        "table_uuid": str(table.metadata.table_uuid),
        "snapshot_id": world.table().current_snapshot().snapshot_id,
    }
    table.append(rows(20, 5))
    table.append(rows(25, 5))
    assert consumer.run() == list(range(20, 30))


def test_an_increment_says_what_it_follows_as_it_always_did():
    described = IcebergTable("shop.orders", since="last_commit").describe()
    assert msgspec.json.encode(described) == b'{"iceberg":"shop.orders","since":"last_commit","follows":"shop.orders@main"}'


def test_nothing_appended_means_no_splits_and_the_same_mark(world):
    world.create_table().append(rows(0, 10))
    consumer = Consumer(world)
    consumer.run()
    plan = consumer.plan()
    assert plan.splits == ()
    assert (plan.increment.begin, plan.increment.end) == (consumer.mark, consumer.mark)


def test_a_table_that_was_empty_at_first_is_read_whole_once_it_has_rows(world):
    table = world.create_table()
    consumer = Consumer(world)
    assert consumer.run() == []
    assert consumer.mark["snapshot_id"] is None
    assert consumer.run() == []
    table.append(rows(0, 10))
    assert consumer.run() == list(range(10))


def test_a_plan_that_was_not_committed_is_planned_again_with_what_came_since(world):
    table = world.create_table()
    table.append(rows(0, 10))
    consumer = Consumer(world)
    consumer.run()
    table.append(rows(10, 10))
    lost = consumer.plan()
    table.append(rows(20, 10))
    assert sorted(consumer.read(lost)) == list(range(10, 20))
    assert consumer.run() == list(range(10, 30))


def test_compactions_are_skipped_and_what_they_rewrote_is_not_read_twice(world):
    table = world.create_table()
    table.append(rows(0, 10))
    consumer = Consumer(world)
    consumer.run()
    table.append(rows(10, 10))
    table = compact(table)
    assert consumer.run() == list(range(10, 20))
    compact(table)
    assert consumer.run() == []
    world.table().append(rows(20, 10))
    assert consumer.run() == list(range(20, 30))


def test_manifests_that_an_append_merged_do_not_bring_old_files_back(world):
    table = world.create_table(properties={"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "1"})
    consumer = Consumer(world)
    for start in (0, 10, 20, 30):
        table.append(rows(start, 10))
        if start != 20:
            consumer.run()
    assert len(table.current_snapshot().manifests(table.io)) == 1
    table.append(rows(40, 10))
    assert consumer.run() == list(range(40, 50))


def test_filter_and_columns_hold_for_increments(world):
    table = world.create_table()
    table.append(rows(0, 10))
    consumer = Consumer(world, row_filter="kind = 'kind-1'", columns=["id"])
    assert consumer.run() == [1, 4, 7]
    table.append(rows(10, 10))
    assert consumer.run() == [10, 13, 16, 19]


def test_a_position_delete_of_an_appended_row_is_an_error_and_not_a_lost_row(world):
    table = world.create_table()
    table.append(rows(0, 10))
    consumer = Consumer(world)
    consumer.run()
    delete_positions(table, {data_files(table)[0].file_path: [1]})
    with pytest.raises(InputChangedError, match="the operation 'delete'"):
        consumer.plan()


@pytest.mark.parametrize(
    ("change", "operation"),
    [(lambda table: table.overwrite(rows(0, 3)), "delete"), (lambda table: table.delete("id = 3"), "overwrite")],
)
def test_an_overwrite_or_delete_in_between_is_an_error_that_names_the_snapshot(world, change, operation):
    table = world.create_table()
    table.append(rows(0, 10))
    consumer = Consumer(world)
    consumer.run()
    change(table)
    named = next(s for s in table.metadata.snapshots if s.summary.operation.value == operation)
    table.append(rows(100, 10))
    with pytest.raises(InputChangedError, match=rf"Snapshot {named.snapshot_id} of shop.orders.*'{operation}'.*another task_id"):
        consumer.plan()


def test_a_rolled_back_branch_is_an_error(world):
    table = world.create_table()
    table.append(rows(0, 10))
    first = table.current_snapshot().snapshot_id
    table.append(rows(10, 10))
    consumer = Consumer(world)
    consumer.run()
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    table.append(rows(20, 10))
    with pytest.raises(InputChangedError, match=r"not in the lineage.*rolled back"):
        consumer.plan()


def expire(table, *snapshot_ids):
    table.maintenance.expire_snapshots().by_ids(list(snapshot_ids)).commit()
    return table.refresh()


def test_an_expiry_that_takes_snapshots_after_the_mark_is_an_error(world):
    table = world.create_table()
    table.append(rows(0, 10))
    consumer = Consumer(world)
    consumer.run()
    table.append(rows(10, 10))
    between = table.current_snapshot().snapshot_id
    table.append(rows(20, 10))
    expire(table, between)
    with pytest.raises(InputChangedError, match=r"expired.*Keep snapshots for longer"):
        consumer.plan()


def test_the_mark_itself_may_be_expired_if_its_child_still_names_it(world):
    table = world.create_table()
    for start in (0, 10, 20):
        table.append(rows(start, 10))
    first, *later = table.metadata.snapshots
    # As other engines expire; pyiceberg makes the child forget its parent.
    table.metadata = table.metadata.model_copy(update={"snapshots": later})
    files = appended_files(table, first.snapshot_id, pin(table, None, None, None), None)
    assert sorted(file.file.path for file in files) == sorted(file.file_path for file in data_files(table)[1:])


def test_a_mark_that_pyiceberg_has_expired_fails_closed(world):
    table = world.create_table()
    table.append(rows(0, 10))
    consumer = Consumer(world)
    consumer.run()
    first = table.current_snapshot().snapshot_id
    table.append(rows(10, 10))
    expire(table, first)
    with pytest.raises(InputChangedError, match=r"Keep snapshots for longer"):
        consumer.plan()


def test_an_appended_file_that_was_compacted_and_deleted_is_noticed_before_reading(world):
    table = world.create_table()
    table.append(rows(0, 10))
    consumer = Consumer(world)
    consumer.run()
    table.append(rows(10, 10))
    plan = consumer.plan()
    appended = data_files(table)[1].file_path.removeprefix("file://")
    compact(table)
    os.remove(appended)
    with pytest.raises(InputChangedError, match=rf"{appended}.*restart"):
        consumer.read(plan)
    with pytest.raises(InputChangedError, match=appended):
        consumer.run()


def test_a_table_that_was_created_anew_is_an_error(world):
    world.create_table().append(rows(0, 10))
    consumer = Consumer(world)
    consumer.run()
    world.catalog.drop_table("shop.orders")
    world.create_table().append(rows(0, 10))
    with pytest.raises(InputChangedError, match="dropped and created anew since the last commit"):
        consumer.plan()


def test_a_branch_is_followed_by_itself_and_a_tag_cannot_be(world):
    table = world.create_table()
    table.append(rows(0, 10))
    head = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_branch(head, "audit").create_tag(head, "monday").commit()
    consumer = Consumer(world, branch="audit")
    assert consumer.run() == list(range(10))
    table.append(rows(100, 10))
    table.append(rows(10, 10), branch="audit")
    assert consumer.run() == list(range(10, 20))
    with pytest.raises(InvalidInputError, match=r"'monday' is a tag"):
        Consumer(world, branch="monday").plan()


def test_increments_are_read_with_the_schema_of_when_they_were_planned(world):
    table = world.create_table()
    table.append(rows(0, 10))
    consumer = Consumer(world)
    consumer.run()
    table.append(rows(10, 1))
    with table.update_schema() as update:
        update.add_column("added", LongType())
        update.delete_column("value")
    plan = consumer.plan()
    assert consumer.source.schema(plan, consumer.options).names == ["id", "kind", "at", "added"]
    assert [row["added"] for row in read_split(consumer.source, plan.splits[0], consumer.options)] == [None]


def test_an_incremental_reading_is_not_planned_without_its_mark(world):
    world.create_table()
    with pytest.raises(InvalidInputError, match="plan_since"):
        Consumer(world).source.plan(options_of(world))


STEPS = st.lists(st.sampled_from(["append", "append", "compact", "run", "run", "crash", "expire"]), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_each_row_exactly_once_over_any_sequence_of_appends_and_runs(tmp_path_factory, steps):
    world = World(tmp_path_factory.mktemp("increments"))
    table = world.create_table()
    consumer = Consumer(world, max_split_bytes=1)
    appended, committed = 0, []
    for step in [*steps, "run"]:
        table.refresh()
        if step == "append":
            table.append(rows(appended, 3))
            appended += 3
        elif step == "compact" and appended:
            compact(table)
        elif step == "run":
            committed += consumer.run()
        elif step == "crash":
            # What was read is not committed, so the mark stays.
            consumer.read(consumer.plan())
        elif step == "expire" and consumer.mark and consumer.mark["snapshot_id"]:
            # Whatever is older than the mark may go.
            at = table.metadata.snapshot_by_id(consumer.mark["snapshot_id"])
            old = [s.snapshot_id for s in table.metadata.snapshots if at and s.sequence_number < at.sequence_number]
            if old:
                expire(table, *old)
    assert sorted(committed) == list(range(appended))
