"""Rows that others compact while columns are computed: what is staged of them is taken along, and no row gets another's value."""

from __future__ import annotations

import itertools
import os

import lance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.columns import computed, stage_columns, ten_times
from support.lance_world import LanceWorld
from support.world import rows

from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.scan.row_lineage import MovedRows, dealt, kept
from airflow_ckpt_provider.write import groups

ROWS = 60


# -- stretches -------------------------------------------------------------------------------------------------------------

STRETCHES = st.lists(
    st.builds(
        lambda split, start, rows: MovedRows(split, start, start + rows),
        st.sampled_from(["", "a", "b"]),
        st.integers(0, 9),
        st.integers(1, 5),
    )
)


def places(stretches):
    """Each row of the stretches, by itself; where one stood that nobody has read does not matter."""
    return [
        (stretch.split, place if stretch.split else None) for stretch in stretches for place in range(stretch.start, stretch.stop)
    ]


@settings(deadline=None)
@given(STRETCHES, st.data())
def test_the_rows_that_are_kept_are_those_of_the_runs(stretches, data):
    listed = places(stretches)
    numbers = sorted(data.draw(st.sets(st.integers(0, max(0, len(listed) - 1))))) if listed else []
    runs = [(number, number + 1) for number in numbers]
    joined = [(own[0], own[-1] + 1) for own in _runs(numbers)]
    assert places(kept(stretches, runs)) == places(kept(stretches, joined)) == [listed[number] for number in numbers]


def _runs(numbers):
    grouped = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    return [[number for _, number in own] for _, own in grouped]


@settings(deadline=None)
@given(STRETCHES, st.data())
def test_stretches_are_dealt_row_by_row(stretches, data):
    listed = places(stretches)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(listed)))))
    sizes = [stop - start for start, stop in itertools.pairwise([0, *cuts, len(listed)])]
    hands = list(dealt(stretches, sizes))
    assert [len(places(hand)) for hand in hands] == sizes
    assert [row for hand in hands for row in places(hand)] == listed


# -- datasets -----------------------------------------------------------------------------------------------------------------


class Backfill:
    """Columns that are computed while others work on the dataset."""

    def __init__(self, root, *, stable=False):
        self.world = LanceWorld(root)
        lance.write_dataset(rows(0, ROWS), self.world.uri, max_rows_per_file=12, enable_stable_row_ids=stable)
        self.seen = []
        self.next_id, self.restored = 1000, False
        stage_columns(self.world, function=self.compute, rows_per_split=5, splits=0)
        # What tells the columns.
        self.seen.clear()

    @property
    def compute(self):
        seen = self.seen

        def compute(batch):
            seen.extend(batch["id"].to_pylist())
            return ten_times(batch)

        return compute

    def stage(self, splits=None):
        return stage_columns(self.world, function=self.compute, rows_per_split=5, splits=splits)

    # What others do.

    def compact(self, rows):
        self.world.dataset.optimize.compact_files(target_rows_per_fragment=rows, materialize_deletions_threshold=0.0)

    def delete(self, numbers):
        self.world.dataset.delete(f"id in ({', '.join(map(str, numbers))})")

    def append(self, count):
        self.world.foreign_append(self.next_id, count)
        self.next_id += count

    def update(self, number):
        self.world.dataset.update({"kind": "'other'"}, where=f"id = {number}")

    def add_column(self, number):
        self.world.dataset.add_columns({f"more_{self.world.dataset.version}": f"id + {number}"})

    def restore(self, back):
        """To one of the last versions that are there."""
        self.restored = True
        there = sorted(one["version"] for one in self.world.dataset.versions())
        lance.dataset(self.world.uri, version=there[-min(back + 1, len(there))]).restore()

    def clean_up(self, keep):
        self.world.dataset.cleanup_old_versions(older_than=None, retain_versions=keep)

    def index(self, _):
        self.world.dataset.create_scalar_index("id", "BTREE")

    def finish(self):
        """The columns, in one version, whatever the dataset is by now."""
        changes = {}
        for _ in range(3):
            before = self.world.dataset.version
            try:
                attempt = stage_columns(self.world, function=self.compute, rows_per_split=5, **changes)
                groups.commit([attempt.checkpoint], self.world.as_table())
                break
            except TableMovedError as moved:
                if "restart" in str(moved):
                    assert self.restored
                    changes = {"restart_token": "now"}
        assert self.world.dataset.version == before + 1
        assert computed(self.world) == self.world.ids()


IDS = st.integers(0, ROWS - 1)

DONE_TO_IT = st.one_of(
    st.tuples(st.just("stage"), st.integers(1, 8)),
    st.tuples(st.just("compact"), st.sampled_from([10, 20, 30, 1000])),
    st.tuples(st.just("compact"), st.sampled_from([10, 20, 30, 1000])),
    st.tuples(st.just("delete"), st.lists(IDS, min_size=1, max_size=8)),
    st.tuples(st.just("append"), st.integers(1, 15)),
    st.tuples(st.just("update"), IDS),
    st.tuples(st.just("add_column"), IDS),
    st.tuples(st.just("restore"), st.integers(1, 3)),
    st.tuples(st.just("clean_up"), st.integers(1, 3)),
    st.tuples(st.just("index"), st.none()),
)


