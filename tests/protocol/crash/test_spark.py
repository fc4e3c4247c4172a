"""The same with real Spark: driver, JVM and Python workers are killed at every kind of effect, and a retry with Spark ends it.

Two splits are in flight at a time, so that effects come in another order each time: they are counted by name.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from protocol.crash.effects import FATAL, LEDGER, names_in
from protocol.crash.exactly_once import (
    Midway,
    assert_exactly_once,
    assert_only_missing_splits_were_written,
    generations,
    own_snapshots,
)
from protocol.crash.spark_to import BUCKETS, PIECES, SHARES, STREAM_FILES, TARGET, program, saved, streamed, write
from support.readers import duckdb_rows
from support.world import World

from airflow_ckpt_provider.checkpoint.pieces import pieces_of
from airflow_ckpt_provider.spark.session import spark_session

pytestmark = [pytest.mark.crash, pytest.mark.spark]

SPLITS = 8

#: Micro-batches of a stream.
BATCHES = SPLITS // STREAM_FILES
IDS = list(range(SPLITS * 50))

TESTS = Path(__file__).resolve().parents[2]

#: All effects of a program and of a save, how often they happen at least.
EFFECTS = {
    "put g1/header": 1, "put g1/plan": 1, "put g1/attempts": 1, "create data file": BUCKETS, "close data file": BUCKETS,
    "create manifest of": BUCKETS, "close manifest of": BUCKETS, "put g1/staged": BUCKETS, "put g1/seal": 1, "put g1/group": 1,
    "create manifest list": 1, "close manifest list": 1, "commit of the table": 1, "create metadata": 1, "close metadata": 1,
    "put g1/commit": 1,
}  # fmt: skip


def effects(*few, more=()):
    """Effects at which to kill: a few, because each takes a driver, a JVM and its workers; all with ``EFFECTS_WITH_SPARK=1``.

    ``test_every_effect`` has the driver's effects without Spark, all of them.
    """
    return [*few, *(one for one in more if one not in few)] if os.environ.get("EFFECTS_WITH_SPARK") else list(few)


def every(most):
    """Before and after each of the effects."""
    return [f"{when} {effect}#{n}" for when in ("before", "after") for effect, count in most.items() for n in range(1, count + 1)]


#: Where everything is killed, driver and worker.
EVERYTHING = effects(
    "after create data file#2",
    "before put g1/staged#6",
    "before close metadata#1",
    more=["after put g1/attempts#1", "before close data file#3", "before close manifest of#4", "after put g1/staged#3"],
)

#: Where only the Python worker is killed, as the kernel does when memory runs out; the driver lives to report it.
WORKER = effects("after close data file#5", more=["after put g1/staged#8"])

#: The same as everything for a DataFrame, by how it is recovered.
FRAMES = {
    "buckets": effects(
        "after put g1/staged#3", more=["after create data file#1", "before put g1/staged#2", "before close metadata#1"]
    ),
    "partitions": effects(
        "before put g1/staged#2",
        more=["after put g1/plan#1", "after create data file#1", "after put g1/staged#3", "before close metadata#1"],
    ),
    "rows": effects("after put g1/ids#2", "before put g1/staged#2", more=["before put g1/ids#1", "after put g1/staged#3"]),
}

#: The same for a DataFrame of whose buckets pieces are saved.
PIECES_EFFECTS = effects(
    "before put g1/pieces#7", more=["after put g1/pieces#2", "after create data file#8", "before put g1/staged#2"]
)

#: The same for a DataFrame whose ids are too frequent for one task each.
SHARES_EFFECTS = effects(
    "after put g1/staged#3", more=["after put g1/plan#1", "after create data file#2", "before put g1/staged#4"]
)

#: The same for a program of the user's own.
PROGRAM = effects("after put g1/staged#3", more=every(EFFECTS))

#: The same for a save in the format ``checkpointed``, whose partitions are Spark's own.
FORMAT = effects("after put g1/staged#3", more=every({effect: min(count, 4) for effect, count in EFFECTS.items()}))

#: The same for the micro-batches of a stream, of which each has all effects of a write; an upsert takes more rounds.
STREAM_EFFECTS = every(dict.fromkeys(EFFECTS, BATCHES))
STREAM = {
    "append": effects("after put g1/seal#2", "after close metadata#2", more=STREAM_EFFECTS),
    "upsert": effects("after commit of the table#1", more=STREAM_EFFECTS),
}


@pytest.fixture(scope="module")
def spark():
    """The session of all retries; ``spark_session`` in ``write`` joins it."""
    with spark_session(TARGET, "retries") as session:
        yield session


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "world")
    world.create_table()
    world.put_files(SPLITS, 50)
    return world


def run_driver(world, ledger, fatal, *how):
    """The write in a driver of its own, until everything that belongs to it has ended."""
    paths = [TESTS / "protocol" / "crash" / "site", TESTS, TESTS.parent]
    environment = os.environ | {"PYTHONPATH": ":".join(map(str, paths)), LEDGER: str(ledger), FATAL: fatal}
    with (ledger.parent / "stderr").open("w") as stderr:
        command = [sys.executable, str(TESTS / "protocol" / "crash" / "spark_to.py"), str(world.root), *how]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=120, check=False)
    left = living(ledger)
    end = time.monotonic() + 30
    while left and time.monotonic() < end:
        time.sleep(0.1)
        left = living(ledger)
    assert not left, f"still running 30 s after the driver ended: {left}"
    return done


def living(ledger):
    """Commands of all processes that carry this ledger in their environment: the driver's JVM and Python workers."""
    mark = f"{LEDGER}={ledger}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ")[:80])
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # It ended while we looked, or is another user's.
            continue
    return found


