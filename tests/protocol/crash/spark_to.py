"""A whole write with real Spark, in the driver process that a test kills: stage what is missing, seal, commit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from protocol.crash.effects import DRIVER
from pyspark.sql import SparkSession
from support.frames import orders
from support.world import World

from airflow_ckpt_provider.exceptions import CheckpointError
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.spark import checkpointed_batches, checkpointed_write, commit
from airflow_ckpt_provider.spark.engine import SparkEngine, planned_in
from airflow_ckpt_provider.spark.session import SparkTarget, quiet
from airflow_ckpt_provider.write.pieces import SaveEvery
from airflow_ckpt_provider.write.rounds import Rounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.write.groups import Settled

#: Two splits at a time.
TARGET = SparkTarget(
    "local[2]",
    conf={
        "spark.driver.memory": "512m",
        # A driver here lives for seconds: the second compiler would cost more than it gives.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.files.minPartitionNum": "4",
    },
)


#: Buckets of a DataFrame, and its partitions.
BUCKETS = 4

#: How a DataFrame is recovered of whose buckets pieces are saved, every so many rows.
PIECES, SAVE = "pieces", 30

#: Files that a micro-batch takes.
STREAM_FILES = 4

#: How a DataFrame is recovered whose ids, which are few, have more rows than a split is to have.
SHARES, SHARE_ROWS = "shares", 60


def write(world: World, recover: str = "") -> tuple[Settled, set[str]]:
    """What the stage and commit operators do, without Airflow; returns the splits that were given to Spark, too.

    :param recover: how a DataFrame of the input files is recovered, ``PIECES`` or ``SHARES``; empty for the files themselves.
    """
    scheduled: set[str] = set()
    with SparkEngine(TARGET, "crash", lambda _: None) as engine:
        changes: dict[str, Any] = {"source": planned_in(frame_of(world, recover), engine.session)} if recover else {}
        if recover == PIECES:
            save = SaveEvery(rows=SAVE, seconds=None, buckets=True)
            changes |= {"transform": "protocol.crash.run_to:same", "transform_version": "1", "save_every": save}
        attempt = world.attempt(world.request(**changes))
        if attempt.commit is None:
            rounds = Rounds(engine, 1)
            rounds.run(attempt, lambda found: scheduled.update(split.id for split in found.missing), lambda _: None)
            attempt.seal()
    (settled,) = world.commit(attempt)
    return settled, scheduled


def frame_of(world: World, recover: str) -> SparkDataFrame:
    ids: dict[str, Any] = {} if recover == "partitions" else {"id_column": "id", "buckets": BUCKETS}
    if recover == SHARES:
        ids |= {"id_column": "kind", "bucket_rows": SHARE_ROWS}
    how = "buckets" if recover in {PIECES, SHARES} else recover
    return SparkDataFrame(orders, parameters={"path": str(world.input)}, recover=how, **ids)


def program(world: World) -> Reference:
    """The same write, in a program of the user's own; returns the reference to what is committed."""
    catalog = world.catalog_properties
    facts: dict[str, Any] = {"key": "orders", "id_column": "id", "buckets": BUCKETS}
    staged = checkpointed_write(_input(world), table="shop.orders", catalog=catalog, store=world.store.uri, **facts)
    return cast("Reference", commit(staged, catalog=catalog, store=world.store.uri))


def saved(world: World) -> None:
    """The same write, by the format ``checkpointed``."""
    catalog = {f"catalog.{name}": value for name, value in world.catalog_properties.items()}
    options = catalog | {"table": "shop.orders", "key": "orders", "store": world.store.uri, "commit": "true"}
    _input(world).write.format("checkpointed").mode("append").options(**options).save()


def streamed(world: World, mode: str) -> None:
    """All input files, ``STREAM_FILES`` in each micro-batch, by a streaming query; on from where Spark says that it was."""
    keys = {"upsert_keys": ["id"]} if mode == "upsert" else {}
    catalog = world.catalog_properties
    function = checkpointed_batches(
        table="shop.orders", catalog=catalog, store=world.store.uri, key="orders", mode=mode, buckets=BUCKETS, **keys
    )
    stream = session().readStream.schema("id long, value double, kind string, at timestamp_ntz")
    frame = stream.option("maxFilesPerTrigger", str(STREAM_FILES)).parquet(str(world.input))
    query = frame.writeStream.foreachBatch(function).option("checkpointLocation", str(world.root / "stream"))
    query.trigger(availableNow=True).start().awaitTermination()


def _input(world: World) -> DataFrame:
    return session().read.parquet(str(world.input))


def session() -> SparkSession:
    builder = SparkSession.builder.master(TARGET.master)
    for name, value in TARGET.conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(root: str, kill_the_driver: str, how: str = "") -> None:
    if kill_the_driver == "driver too":
        os.environ[DRIVER] = str(os.getpid())
    try:
        if how == "program":
            program(World(Path(root)))
        elif how in {"append", "upsert"}:
            streamed(World(Path(root)), how)
        elif how == "format":
            quiet()
            saved(World(Path(root)))
        else:
            write(World(Path(root)), how)
    except CheckpointError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
