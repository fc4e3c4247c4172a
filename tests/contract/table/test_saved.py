"""Executions of saves of one key, in any order: whichever seals, the table gets its rows, each once, and none of another one."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.world import World, rows

from airflow_ckpt_provider.exceptions import CorruptObjectError, DiscardedError
from airflow_ckpt_provider.sources.saved import SavedRows, plan_of
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.cleanup import clean
from airflow_ckpt_provider.write.execution import opened, sealed

ROWS = rows(0, 60)


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.create_table()
    return world


class Save:
    """One execution, whose rows are cut into so many partitions."""

    def __init__(self, world, partitions):
        self.world = world
        self.request = world.request(source=SavedRows(ROWS.schema))
        self.attempt = world.attempt(self.request)
        self.execution = opened(self.attempt, ROWS.schema, "none")
        self.partitions = partitions
        self.tasks = 0

    def task(self, partition):
        """The id of what one attempt of a task has staged."""
        self.tasks += 1
        size = -(-len(ROWS) // self.partitions)
        return self.execution.stage(ROWS.slice(partition * size, size).to_batches(), partition, f"{self.tasks}_0")

    def staged(self):
        return [self.task(partition) for partition in range(self.partitions)]

    def seal(self, split_ids):
        split_ids = [split_id for split_id in split_ids if split_id is not None]
        return sealed(self.world.store, self.world.as_table(), self.request, self.execution, split_ids)


def land(world, save):
    groups.commit([save.checkpoint], world.as_table())


def test_the_first_seal_holds_and_a_later_execution_adds_nothing(world):
    first, second = Save(world, 3), Save(world, 4)
    ids = first.staged(), second.staged()
    one, other = second.seal(ids[1]), first.seal(ids[0])
    assert (one.is_own, other.is_own, one.seal == other.seal) == (True, False, True)
    land(world, other)
    assert first.seal(ids[0]).seal == one.seal
    assert world.ids() == list(range(60))
    third = Save(world, 2)
    assert third.execution.work is None
    assert third.staged() == [None, None]
    assert not third.seal([]).is_own


def test_a_seal_names_the_attempts_of_tasks_that_count_and_no_others(world):
    save = Save(world, 3)
    ids, doubles = save.staged(), save.staged()
    result = save.seal([ids[0], doubles[1], ids[2]])
    assert (result.seal.splits, result.seal.rows) == (3, 60)
    land(world, result)
    assert world.ids() == list(range(60))


def test_a_round_that_was_pinned_and_never_sealed_is_in_nobodys_way(world):
    dead, save = Save(world, 3), Save(world, 4)
    world.attempt(dead.request).pin_staged(plan_of(dead.execution.id, dead.staged()))
    result = save.seal(save.staged())
    assert (result.seal.round, result.is_own) == (2, True)
    land(world, result)
    assert world.ids() == list(range(60))


def test_splits_of_another_execution_or_two_of_one_partition_are_refused(world):
    first, second = Save(world, 2), Save(world, 2)
    foreign, own = first.staged(), second.staged()
    for ids in ([own[0], foreign[1]], [*own, second.task(1)]):
        with pytest.raises(CorruptObjectError, match="Nothing was sealed"):
            second.seal(ids)
    assert first.attempt.checkpoint.newest_seal() is None


def test_a_generation_that_was_given_up_meanwhile_is_not_sealed(world):
    save = Save(world, 2)
    ids = save.staged()
    save.attempt.checkpoint.discard("a test")
    with pytest.raises(DiscardedError, match="save again"):
        save.seal(ids)


def test_executions_that_seal_at_the_same_time_agree(world):
    saves = [Save(world, partitions) for partitions in (1, 2, 3, 4)]
    ids = [save.staged() for save in saves]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda pair: pair[0].seal(pair[1]), zip(saves, ids, strict=True)))
    assert len({result.seal.sealed_at for result in results}) == 1
    assert sum(result.is_own for result in results) == 1
    land(world, results[0])
    assert world.ids() == list(range(60))


def test_a_clean_up_removes_what_other_executions_have_left(world):
    first, second = Save(world, 3), Save(world, 4)
    first.staged()
    result = second.seal(second.staged())
    land(world, result)
    assert world.files_on_disk() > world.referenced_files()
    list(clean(result.checkpoint, lambda _: world.as_table()))
    assert world.files_on_disk() == world.referenced_files()
    assert world.ids() == list(range(60))
    assert not first.seal([first.task(0)]).is_own


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_opening_staging_sealing_and_landing_lands_the_rows_once(world, seed):
    dice = random.Random(seed)
    saves, results = [], []
    for _ in range(14):
        what = dice.choice(["open", "stage", "seal", "land"])
        if what == "open" or not saves:
            saves.append((Save(world, dice.randint(1, 4)), {}))
        elif what == "stage":
            save, done = dice.choice(saves)
            partition = dice.randrange(save.partitions)
            done[partition] = save.task(partition)
        elif what == "seal":
            save, done = dice.choice(saves)
            for partition in range(save.partitions):
                done.setdefault(partition, None if save.execution.work is None else save.task(partition))
            results.append(save.seal(done.values()))
        elif results:
            land(world, dice.choice(results))
    if results:
        land(world, results[-1])
    assert world.ids() == (list(range(60)) if results else [])
    assert len({result.seal.contents for result in results}) <= 1
