"""Stop means stop (I12): no job, no busy Python worker and no half-published split is left, and a retry completes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.stages import Gate, prepare
from support.standalone import alive, children, wait_until

from airflow_ckpt_provider.exceptions import StageFailedError
from airflow_ckpt_provider.spark import stage as stage_module
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from support.world import World

pytestmark = pytest.mark.spark

SOON_S = 15.0  # "within seconds", on a machine that does other things


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # Spark gives a task two seconds before it kills its Python worker.
    with spark_session(SparkTarget("local[2]", conf={"spark.python.task.killTimeout": "200ms"}), "stops") as spark:
        yield spark


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Lets the first two of four splits through."""
    return Gate(tmp_path / "gate", below=200)


def check_stopped_and_retry(spark: SparkSession, world: World, gate: Gate) -> None:
    gate.wait_until_gone()
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    published = world.attempt(world.request(transform=gate.transform)).checkpoint.staged_ids()
    gate.open()
    retry = prepare(spark, world, world.request(transform=gate.transform))
    assert retry.attempt.checkpoint.staged_ids() == published
    retry.stage()
    world.commit(retry.attempt)
    assert world.ids() == list(range(400))


def test_a_stage_that_another_thread_cancels_ends_and_its_retry_completes(spark, world, gate):
    stage = prepare(spark, world, world.request(transform=gate.transform))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stage.stage)
        gate.wait_for(2)
        asked = time.monotonic()
        stage.run.cancel()
        with pytest.raises(StageFailedError, match=r"key 'orders' was stopped\. At least 2 of 4 splits are staged and stay"):
            running.result(SOON_S)
    assert time.monotonic() - asked < SOON_S
    check_stopped_and_retry(spark, world, gate)


def test_a_stage_that_is_cancelled_before_it_begins_runs_no_task(spark, world):
    stage = prepare(spark, world)
    stage.run.cancel()
    with pytest.raises(StageFailedError, match="was stopped"):
        stage.stage()
    assert world.files_on_disk() == set()


@pytest.mark.parametrize("wait", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_a_cancel_while_the_job_is_being_submitted_is_not_lost(spark, world, tmp_path, wait):
    gate = Gate(tmp_path / "gate")
    stage = prepare(spark, world, world.request(transform=gate.transform))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stage.stage)
        time.sleep(wait)
        stage.run.cancel()
        with pytest.raises(StageFailedError, match="was stopped"):
            running.result(SOON_S)
    check_stopped_and_retry(spark, world, gate)


class Terminated(BaseException):
    """What some signal handlers raise."""


@pytest.mark.parametrize("raises", [True, False], ids=["the handler raises", "the handler returns"])
def test_a_sigterm_handler_in_the_main_thread_can_cancel(spark, world, gate, raises):
    stage = prepare(spark, world, world.request(transform=gate.transform))

    def on_term(*_: object) -> None:
        stage.run.cancel()
        if raises:
            raise Terminated

    def send() -> None:
        gate.wait_for(2)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, on_term)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(Terminated if raises else StageFailedError):
            stage.stage()
    finally:
        signal.signal(signal.SIGTERM, before)
        sender.join()
    check_stopped_and_retry(spark, world, gate)


def test_an_error_while_progress_is_reported_leaves_no_job_running(spark, world, gate, monkeypatch):
    monkeypatch.setattr(stage_module, "REPORT_EVERY_S", 0.05)
    stage = prepare(spark, world, world.request(transform=gate.transform))

    def report(_: object) -> None:
        gate.wait_for(2)
        raise Terminated

    with pytest.raises(Terminated):
        stage.run.run(report)
    check_stopped_and_retry(spark, world, gate)


@pytest.mark.parametrize("handler", ["cancel", "raise"])
def test_a_driver_process_ends_soon_after_sigterm_with_all_that_it_started(spark, world, gate, handler):
    command = [sys.executable, "-m", "support.stages", str(world.root), "local[2]", str(gate.folder), "200", handler]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], stderr=subprocess.DEVNULL) as driver:
        gate.wait_for(2)
        jvms = children(driver.pid)
        asked = time.monotonic()
        driver.terminate()
        try:
            assert driver.wait(SOON_S) == (1 if handler == "cancel" else 143)
        finally:
            driver.kill()
    assert time.monotonic() - asked < SOON_S
    gate.wait_until_gone()
    assert jvms
    wait_until(lambda: not any(alive(pid) for pid in jvms), "the end of the JVM", SOON_S)
    check_stopped_and_retry(spark, world, gate)


START = """
import signal, sys
from support.world import World
from pathlib import Path
from airflow_ckpt_provider.spark.engine import SparkEngine
from airflow_ckpt_provider.spark.session import SparkTarget
from airflow_ckpt_provider.write.rounds import Rounds

root, master, handler = sys.argv[1:]
world = World(Path(root))
with SparkEngine(SparkTarget(master), "a start", lambda _: print("starting", flush=True)) as engine:
    rounds = Rounds(engine, 1)

    def on_term(*_):
        rounds.cancel()
        if handler == "raise":
            raise SystemExit(143)

    signal.signal(signal.SIGTERM, on_term)
    rounds.run(world.attempt(), lambda _: None, lambda _: None)
"""


@pytest.mark.parametrize("handler", ["cancel", "raise"])
@pytest.mark.parametrize(
    ("master", "after"),
    [("local[2]", 0.0), ("local[2]", 0.5), ("local[2]", 1.5), ("spark://127.0.0.1:9", 8.0)],
    ids=["at once", "while the JVM is launched", "a little later", "a cluster that does not answer"],
)
def test_a_stop_while_the_session_starts_ends_the_process_with_all_that_it_started(world, master, after, handler):
    command = [sys.executable, "-c", START, str(world.root), master, handler]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout.readline() == "starting\n"
        time.sleep(after)
        started = children(driver.pid)
        asked = time.monotonic()
        driver.terminate()
        try:
            _, said = driver.communicate(timeout=SOON_S)
        finally:
            driver.kill()
    took = time.monotonic() - asked
    assert driver.returncode == (143 if handler == "raise" else 1)
    assert took < SOON_S
    assert handler == "raise" or "stopped" in said.splitlines()[-1]
    wait_until(lambda: not any(alive(pid) for pid in started), "the end of the JVM", 3.0)
    assert world.files_on_disk() == set()
    assert world.attempt().checkpoint.staged_ids() == set()
