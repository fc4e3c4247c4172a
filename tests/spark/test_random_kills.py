"""Pipelines killed at random calls of their functions, and corrected on the way: what lands is what an uninterrupted run lands.

The functions' own log of calls shows that little is computed twice. ``KILLS`` says how many kills each pipeline gets at each place
(on two local cores, on a cluster that loses a machine, with store and table in S3); without it, one pipeline gets one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from support.kills import FUNCTION_FAILED, KINDS, ROWS, TABLE, TASKS, Calls, Task, kill, put_inputs, world_of
from support.standalone import Standalone, wait_until
from support.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.kills import Kind
    from support.s3 import Bucket

pytestmark = [pytest.mark.spark, pytest.mark.crash]

KILLS = int(os.environ.get("KILLS", "0"))
PLACES = ["local", "cluster", "s3"] if KILLS else ["local"]

SMALL = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
#: How often a cluster tries a task, each time from the last piece on.
TRIES = 4

CLUSTER = SMALL | {
    "spark.task.maxFailures": str(TRIES),
    "spark.executor.memory": "512m",
    "spark.cores.max": str(TASKS),
    "spark.executor.cores": "1",
    "spark.network.timeout": "60s",
}


class Place(NamedTuple):
    """Where a pipeline runs.

    :param lose_a_machine: kills one of several machines; None where there is only the driver's.
    """

    master: str
    conf: dict[str, str]
    bucket: Bucket | None = None
    lose_a_machine: Callable[[], None] | None = None


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "cluster":
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Standalone(Path(folder)) as cluster:
            yield Place(cluster.url, CLUSTER, lose_a_machine=lambda: lose_a_machine(cluster))
    else:
        bucket = request.getfixturevalue("s3_bucket") if request.param == "s3" else None
        yield Place(f"local[{TASKS}]", SMALL, bucket)


def lose_a_machine(cluster: Standalone) -> None:
    """A worker with its executors and their tasks; another machine takes its place."""
    for executor in cluster.executors(0):
        kill(executor)
    cluster.kill_worker(0)
    cluster.start_worker(0)


class Trial:
    """One pipeline in a world of its own.

    :param seed: decides when what is killed.
    """

    def __init__(self, root: Path, kind: str, place: Place, seed: int) -> None:
        self.kind: Kind = KINDS[kind]
        self._place = place
        self._random = random.Random(seed)
        catalog = store = None
        if place.bucket is not None:
            options, bucket = place.bucket.options, place.bucket
            store = (bucket.uri(f"store-{seed}"), options)
            catalog = {
                "type": "sql",
                "uri": f"sqlite:///{root}/catalog.db",
                "warehouse": bucket.uri(f"warehouse-{seed}"),
                "s3.endpoint": options["endpoint"],
                "s3.region": options["region"],
                "s3.access-key-id": options["access_key_id"],
                "s3.secret-access-key": options["secret_access_key"],
            }
        put_inputs(World(root, catalog))
        # The first code fails at a row, or a group, and is corrected once it has.
        self._task = Task(str(root), kind, place.master, place.conf, store, [self._random.randrange(40)], None)
        self.world = world_of(self._task)
        self.world.create_table(schema=TABLE)
        self.calls = Calls(root / "calls")
        #: Kills, and how many tasks they, and the row that fails, have stopped.
        self.kills, self.stopped = 0, 0

    def run(self, kills: int) -> None:
        """Kill what runs until that has happened so many times, or until the pipeline has come to its end; then let it do so."""
        while self._once(die=self.kills < kills):
            pass

    def _once(self, *, die: bool) -> bool:
        """One driver; whether there has to be another one."""
        left = len(self.kind.calls) - len({*self.calls.all()})
        at = self.calls.number() + self._random.randint(1, max(2, left // 2))
        loses = die and self._place.lose_a_machine is not None and self._random.random() < 0.5
        driver = self._driver(self._task._replace(die_at=at if die and not loses else None))
        try:
            if loses:
                with contextlib.suppress(ProcessLookupError):
                    wait_until(lambda: self.calls.number() >= at or driver.poll() is not None, "the call to be killed at", 120)
                if driver.poll() is None:
                    assert self._place.lose_a_machine is not None
                    self._place.lose_a_machine()
                    self._count()
            code = driver.wait(240)
        finally:
            kill(driver.pid)
            driver.wait()
        if code == 0:
            return False
        if code == FUNCTION_FAILED and self._task.broken:
            # What was staged stays, and other code goes on.
            self._task = self._task._replace(broken=[])
            self.stopped += TASKS if self._place.lose_a_machine is None else TASKS - 1 + TRIES
        else:
            assert (code, die) == (-9, True), (Path(self._task.root) / "said").read_text()[-3000:]
            self._count()
        return True

    def _count(self) -> None:
        self.kills += 1
        self.stopped += TASKS

    def _driver(self, task: Task) -> subprocess.Popen[bytes]:
        root = Path(task.root)
        (root / "task.json").write_text(json.dumps(task._asdict()))
        tests = Path(__file__).parents[1]
        with (root / "said").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-c", f"from support.kills import main; main({str(root / 'task.json')!r})"],
                cwd=tests,
                env=os.environ | {"PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"},
                stderr=said,
                stdout=said,
            )

    def check(self) -> None:
        """The rows of an uninterrupted run, in one snapshot; and no call more than kills account for."""
        table = self.world.table()
        found = table.scan().to_arrow().to_pylist()
        assert sorted(found, key=lambda row: row["id"]) == sorted(self.kind.rows, key=lambda row: row["id"])
        assert len(table.snapshots()) == 1
        calls = self.calls.all()
        assert {*calls} == {*self.kind.calls}
        assert len(calls) <= len(self.kind.calls) + self.stopped * self.kind.again


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KILLS or kind == "chain"])
def test_a_pipeline_killed_at_random_calls_lands_what_an_uninterrupted_one_does(kind, place, tmp_path, capsys):
    kills, seed, again = 0, 0, []
    start = time.monotonic()
    while kills < max(1, KILLS):
        (root := tmp_path / str(seed)).mkdir()
        trial = Trial(root, kind, place, seed)
        trial.run(max(1, KILLS) - kills)
        trial.check()
        kills += trial.kills
        again.append(trial.calls.number() - len(trial.kind.calls))
        seed += 1
    with capsys.disabled():
        print(f"{kind}: {kills} kills in {seed} runs of {ROWS} rows, {time.monotonic() - start:.0f} s, calls made again: {again}")