@settings(max_examples=int(os.environ.get("ROUNDS", "25")), derandomize=not os.environ.get("ROUNDS"), deadline=None)
@given(st.lists(DONE_TO_IT, min_size=2, max_size=10), st.booleans())
def test_every_row_gets_its_own_values_after_any_history(tmp_path_factory, history, stable):
    backfill = Backfill(tmp_path_factory.mktemp("moves"), stable=stable)
    for do, what in history:
        getattr(backfill, do)(what)
    if not backfill.world.dataset.count_rows():
        return
    backfill.finish()


HISTORIES = {
    "once": [("stage", 7), ("compact", 1000)],
    "beside deletes": [("delete", [0, 13, 14, 30]), ("stage", 9), ("delete", [1, 25]), ("compact", 1000)],
    "into fragments of another size": [("stage", 9), ("compact", 20), ("append", 15), ("compact", 35)],
    "again and again": [
        ("stage", 4),
        ("compact", 24),
        ("stage", 3),
        ("delete", [3, 40]),
        ("compact", 40),
        ("stage", 2),
        ("compact", 1000),
    ],
    "with rows of others": [("append", 7), ("stage", 9), ("append", 9), ("compact", 1000)],
    "beside new columns": [("stage", 8), ("add_column", 1), ("compact", 1000), ("add_column", 2)],
    "of an indexed dataset": [("index", None), ("stage", 9), ("compact", 30), ("append", 15), ("compact", 1000)],
    "when all is staged": [("stage", None), ("compact", 1000), ("delete", [5]), ("compact", 30)],
}


@pytest.mark.parametrize("restored", [0, 1])
def test_rows_that_were_deleted_all_along_are_not_missed_when_versions_are_gone(tmp_path, restored):
    backfill = Backfill(tmp_path)
    backfill.delete([0, 11, 30])
    attempt = backfill.stage()
    backfill.delete([1, 40])
    if restored:
        backfill.restore(1)
    backfill.clean_up(1)
    groups.commit([attempt.checkpoint], backfill.world.as_table())
    assert computed(backfill.world) == backfill.world.ids()


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable row ids"])
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_no_value_is_computed_twice(tmp_path, history, stable):
    backfill = Backfill(tmp_path, stable=stable)
    for do, what in history:
        getattr(backfill, do)(what)
    backfill.finish()
    assert len(set(backfill.seen)) == len(backfill.seen)


BROUGHT_BACK = {
    "and moved": [("delete", [*range(10)]), ("stage", None), ("restore", 1), ("compact", 1000)],
    "after they were moved": [("stage", 1), ("compact", 1000), ("delete", [*range(50, ROWS)]), ("stage", None), ("restore", 1)],
    "where they were": [("delete", [*range(10)]), ("stage", None), ("restore", 1)],
    # Row 0 was deleted when its range was read, and is back; row 11 was there, and is deleted.
    "while as many go": [("delete", [11]), ("restore", 1), ("delete", [0]), ("stage", None), ("restore", 2)],
    "while as many go, and versions": [
        ("delete", [11]),
        ("restore", 1),
        ("delete", [0]),
        ("stage", None),
        ("restore", 2),
        ("clean_up", 1),
    ],
}


@pytest.mark.parametrize("history", BROUGHT_BACK.values(), ids=BROUGHT_BACK)
def test_rows_that_a_restore_brings_back_are_missed(tmp_path, history):
    """Their ranges were read without them."""
    backfill = Backfill(tmp_path)
    for do, what in history:
        getattr(backfill, do)(what)
    with pytest.raises(TableMovedError, match=r"are back, and have no values.*restart"):
        groups.commit([backfill.stage().checkpoint], backfill.world.as_table())
    backfill.finish()


def test_rows_that_nobody_has_read_are_not_read_piece_by_piece(tmp_path):
    backfill = Backfill(tmp_path)
    backfill.stage(2)
    backfill.delete([*range(1, ROWS, 3)])
    backfill.compact(1000)
    attempt = stage_columns(backfill.world, function=backfill.compute, rows_per_split=5, splits=0)
    unread = ROWS - len(range(1, ROWS, 3)) - len(set(range(10)) - {*range(1, ROWS, 3)})
    assert len(attempt.next_round().missing) <= unread / 5 + 1
    backfill.finish()


def test_what_cannot_be_followed_is_computed_anew(tmp_path):
    backfill = Backfill(tmp_path)
    backfill.stage(9)
    backfill.compact(1000)
    backfill.clean_up(1)
    backfill.finish()
    assert len(backfill.seen) > len(set(backfill.seen))
