"""``since="last_commit"`` into either format: each row of a growing table once, whatever happens to the table that it is copied to.

How far a task has read stands in the very commit that lands what it read.
"""

from __future__ import annotations

import msgspec
import pytest
from contract.table.both import BEFORE, FOREIGN, UPSERT, Iceberg, Lance, StableLance
from protocol.crash.maintenance import forget_the_record
from support.foreign import rows
from support.growing import grow, growing_table, request, run
from support.world import ORIGIN

from airflow_ckpt_provider.exceptions import InvalidInputError, NotSupportedYetError, TableMovedError
from airflow_ckpt_provider.sources import IcebergTable


@pytest.fixture
def source(tmp_path):
    """The growing table, with two rows."""
    return growing_table(tmp_path / "source")


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path, source):
    """The table that it is copied to, with rows of somebody else; Lance takes them in the schema of a source of Iceberg."""
    world = request.param(tmp_path / "target")
    world.make()
    return world


def ids(world):
    return [row["id"] for row in world.read()]


def test_each_run_lands_what_was_appended_since_the_last(world, source):
    for number, new in enumerate([range(2), range(2, 5), range(5, 9), range(9, 9), range(9, 10)]):
        if number and new:
            grow(source, new)
        assert run(world, source, f"run {number}").landed_now == bool(new)
        assert ids(world) == [*range(new.stop), *BEFORE]


def test_a_retry_reads_what_the_failed_run_has_read(world, source):
    begun = world.stage(request(world, source, "first"), splits=0)
    grow(source, range(2, 4))
    again = world.stage(request(world, source, "first"))
    assert again.checkpoint.header == begun.checkpoint.header
    world.commit(again)
    assert ids(world) == [*range(2), *BEFORE]
    run(world, source, "second")
    assert ids(world) == [*range(4), *BEFORE]


def test_a_commit_whose_record_was_lost_is_found_and_the_next_run_reads_on(world, source):
    attempt = world.stage(request(world, source, "first"))
    world.commit(attempt)
    forget_the_record(world, attempt.checkpoint)
    assert not world.commit(attempt)[0].landed_now
    grow(source, range(2, 4))
    run(world, source, "second")
    assert ids(world) == [*range(4), *BEFORE]


def test_what_others_do_to_the_table_leaves_it_where_it_was(world, source):
    run(world, source, "first")
    world.add()
    grow(source, range(2, 4))
    run(world, source, "second")
    world.forget()
    grow(source, range(4, 6))
    run(world, source, "third")
    world.widen()
    grow(source, range(6, 8))
    run(world, source, "fourth")
    assert ids(world) == [*range(8), *BEFORE, *FOREIGN]


def test_an_overwrite_by_another_task_leaves_it_where_it_was(world, source):
    run(world, source, "first")
    world.put_files(1, 3)
    other = world.request("other", mode="overwrite", origin=msgspec.structs.replace(ORIGIN, task_id="other"))
    world.commit(world.stage(other))
    grow(source, range(10, 12))
    run(world, source, "second")
    assert ids(world) == [0, 1, 2, 10, 11]


def test_two_tasks_that_read_the_same_table_each_have_a_place_of_their_own(world, source):
    other = msgspec.structs.replace(ORIGIN, task_id="other")
    run(world, source, "first")
    grow(source, range(2, 3))
    run(world, source, "other 1", origin=other)
    grow(source, range(3, 4))
    run(world, source, "second")
    run(world, source, "other 2", origin=other)
    assert ids(world) == [0, 0, 1, 1, 2, 2, 3, 3, *BEFORE]


@pytest.mark.parametrize("mode", ["overwrite", "upsert"])
def test_every_mode_carries_it(world, source, mode):
    changes = UPSERT if mode == "upsert" else {"mode": mode}
    run(world, source, "first", **changes)
    assert ids(world) == [0, 1, *(BEFORE if mode == "upsert" else ())]
    grow(source, range(2, 4))
    run(world, source, "second", **changes)
    assert ids(world) == ([0, 1, 2, 3, *BEFORE] if mode == "upsert" else [2, 3])


