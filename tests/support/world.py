"""A small real world: a SQLite catalog, a warehouse, a store and input files in one folder, and writes without Spark.

``World.stage`` runs exactly what a Spark task runs (``SplitWork.run``), one split after the other in this process, so that a
scenario of the protocol takes milliseconds. Tests of Spark and Airflow use the real ones.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType

from airflow_ckpt_provider.checkpoint.documents import Connections, Origin
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.attempt import WriteAttempt
from airflow_ckpt_provider.write.request import WriteRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table

    from airflow_ckpt_provider.write.groups import Settled

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "value", DoubleType()),
    NestedField(3, "kind", StringType()),
    NestedField(4, "at", TimestampType()),
)

ORIGIN = Origin(dag_id="shop", task_id="stage", run_id="manual__1", map_index=-1)


def rows(start: int, count: int) -> pa.Table:
    """``count`` rows with the ids from ``start`` on, fitting ``SCHEMA``."""
    ids = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "value": pa.array([n / 4 for n in ids], pa.float64()),
            "kind": pa.array([f"kind-{n % 3}" for n in ids], pa.string()),
            "at": pa.array([n * 3_600_000_000 for n in ids], pa.timestamp("us")),
        }
    )


class World:
    """One folder with everything in it.

    :param root: an empty folder, or the one of a world that is there already.
    :param catalog: properties of another catalog than the SQLite one; kept in the folder for whoever opens the world later.
    """

    def __init__(self, root: Path, catalog: Mapping[str, str | int] | None = None) -> None:
        self.root = root
        self.input = root / "in"
        self.input.mkdir(parents=True, exist_ok=True)
        self.store = CheckpointStore.at(str(root / "store"))
        if catalog is not None:
            (root / "catalog.json").write_text(json.dumps(dict(catalog)))

    @property
    def catalog(self) -> Catalog:
        """The catalog. The SQLite one is opened once, as it remembers nothing of its tables; another one each time anew.

        A SQL catalog knows its tables by its name: the connection id.
        """
        kept = self.root / "catalog.json"
        if kept.exists():
            return load_catalog("iceberg_default", **json.loads(kept.read_text()))
        return self._sqlite

    @property
    def catalog_properties(self) -> dict[str, str]:
        """How others open the SQLite catalog."""
        place = {"uri": f"sqlite:///{self.root}/catalog.db", "warehouse": f"file://{self.root}/warehouse"}
        return {"name": "iceberg_default", "type": "sql"} | place

    @functools.cached_property
    def _sqlite(self) -> Catalog:
        (self.root / "warehouse").mkdir(exist_ok=True)
        return load_catalog(**self.catalog_properties)

    def create_table(
        self,
        name: str = "shop.orders",
        schema: Schema = SCHEMA,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        properties: dict[str, str] | None = None,
    ) -> Table:
        catalog = self.catalog
        catalog.create_namespace_if_not_exists(name.split(".", maxsplit=1)[0])
        return catalog.create_table(name, schema, partition_spec=spec, properties=properties or {})

    def table(self, name: str = "shop.orders") -> Table:
        return self.catalog.load_table(name)

    def put_files(self, files: int = 4, rows_each: int = 100, row_group: int | None = None) -> None:
        """Parquet files ``0.parquet`` … with the ids from 0 on."""
        for number in range(files):
            pq.write_table(rows(number * rows_each, rows_each), self.input / f"{number}.parquet", row_group_size=row_group)

    def request(self, key: str = "orders", **changes: Any) -> WriteRequest:
        """A request to append all input files, one split each, unless ``changes`` say otherwise."""
        transform = changes.pop("transform", None)
        facts: dict[str, Any] = {
            "key": IdempotenceKey(key),
            "source": Files(f"{self.input}/*.parquet", max_split_bytes=1),
            "options": {},
            "transform": None if transform is None else Transform(transform),
            "mode": "append",
            "connections": Connections(table="iceberg_default", spark="spark_default", checkpoint="checkpoint_default"),
            "origin": ORIGIN,
        }
        return WriteRequest(**(facts | changes))

    def as_table(self, name: str = "shop.orders", catalog: Catalog | None = None) -> CatalogTable:
        return CatalogTable(catalog or self.catalog, name)

    def attempt(self, request: WriteRequest | None = None, name: str = "shop.orders") -> WriteAttempt:
        return WriteAttempt(self.store, self.as_table(name), request or self.request())

    def stage(self, request: WriteRequest | None = None, *, splits: int | None = None, name: str = "shop.orders") -> WriteAttempt:
        """One attempt; with ``splits``, it stops after that many and does not seal, as if it had been killed there."""
        attempt = self.attempt(request, name)
        return attempt if attempt.commit is not None else staged(attempt, splits)

    def commit(self, *attempts: WriteAttempt, name: str = "shop.orders") -> list[Settled]:
        return groups.commit([attempt.checkpoint for attempt in attempts], self.as_table(name))

    def ids(self, name: str = "shop.orders") -> list[int]:
        """All ids in the table, sorted; one that is there twice is listed twice."""
        return sorted(self.table(name).scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())

    def files_on_disk(self) -> set[str]:
        """Data files and manifests of checkpoints in the warehouse, referenced or not."""
        return {str(path) for path in (self.root / "warehouse").rglob("ckpt-*")}

    def referenced_files(self, name: str = "shop.orders") -> set[str]:
        """Those of them that the table's current snapshot references."""
        table = self.table(name)
        snapshot = table.current_snapshot()
        if snapshot is None:
            return set()
        manifests = snapshot.manifests(table.io)
        data = [entry.data_file.file_path for m in manifests for entry in m.fetch_manifest_entry(table.io)]
        return {path.removeprefix("file://") for path in [*data, *(m.manifest_path for m in manifests)]}


def staged(attempt: WriteAttempt, splits: int | None = None) -> WriteAttempt:
    """Stage what is missing, and seal; with ``splits``, stop after that many."""
    left = splits
    while (found := attempt.next_round()) is not None:
        work = attempt.begin("none", 1)
        for split in sorted(found.missing, key=lambda split: split.id):
            if left == 0:
                return attempt
            work.run(split, "0")
            left = None if left is None else left - 1
    attempt.seal()
    return attempt


def ids_of(tables: Iterable[pa.Table]) -> list[int]:
    """All ids of these tables, sorted."""
    return sorted(n for table in tables for n in table["id"].to_pylist())
