"""Speculative execution: two tasks write one split at the same time, and one of them counts."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.stages import prepare

from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

CONF = {
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2",
}


def slow_first_time(batch: pa.RecordBatch, folder: str) -> Iterator[pa.RecordBatch]:
    """The last split waits in its first task until the second, speculative one is half-way through, too."""
    yield batch.slice(0, 50)
    if batch["id"][0].as_py() == 300:
        Path(folder, f"at.{os.getpid()}").touch()
        end = time.monotonic() + 60
        while len(list(Path(folder).glob("at.*"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
    yield batch.slice(50)


def test_a_split_that_two_tasks_write_is_published_once(world, tmp_path, cluster, bare_python):
    (tmp_path / "at").mkdir()
    request = world.request(transform=functools.partial(slow_first_time, folder=str(tmp_path / "at")))
    conf = CONF | {"spark.pyspark.python": str(bare_python)}
    with spark_session(SparkTarget(cluster.url, conf=conf), "speculation") as spark:
        stage = prepare(spark, world, request)
        stage.stage()
    assert len(list((tmp_path / "at").iterdir())) == 2
    world.commit(stage.attempt)
    assert world.ids() == list(range(400))
    checkpoint = stage.attempt.checkpoint
    prefix = f"ckpt-{checkpoint.key.hash}-g1-s"
    (attempt,) = checkpoint.attempts()
    left = [Path(path).name for path in world.files_on_disk() - world.referenced_files()]
    assert all(name.startswith(prefix) and f"-{attempt.id}." in name for name in left)