def test_an_upsert_into_a_dataset_with_stable_row_ids_carries_it_and_gives_new_ids_to_what_it_updates(tmp_path, source):
    """What says how far the source was read comes with a ``Merge``, which takes no row ids."""
    world = StableLance(tmp_path / "target")
    world.make()
    world.dataset.delete(f"id = {BEFORE[1]}")
    run(world, source, "first", **UPSERT)
    there = [n for n in BEFORE if n != BEFORE[1]]
    before = world.identities()
    grow(source, range(1, 4))
    run(world, source, "second", **UPSERT)
    assert ids(world) == [*range(4), *there]
    after = world.identities()
    assert {n: after[n] for n in (0, *there)} == {n: before[n] for n in (0, *there)}
    assert after[1] != before[1]
    # A run that is replaced sets no place: what it updates keeps its ids.
    run(world, source, "second", **UPSERT, on_rerun="replace", transform=but_the_last, on_change="restart")
    assert ids(world) == [*range(3), *there]
    assert {n: world.identities()[n] for n in (0, 1, *there)} == {n: after[n] for n in (0, 1, *there)}
    grow(source, range(1))
    run(world, source, "third", **UPSERT)
    assert ids(world) == [*range(3), *there]


def but_the_last(batch):
    return batch.slice(0, batch.num_rows - 1)


def test_of_two_runs_that_read_the_same_rows_one_lands(world, source):
    first, second = (world.stage(request(world, source, key)) for key in ("first", "second"))
    world.commit(second)
    with pytest.raises(TableMovedError, match="another run of the task"):
        world.commit(first)
    assert ids(world) == [*range(2), *BEFORE]


def test_two_mapped_tasks_do_not_read_the_increments_of_one_table(world, source):
    """They would share one place, and what came between their plans would be left out, or be there twice."""
    staged = []
    for number in range(2):
        origin = msgspec.structs.replace(ORIGIN, map_index=number)
        chosen = IcebergTable("shop.orders", since="last_commit", row_filter=f"id {'<' if number else '>='} 1", max_split_bytes=1)
        staged.append(world.stage(request(world, source, f"orders/{number}", origin=origin, reads=chosen)))
        grow(source, range(10 * number + 10, 10 * number + 12))
    before = world.commits()
    with pytest.raises(InvalidInputError, match="both read the increments of one source"):
        world.commit(*staged)
    assert world.commits() == before
    world.commit(staged[0])
    with pytest.raises(TableMovedError, match="another run of the task"):
        world.commit(staged[1])


def test_two_mapped_tasks_read_the_increments_of_a_table_each(world, source):
    source.create_table("shop.returns").append(rows(100, 3))
    for turn in range(2):
        staged = []
        for number, name in enumerate(("shop.orders", "shop.returns")):
            origin = msgspec.structs.replace(ORIGIN, map_index=number)
            table = IcebergTable(name, since="last_commit", max_split_bytes=1)
            staged.append(world.stage(request(world, source, f"turn {turn}, {name}", origin=origin, reads=table)))
        world.commit(*staged)
        grow(source, range(2, 4))
    assert ids(world) == [*range(4), *range(100, 103), *BEFORE]


def test_a_run_that_is_replaced_reads_its_own_rows_again_and_no_others(world, source):
    run(world, source, "first")
    grow(source, range(2, 4))
    run(world, source, "second")
    grow(source, range(4, 6))
    run(world, source, "second", on_rerun="replace")
    assert ids(world) == [*range(4), *BEFORE]
    run(world, source, "third")
    assert ids(world) == [*range(6), *BEFORE]


def test_rows_without_any_for_the_transform_are_not_read_again(world, source):
    run(world, source, "first", transform=lambda batch: batch.slice(0, 0))
    grow(source, range(2, 4))
    run(world, source, "second")
    assert ids(world) == [2, 3, *BEFORE]


def test_a_table_is_created_with_it_only_where_its_place_can_be_kept(tmp_path, source):
    run(Iceberg(tmp_path / "iceberg"), source, "first", mode="create")
    made = Lance(tmp_path / "lance")
    with pytest.raises(NotSupportedYetError, match="Create it first"):
        made.stage(request(made, source, "first", mode="create"))
    assert not made.exists
