"""The driver process of a streaming query that a test kills at any moment, and starts again: see ``main``."""

from __future__ import annotations

import sys
from pathlib import Path

from protocol.crash.spark_to import session

from airflow_ckpt_provider.spark import checkpointed_batches
from support.world import World


def main(root: str, uri: str) -> None:
    """Land all input files, each in a micro-batch of its own, on from where Spark says that the query was.

    :param uri: of a Lance dataset; empty for the Iceberg table.
    """
    world = World(Path(root))
    where = {"uri": uri} if uri else {"table": "shop.orders", "catalog": world.catalog_properties}
    stream = session().readStream.schema("id long, value double, kind string, at timestamp_ntz").option("maxFilesPerTrigger", "1")
    (
        stream.parquet(str(world.input))
        .writeStream.foreachBatch(checkpointed_batches(key="orders", store=world.store.uri, **where))
        .option("checkpointLocation", str(world.root / "stream"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
