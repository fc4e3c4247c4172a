"""One split in pieces, against a model: whatever happens on the way, the table gets the rows of a write without a crash, in order.

``PIECES_EXAMPLES`` says how many histories are tried.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.table.both import Iceberg, Lance
from contract.table.test_pieces import ROWS, Killed, asked, order_of, staged_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.world import rows

EXAMPLES = int(os.environ.get("PIECES_EXAMPLES", "15"))


class Model:
    """A function that is the same in all attempts, and what it was called with.

    :param times: how many rows the row with this id becomes, by its remainder.
    """

    def __init__(self, times: tuple[int, ...]) -> None:
        self.times = times
        self.calls: list[int] = []
        self.dies_at: int | None = None

    def __call__(self, batch):
        ids = batch["id"].to_pylist()
        self.calls += ids
        if self.dies_at in ids:
            raise Killed
        return batch.take(pa.array([at for at, one in enumerate(ids) for _ in range(self.of(one))], pa.int64()))

    def of(self, one: int) -> int:
        return self.times[one % len(self.times)]

    def rows(self) -> list[int]:
        return [one for one in range(ROWS) for _ in range(self.of(one))]


#: A task is killed at a row, one file is lost, or a task that began at a row is overtaken by another that dies later.
STEPS = st.one_of(
    st.tuples(st.just("killed"), st.integers(0, ROWS - 1), st.integers(10, ROWS)),
    st.tuples(st.just("lost"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("overtaken"), st.integers(0, ROWS - 1), st.integers(0, ROWS - 1)),
)


@pytest.mark.parametrize("kind", [Iceberg, Lance], ids=["iceberg", "lance"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(STEPS, max_size=5),
    times=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
    save=st.integers(5, 120),
    batch=st.integers(1, 200),
)
def test_one_split_whatever_happens_on_the_way(kind, steps, times, save, batch):
    with tempfile.TemporaryDirectory() as folder:
        world = kind(Path(folder))
        pq.write_table(rows(0, ROWS), world.input / "0.parquet", row_group_size=batch)
        world.make()
        model, most = Model(times), ROWS
        for step in steps:
            most += play(world, model, step, save)
        model.dies_at = None
        world.commit(world.stage(asked(world, model, save)))
        if model.rows():
            # Files of a split that was begun anew stay, until a clean-up.
            for path in set(staged_files(world)) - world.referenced_files():
                Path(path).unlink()
            assert order_of(world) == model.rows()
        assert [row["id"] for row in world.read() if row["id"] < ROWS] == model.rows()
        assert len(model.calls) <= most


def play(world, model, step, save) -> int:
    """Let a step happen; how many rows it may cause to be computed once more."""
    what, first, second = step
    if what == "lost":
        files = staged_files(world)
        if files:
            Path(files[first % len(files)]).unlink()
        # All that is done of the split is computed once more.
        return ROWS if files else 0
    if what == "killed":
        model.dies_at = first
        attempt(world, model, second)
        return max(save, second)
    slow = world.attempt(asked(world, model, save))
    found = slow.next_round()
    if found is None or not found.missing:
        return 0
    work = slow.begin("test", 1)
    model.dies_at = first
    attempt(world, model, save)
    model.dies_at = second
    with contextlib.suppress(Killed):
        work.run(found.missing[0], "0")
    return 2 * save + save


def attempt(world, model, save) -> None:
    with contextlib.suppress(Killed):
        world.stage(asked(world, model, save))