def retry_and_check(world, landed):
    before = Midway.of(world)
    settled, scheduled = write(world)
    assert settled.landed_now is not landed
    assert scheduled == {f"{number:06d}" for number in range(SPLITS)} - {split for _, split in before.published}
    assert_exactly_once(world, IDS)
    assert_only_missing_splits_were_written(world, before)
    again, scheduled = write(world)
    assert (again.landed_now, scheduled) == (False, set())
    assert len(own_snapshots(world)) == 1


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("fatal", EVERYTHING)
def test_a_write_whose_processes_are_all_killed_is_completed_by_a_retry(world, tmp_path, fatal):
    kill(world, tmp_path / "ledger", fatal)
    retry_and_check(world, landed=bool(own_snapshots(world)))


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("recover", "fatal"), [(how, fatal) for how in ("buckets", "partitions") for fatal in FRAMES[how]])
def test_splits_of_a_dataframe_whose_processes_are_all_killed_are_completed_by_a_retry(world, tmp_path, recover, fatal):
    before = killed_frame(world, tmp_path / "ledger", fatal, recover)
    settled, scheduled = write(world, recover)
    assert settled.landed_now
    assert len(scheduled) == BUCKETS - len(before.published)
    assert_exactly_once(world, IDS)
    assert_only_missing_splits_were_written(world, before)
    assert write(world, recover)[1] == set()


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("fatal", PIECES_EFFECTS)
def test_pieces_of_buckets_whose_processes_are_all_killed_are_gone_on_with_by_a_retry(world, tmp_path, fatal):
    before = killed_frame(world, tmp_path / "ledger", fatal, PIECES)
    early = saved_pieces(world)
    assert early
    settled, scheduled = write(world, PIECES)
    assert settled.landed_now
    assert len(scheduled) == BUCKETS - len(before.published)
    assert_exactly_once(world, IDS)
    assert_only_missing_splits_were_written(world, before)
    late = saved_pieces(world)
    for split, pieces in early.items():
        # What was saved counts: an attempt for which it does not publishes no piece.
        assert late[split][: len(pieces)] == pieces
        assert late[split][-1].last
    assert write(world, PIECES)[1] == set()


def saved_pieces(world):
    """The pieces of each bucket."""
    (checkpoint,) = generations(world, "orders")
    return {pieces[0].split: pieces for pieces in pieces_of(checkpoint.store, checkpoint.paths, checkpoint.plan().splits).values()}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("fatal", SHARES_EFFECTS)
def test_shares_of_ids_that_many_rows_have_are_completed_by_a_retry_when_all_processes_are_killed(world, tmp_path, fatal):
    before = killed_frame(world, tmp_path / "ledger", fatal, SHARES)
    settled, scheduled = write(world, SHARES)
    assert settled.landed_now
    assert any("s" in split for split in scheduled)
    assert scheduled.isdisjoint({split for _, split in before.published})
    assert_exactly_once(world, IDS)
    assert_only_missing_splits_were_written(world, before)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("fatal", FRAMES["rows"])
