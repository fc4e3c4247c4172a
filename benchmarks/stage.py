"""A fresh table, store and key for each measured write, through the package's own attempt and stage."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from airflow_ckpt_provider.checkpoint.documents import Connections, Origin
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.spark.engine import job_of, planned_in
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write.attempt import WriteAttempt
from airflow_ckpt_provider.write.pieces import SaveEvery
from airflow_ckpt_provider.write.request import WriteRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Seal
    from airflow_ckpt_provider.sources import Files, SparkDataFrame
    from airflow_ckpt_provider.sources.transform import Transform
    from airflow_ckpt_provider.tables.table import Table as AnyTable

MASTER = "local[2]"

#: Compression of every Parquet file that is compared, here and on Spark's side: codec, and level (Spark's own default).
CODEC, LEVEL = "zstd", 3

PROPERTIES = {"write.parquet.compression-codec": CODEC, "write.parquet.compression-level": str(LEVEL)}

_ORIGIN = Origin(dag_id="benchmarks", task_id="stage", run_id="manual", map_index=-1)
_CONNECTIONS = Connections(table="iceberg_default", spark="spark_default", checkpoint="checkpoint_default")


class Place:
    """A catalog, a warehouse and a store in one folder.

    :param root: an empty folder, or the one of a place that another process has filled.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warehouse = root / "warehouse"
        self.warehouse.mkdir(exist_ok=True)
        self.store = CheckpointStore.at(str(root / "store"))
        self._keys = itertools.count()

    @property
    def catalog(self) -> Catalog:
        """The catalog, opened anew, as each task does."""
        return load_catalog(**self.catalog_properties)

    @property
    def catalog_properties(self) -> dict[str, str]:
        """How others open the catalog."""
        where = {"uri": f"sqlite:///{self.root}/catalog.db", "warehouse": f"file://{self.warehouse}"}
        return {"name": "benchmarks", "type": "sql"} | where

    def create_table(self, name: str, schema: Schema, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC) -> Table:
        """An empty table ``bench.<name>``."""
        catalog = self.catalog
        catalog.create_namespace_if_not_exists("bench")
        return catalog.create_table(f"bench.{name}", schema, partition_spec=spec, properties=PROPERTIES)

    def key(self) -> IdempotenceKey:
        """A key that was not used before."""
        return IdempotenceKey(f"benchmark-{next(self._keys)}")

    def attempt(
        self,
        key: IdempotenceKey,
        source: Files | SparkDataFrame,
        table: str | AnyTable,
        mode: str = "append",
        *,
        options: Mapping[str, str] | None = None,
        transform: Transform | None = None,
        transform_version: str | None = None,
        save_every: SaveEvery | None = None,
        spark: SparkSession | None = None,
        **parameters: object,
    ) -> WriteAttempt:
        """A new attempt, as the operator opens one.

        :param table: a table ``bench.<name>``, or one that is open.
        :param options: of the source's storage.
        :param spark: tells the partitions of a DataFrame that has no ids.
        :param parameters: those of the mode.
        """
        request = WriteRequest(
            key=key,
            source=source if spark is None else planned_in(source, lambda: spark),
            options=options or {},
            transform=transform,
            transform_version=transform_version,
            save_every=save_every or SaveEvery(),
            mode=mode,
            parameters=parameters,
            connections=_CONNECTIONS,
            origin=_ORIGIN,
        )
        return WriteAttempt(self.store, self.as_table(table) if isinstance(table, str) else table, request)

    def as_table(self, name: str) -> CatalogTable:
        """The table ``bench.<name>`` in a catalog of its own."""
        return CatalogTable(self.catalog, f"bench.{name}")

    def written(self) -> dict[Path, int]:
        """Data files and manifests in the warehouse, with their sizes."""
        return {path: path.stat().st_size for path in self.warehouse.rglob("*") if path.suffix in {".parquet", ".avro"}}

    def clear(self) -> None:
        """Remove all staged files, so that a long run does not fill the disk."""
        for path in self.written():
            path.unlink()


def stage_on_spark(
    spark: SparkSession, attempt: WriteAttempt, *, stop_after: int | None = None, rounds: list[tuple[int, float]] | None = None
) -> Seal | None:
    """All that the stage operator does between a started session and its reference.

    :param stop_after: stage that many of the missing splits only and do not seal, as a killed attempt leaves it.
    :param rounds: gets the splits and seconds of each round.
    """
    start = time.perf_counter()
    while (found := attempt.next_round()) is not None:
        work = attempt.begin("benchmark", 1)
        todo = found.missing[:stop_after]
        job_of(spark, attempt, found._replace(missing=todo), work).run(lambda _: None)
        if len(todo) < len(found.missing):
            return None
        if rounds is not None:
            rounds.append((len(todo), time.perf_counter() - start))
            start = time.perf_counter()
    return attempt.seal()


def session() -> AbstractContextManager[SparkSession]:
    """A session as the stage operator opens it."""
    conf = {"spark.sql.parquet.compression.codec": CODEC, "spark.log.level": "ERROR"}
    return spark_session(SparkTarget(MASTER, conf=conf), "benchmarks")


@contextmanager
def place(cache: Path) -> Iterator[Place]:
    """A ``Place`` in a new folder below ``cache``, removed on leaving."""
    root = Path(tempfile.mkdtemp(prefix="run-", dir=cache))
    try:
        yield Place(root)
    finally:
        shutil.rmtree(root)
