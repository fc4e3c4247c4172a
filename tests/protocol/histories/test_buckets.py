"""One bucket in pieces, against a model: whoever publishes it, the table gets the ids that this task was given, each as often.

``PIECES_EXAMPLES`` says how many histories are tried.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from contract.table.both import BEFORE, Iceberg, Lance
from contract.table.test_pieces import Killed
from contract.table.test_pieces_of_buckets import Attempt, landed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.world import rows

EXAMPLES = int(os.environ.get("PIECES_EXAMPLES", "15"))

IDS = st.lists(st.integers(0, 200), min_size=80, max_size=150).map(sorted)


class Task(NamedTuple):
    """One task at the bucket.

    :param input: which of the inputs it is given.
    :param save: rows between two pieces.
    :param batch: rows that it is given at a time.
    :param dies_at: the place of the row that it does not live to see, of those that its function is called with.
    :param waits_at: the place at which it is suspended while the tasks behind it in the history do all that they do.
    """

    input: int
    save: int
    batch: int
    dies_at: int
    waits_at: int


TASKS = st.builds(
    Task,
    input=st.integers(0, 1),
    save=st.sampled_from([3, 10, 30, 60]),
    batch=st.integers(5, 80),
    dies_at=st.sampled_from([5, 15, 30, 60, 100, 160]),
    waits_at=st.sampled_from([1, 10, 25, 45, 70, 120, 300]),
)


class History:
    """Tasks, each of which may be suspended for all that follow it.

    :param inputs: ids of the bucket's rows.
    """

    def __init__(self, world, inputs):
        self.world = world
        self.inputs = inputs
        self.given = {}

    def play(self, tasks):
        if not tasks:
            return
        (task, *later), played = tasks, False
        calls = 0

        def function(batch):
            nonlocal calls, played
            calls += batch.num_rows
            if calls > task.waits_at and not played:
                played = True
                self.play(later)
            if calls > task.dies_at:
                raise Killed
            return batch

        with contextlib.suppress(Killed):
            self.run(task, function)
        if not played:
            self.play(later)

    def run(self, task, function):
        attempt = Attempt(self.world, function, save=task.save)
        if attempt.round is not None:
            name = f"{len(self.given)}x"
            ids = self.given[name] = self.inputs[task.input]
            table = rows(0, len(ids)).set_column(0, "id", pa.array(ids, pa.int64()))
            attempt.run(table, task.batch, name)
        return attempt


@pytest.mark.parametrize("kind", [Iceberg, Lance], ids=["iceberg", "lance"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=IDS, removed=st.integers(0, 200), added=st.integers(0, 200), tasks=st.lists(TASKS, min_size=1, max_size=6))
def test_one_bucket_whatever_happens_on_the_way(kind, first, removed, added, tasks):
    second = sorted([*(one for one in first if one != removed), added])
    with tempfile.TemporaryDirectory() as folder:
        world = kind(Path(folder))
        world.make()
        history = History(world, [first, second])
        history.play(tasks)
        last = history.run(Task(0, 20, 50, 0, 0), lambda batch: batch)
        last.land()
        checkpoint = last.attempt.checkpoint
        (record,) = checkpoint.staged([split.id for split in checkpoint.plan().splits])
        assert landed(world) == history.given[record.writer.split(".")[1].partition("x")[0] + "x"]
        assert len(world.read()) == record.rows + len(BEFORE)
