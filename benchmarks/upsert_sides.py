"""The two sides of an upsert that run in this environment; each is called in a process of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write import groups
from benchmarks.processes import cpu_seconds
from benchmarks.stage import Place, session, stage_on_spark

if TYPE_CHECKING:
    from pyiceberg.table import Table


def ours(root: str, source: str) -> dict[str, Any]:
    """Stage on Spark and commit; the session is opened before."""
    begun = time.perf_counter()
    with session() as spark:
        spark.range(1).collect()
        start, before = time.perf_counter(), cpu_seconds()
        here = Place(Path(root))
        attempt = here.attempt(here.key(), Files(source), "people", "upsert", upsert_keys=["id"])
        rounds: list[tuple[int, float]] = []
        stage_on_spark(spark, attempt, rounds=rounds)
        staged = time.perf_counter()
        groups.commit([attempt.checkpoint], CatalogTable(here.catalog, "bench.people"))
        end = time.perf_counter()
        cpu = cpu_seconds() - before
    return {"seconds": end - start, "cpu": cpu, "commit": end - staged, "session": start - begun, "rounds": rounds}


def pyiceberg(root: str, source: str) -> dict[str, Any]:
    """``Table.upsert``, which takes a table in memory."""
    start, before = time.perf_counter(), cpu_seconds()
    table = Place(Path(root)).catalog.load_table("bench.people")
    table.upsert(pq.read_table(source), join_cols=["id"])
    return {"seconds": time.perf_counter() - start, "cpu": cpu_seconds() - before}


def versions(table: Table) -> dict[int, int]:
    """How many rows there are of each version."""
    found: dict[int, int] = {}
    for batch in table.scan(selected_fields=("version",)).to_arrow_batch_reader():
        for entry in batch.column("version").value_counts().to_pylist():
            found[entry["values"]] = found.get(entry["values"], 0) + entry["counts"]
    return found
