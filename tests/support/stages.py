"""Stages on a real Spark, and tasks that wait half-way through a split until a test lets them go on.

Run as a program, it is the driver process of one stage: see ``main``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.spark.stage import StageRun
from support.standalone import alive, wait_until
from support.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from airflow_ckpt_provider.write.request import WriteRequest
    from airflow_ckpt_provider.write.rounds import Progress


class Stage(NamedTuple):
    """One attempt that is ready to run its missing splits."""

    attempt: WriteAttempt
    run: StageRun
    missing: list[str]

    def stage(self) -> list[Progress]:
        """Run and seal; the reports."""
        reports: list[Progress] = []
        self.run.run(reports.append)
        self.attempt.seal()
        return reports


def prepare(spark: SparkSession, world: World, request: WriteRequest | None = None) -> Stage:
    attempt = world.attempt(request)
    found = attempt.next_round()
    missing = found.missing if found else []
    splits = attempt.checkpoint.plan().splits
    work = attempt.begin("a test", 1)
    run = StageRun(spark, attempt.checkpoint, work, missing, len(splits) - len(missing))
    return Stage(attempt, run, [split.id for split in missing])


class Gate:
    """A gate at which tasks wait with half of their split written.

    :param folder: a folder that executors see.
    :param below: splits whose ids begin here or above do not wait. They are a few bytes larger, so they run first.
    """

    def __init__(self, folder: Path, below: int = 1_000_000) -> None:
        self.folder = folder
        self._below = below
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "closed").touch()

    @property
    def transform(self) -> partial[Iterator[pa.RecordBatch]]:
        return partial(held, folder=str(self.folder), below=self._below)

    def open(self) -> None:
        (self.folder / "closed").unlink()

    def waiting(self) -> list[int]:
        """Processes that came to the gate; they may have been killed since."""
        return sorted({int(path.suffix[1:]) for path in self.folder.glob("at.*")})

    def wait_for(self, tasks: int) -> list[int]:
        return wait_until(lambda: found if len(found := self.waiting()) >= tasks else None, f"{tasks} tasks at the gate", 90)

    def wait_until_gone(self, seconds: float = 20) -> None:
        wait_until(lambda: not any(alive(pid) for pid in self.waiting()), "the end of the Python workers", seconds)


def held(batch: pa.RecordBatch, folder: str, below: int) -> Iterator[pa.RecordBatch]:
    """Half of the batch, then the other half when the gate is open."""
    half = batch.num_rows // 2
    yield batch.slice(0, half)
    if batch["id"][0].as_py() < below:
        Path(folder, f"at.{os.getpid()}").touch()
        end = time.monotonic() + 60
        while Path(folder, "closed").exists() and time.monotonic() < end:
            time.sleep(0.02)
    yield batch.slice(half)


def main(root: str, master: str, gate: str, below: str, term: str) -> None:
    """Stage what is missing in the world at ``root``.

    :param term: what a SIGTERM does: ``cancel`` as Airflow does, or ``raise`` after it.
    """
    world = World(Path(root))
    conf = {"spark.executor.memory": "512m", "spark.cores.max": "2", "spark.executor.cores": "1"}
    with spark_session(SparkTarget(master, conf=conf), "a driver") as spark:
        stage = prepare(spark, world, world.request(transform=Gate(Path(gate), int(below)).transform))

        def on_term(*_: object) -> None:
            stage.run.cancel()
            if term == "raise":
                raise SystemExit(143)

        signal.signal(signal.SIGTERM, on_term)
        print("running", flush=True)
        stage.stage()


if __name__ == "__main__":
    main(*sys.argv[1:])
