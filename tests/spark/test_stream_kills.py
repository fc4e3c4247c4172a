"""A stream whose processes are all killed at random moments, and started again each time, lands each micro-batch once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import lance
import pytest
from support.readers import duckdb_rows
from support.standalone import children
from support.world import World, rows

pytestmark = [pytest.mark.crash, pytest.mark.spark]

TESTS = Path(__file__).resolve().parents[1]

#: Kills of one stream, and its micro-batches.
KILLS, BATCHES = int(os.environ.get("STREAM_KILLS", "1")), int(os.environ.get("STREAM_BATCHES", "8"))

#: Rows of a micro-batch.
EACH = 20


def started(world, uri):
    environment = os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    command = [sys.executable, str(TESTS / "support" / "stream_killed.py"), str(world.root), uri]
    with (world.root / "stderr").open("w") as stderr:
        return subprocess.Popen(command, env=environment, stderr=stderr, stdout=stderr)


def landed(world, uri):
    """Numbers of the rows that are in the table, read by others."""
    if uri:
        return sorted(lance.dataset(uri).to_table()["id"].to_pylist())
    return [row[0] for row in duckdb_rows(world.table(), "select id from rows order by id")] if world.table().snapshots() else []


@pytest.mark.parametrize("table", ["iceberg", "lance"])
def test_a_stream_that_is_killed_at_random_moments_lands_each_batch_once(tmp_path, table):
    draw = random.Random(f"{table} {KILLS}")
    world = World(tmp_path)
    world.create_table()
    world.put_files(BATCHES, EACH)
    uri = str(tmp_path / "orders.lance") if table == "lance" else ""
    if uri:
        lance.write_dataset(rows(0, 0), uri)
    everything = list(range(BATCHES * EACH))
    killed = 0
    while killed < KILLS:
        before = len(landed(world, uri))
        process = started(world, uri)
        # It is killed while its batches land, somewhere between this one and the next ones.
        until = before + EACH * draw.randint(0, max(1, BATCHES // KILLS))
        while process.poll() is None and len(landed(world, uri)) < until:
            time.sleep(0.05)
        time.sleep(draw.random() * 0.5)
        if process.poll() is not None:
            break
        for child in [*children(process.pid), process.pid]:
            try:
                os.kill(child, 9)
            except ProcessLookupError:
                continue
        process.wait()
        killed += 1
        here = landed(world, uri)
        # Whole batches, each once; Spark takes files of one moment in any order.
        assert here == [number for number in everything if number // EACH in {landed // EACH for landed in here}]
    process = started(world, uri)
    assert process.wait(600) == 0, (world.root / "stderr").read_text()[-2000:]
    assert killed == KILLS
    assert landed(world, uri) == everything
    if not uri:
        assert len(world.table().snapshots()) == BATCHES
