"""Writes of which rows are rejected, killed at every effect they have: each row is in the table once, or rejected once.

Each split is saved in pieces, with and without rows at which the transform fails.
"""

from __future__ import annotations

from collections import Counter

import pytest
from protocol.crash.exactly_once import assert_files_are_known, generations
from protocol.crash.points import Points, said
from protocol.crash.thinned import some
from support.lance_world import LanceWorld
from support.world import World

from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
from airflow_ckpt_provider.sources.rejected.file import rows_in

pytestmark = pytest.mark.crash

#: Ids of the rows at which the transform fails: of two splits of four rows in pieces of two.
BAD = [1, 2, 6]
EVERY = range(8)
GOOD = [one for one in EVERY if one not in BAD]

SKIP = {"save_every": 2, "fails_at": BAD, "on_error": "skip"}
RETRY = {"save_every": 2, "fails_at": BAD, "on_error": "retry"}
#: The second time, one of them fails still; the third time none does.
BETTER, RIGHT = RETRY | {"fails_at": [2]}, RETRY | {"fails_at": []}

UPSERT = {"mode": "upsert", "parameters": {"upsert_keys": ["id"]}}


class Place:
    """A table of one of the formats, and what runs into it."""

    def __init__(self, table_format, runs, root):
        self.runs = runs
        self.world = (World if table_format == "iceberg" else LanceWorld)(root)
        if table_format == "iceberg":
            self.world.create_table()
        else:
            self.world.create_dataset(0, 0)
        self.world.put_files(2, 4)


@pytest.fixture(params=["iceberg", "lance"])
def place(request, tmp_path):
    return Place(request.param, request.getfixturevalue("runs" if request.param == "iceberg" else "lance_runs"), tmp_path / "world")


def rejected(world):
    """Ids of the rows that the newest seal leaves out."""
    checkpoint = generations(world, "orders")[-1]
    files = checkpoint.sealed().rejected
    paths = CheckpointPaths(checkpoint.key.hash, checkpoint.header.generation)
    return sorted(one for file in files for batch in rows_in(world.store, paths, file) for one in batch["id"].to_pylist())


def assert_there(world, ids):
    """Exactly these rows are in the table, and the others are rejected."""
    found = Counter(world.ids())
    assert found == Counter(ids), f"too many: {found - Counter(ids)}, too few: {Counter(ids) - found}"
    assert rejected(world) == sorted({*EVERY} - {*ids})
    assert_files_are_known(world)


def at_points(points, check, name=""):
    problems = []
    for point in some(points, name) if name else points:
        world = points.again(point)
        try:
            check(world)
        except AssertionError as error:
            problems.append(f"{point}: {said(error)}")
    assert not problems, "\n".join([f"{len(problems)} points failed", *problems, points.run.listing()])


@pytest.mark.parametrize("mode", [{}, UPSERT], ids=["append", "upsert"])
def test_a_write_that_skips_rows_killed_at_any_effect_and_run_again_is_exactly_once(place, mode):
    points = Points(place.runs, place.world, SKIP | mode)
    assert [one["landed_now"] for one in points.run.result] == [True]
    assert_there(place.world, GOOD)
    puts = [name for name in points.run.effects if name.startswith("before put g1/rejected/")]
    assert len(puts) == 3

    def check(world):
        assert place.runs.run(world, SKIP | mode).result
        assert_there(world, GOOD)
        cleaned = place.runs.run(world, SKIP | mode, do="clean")
        assert not any(one["left"] for one in cleaned.result)
        assert_there(world, GOOD)
        named = {f"{file.split}-{file.writer}.parquet" for file in generations(world, "orders")[-1].sealed().rejected}
        assert {path.name for path in world.root.glob("store/*/g1/rejected/*")} == named

    at_points(points, check, "skipped, upsert" if mode else "")


def test_a_write_that_is_to_retry_rows_killed_at_any_effect_has_every_row_once_when_the_function_is_right(place):
    points = Points(place.runs, place.world, RETRY)
    assert points.run.error == "RowsToRetryError"

    def check(world):
        assert place.runs.run(world, RIGHT).result
        assert_there(world, EVERY)

    at_points(points, check, "to retry")


@pytest.mark.parametrize("mode", [{}, UPSERT], ids=["append", "upsert"])
def test_rejected_rows_that_run_again_killed_at_any_effect_are_there_once_when_the_function_is_right(place, mode):
    assert place.runs.run(place.world, RETRY | mode).error == "RowsToRetryError"
    points = Points(place.runs, place.world, BETTER | mode)
    assert points.run.error == "RowsToRetryError"

    def check(world):
        # One that has the first function comes in between.
        assert place.runs.run(world, RETRY | mode).error == "RowsToRetryError"
        assert place.runs.run(world, RIGHT | mode).result
        assert_there(world, EVERY)

    at_points(points, check, "run again")


def test_the_last_rejected_rows_killed_at_any_effect_land_once(place):
    for request in (RETRY, BETTER):
        assert place.runs.run(place.world, request).error == "RowsToRetryError"
    points = Points(place.runs, place.world, RIGHT)
    assert points.run.result
    assert_there(place.world, EVERY)

    def check(world):
        assert place.runs.run(world, RIGHT).result
        assert_there(world, EVERY)

    at_points(points, check)