def test_rows_of_a_dataframe_whose_processes_are_all_killed_are_completed_by_a_retry(world, tmp_path, fatal):
    before = killed_frame(world, tmp_path / "ledger", fatal, "rows")
    settled, _ = write(world, "rows")
    assert settled.landed_now
    assert_exactly_once(world, IDS)
    # Buckets of the round that was begun stay as they were; what they lack is in those of the retry's own.
    after = Midway.of(world)
    assert before.published.items() <= after.published.items()
    latest = generations(world, "orders")[0]
    early = sum(one.rows for one in latest.staged(sorted(split for _, split in before.published)))
    late = sum(one.rows for one in latest.staged(sorted(split for _, split in after.published.keys() - before.published.keys())))
    assert (early > 0, early + late) == (bool(before.published), len(IDS))
    assert write(world, "rows")[1] == set()


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("fatal", PROGRAM)
def test_a_program_that_is_killed_with_all_that_it_started_goes_on_where_it_was_when_it_is_run_again(world, tmp_path, fatal):
    kill(world, tmp_path / "ledger", fatal, "program")
    before, landed = Midway.of(world), bool(own_snapshots(world))
    reference = program(world)
    assert reference["commit"]["landed_now"] is not landed
    assert reference["rows"] == len(IDS)
    assert_exactly_once(world, IDS)
    assert_only_missing_splits_were_written(world, before)
    assert program(world)["commit"] == reference["commit"] | {"landed_now": False}
    assert len(own_snapshots(world)) == 1


@pytest.mark.usefixtures("spark")
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("fatal", FORMAT)
def test_a_save_that_is_killed_with_all_that_it_started_lands_its_rows_once_when_it_is_run_again(world, tmp_path, fatal):
    kill(world, tmp_path / "ledger", fatal, "format")
    before = Midway.of(world)
    for _ in range(2):
        saved(world)
        assert_exactly_once(world, IDS)
    assert before.published.items() <= Midway.of(world).published.items()


@pytest.mark.usefixtures("spark")
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize(("mode", "fatal"), [(mode, fatal) for mode, points in STREAM.items() for fatal in points])
def test_a_stream_that_is_killed_with_all_that_it_started_lands_each_batch_once_when_it_is_run_again(world, tmp_path, mode, fatal):
    kill(world, tmp_path / "ledger", fatal, mode)
    for _ in range(2):
        streamed(world, mode)
        assert duckdb_rows(world.table(), "select id from rows order by id") == [(number,) for number in IDS]
        keys = [snapshot.summary["airflow.checkpoint.key"] for snapshot in world.table().snapshots()]
        assert (len(keys), len(set(keys))) == (BATCHES, BATCHES)


def kill(world, ledger, fatal, *how):
    """Run a driver that is killed at an effect, with all that it started."""
    done = run_driver(world, ledger, fatal, "driver too", *how)
    assert done.returncode == -signal.SIGKILL, (ledger.parent / "stderr").read_text()[-2000:]
    assert_died_at(ledger, fatal)


def killed_frame(world, ledger, fatal, recover):
    """What there is after a stage of a DataFrame was killed, with all that it started."""
    kill(world, ledger, fatal, recover)
    assert own_snapshots(world) == []
    return Midway.of(world)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("fatal", WORKER)
def test_a_write_whose_worker_is_killed_fails_cleanly_and_is_completed_by_a_retry(world, tmp_path, fatal):
    ledger = tmp_path / "ledger"
    done = run_driver(world, ledger, fatal, "worker only")
    assert done.returncode == 1, (tmp_path / "stderr").read_text()[-2000:]
    assert_died_at(ledger, fatal)
    failure = json.loads(done.stdout.splitlines()[-1])
    assert failure["error"] == "StageFailedError"
    # Another task may have published after the driver looked.
    counted = int(re.search(rf"(\d+) of {SPLITS} splits are staged", failure["message"])[1])
    assert counted <= len(generations(world, "orders")[0].staged_ids())
    assert own_snapshots(world) == []
    retry_and_check(world, landed=False)


def assert_died_at(ledger, fatal):
    start, _, count = fatal.partition("#")
    assert sum(name.startswith(start) for name in names_in(ledger)) >= int(count)
