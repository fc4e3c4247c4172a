"""A whole write with real Spark, in the driver process that a test kills: stage what is missing, seal, commit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from crash.effects import DRIVER
from support.world import World

from airflow_ckpt_provider.exceptions import CheckpointError
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.spark.stage import StageRun

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import Split
    from airflow_ckpt_provider.tables.groups import Settled

#: Two splits at a time.
TARGET = SparkTarget(
    "local[2]",
    conf={
        "spark.driver.memory": "512m",
        # A driver here lives for seconds: the second compiler would cost more than it gives.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
    },
)


def write(world: World) -> tuple[Settled, set[str]]:
    """What the stage and commit operators do, without Airflow; returns the splits that were given to Spark, too."""
    attempt = world.attempt()
    missing: list[Split] = []
    if attempt.commit is None:
        found = attempt.next_round()
        if found is not None:
            missing = found.missing
            with spark_session(TARGET, "crash") as spark:
                work = attempt.begin(TARGET.name, 1)
                StageRun(spark, attempt.checkpoint, work, missing, len(found.plan.splits) - len(missing)).run(lambda _: None)
        attempt.seal()
    (settled,) = world.commit(attempt)
    return settled, {split.id for split in missing}


def main(root: str, kill_the_driver: str) -> None:
    if kill_the_driver == "driver too":
        os.environ[DRIVER] = str(os.getpid())
    try:
        write(World(Path(root)))
    except CheckpointError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
