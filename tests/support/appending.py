"""Appending Arrow rows to an Iceberg table through the table layer alone: write splits, commit them. And reading them back
with a reader that shares no code with the writer.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
from pyiceberg.io.pyarrow import schema_to_pyarrow

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Group, Member, Seal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from airflow_ckpt_provider.tables.protocol import Written
    from support.world import World

_numbers = itertools.count()


def write(world: World, *splits: pa.Table, name: str = "shop.orders", rows_per_batch: int | None = None) -> list[Written]:
    """Write each of ``splits``; nothing is committed."""
    target = world.target(name)
    writer = target.writer(target.binding())
    return [writer.write(split.to_batches(rows_per_batch), f"ckpt-{next(_numbers):06d}") for split in splits]


def commit(world: World, written: list[Written], name: str = "shop.orders") -> Table:
    """Land written splits in one snapshot."""
    target = world.target(name)
    key = f"key-{next(_numbers)}"
    group = Group(
        id=hashlib.sha256(key.encode()).hexdigest()[:32],
        members=(Member(key=key, generation=1),),
        stream="tests",
        bound_at=now(),
        horizon=target.horizon(),
    )
    seal = Seal(
        sealed_at=now(),
        splits=len(written),
        rows=sum(one.rows for one in written),
        bytes=sum(one.bytes for one in written),
        files=sum(len(one.files) for one in written),
        manifests=tuple(one.manifest for one in written if one.manifest),
    )
    target.commit(group, target.binding(), [seal], lambda _base: None)
    return world.table(name)


def append(world: World, *splits: pa.Table, name: str = "shop.orders", rows_per_batch: int | None = None) -> Table:
    """Write and commit; the table afterwards."""
    return commit(world, write(world, *splits, name=name, rows_per_batch=rows_per_batch), name)


def arrow_schema(schema: Schema) -> pa.Schema:
    """Arrow's form of an Iceberg schema, without field ids, as a user would have it."""
    import pyarrow as pa

    return pa.schema([field.remove_metadata() for field in schema_to_pyarrow(schema, include_field_ids=False)])


def duckdb_rows(table: Table, query: str = "select * from rows") -> list[tuple]:
    """Rows of ``query`` over the table, read by DuckDB from the table's metadata file."""
    connection = duckdb.connect()
    for extension in ("avro", "iceberg"):
        package = Path(importlib.import_module(f"duckdb_extension_{extension}").__file__).parent
        (binary,) = package.rglob("*.duckdb_extension")
        connection.execute(f"load '{binary}'")
    location = table.metadata_location.removeprefix("file://")
    connection.execute(f"create view rows as select * from iceberg_scan('{location}')")
    with connection:
        return [tuple(row.values()) for row in connection.execute(query).to_arrow_table().to_pylist()]


def by_partition(table: Table) -> dict[tuple[str, ...], list[str]]:
    """Rows of each partition, as sorted text, so that NaN equals NaN."""
    from pyiceberg.io.pyarrow import ArrowScan

    found: dict[tuple[str, ...], list[str]] = {}
    scan = table.scan()
    for task in scan.plan_files():
        key = tuple(str(value) for value in task.file.partition._data)
        reader = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
        rows = reader.to_table([task]).to_pylist()
        assert len(rows) == task.file.record_count
        found.setdefault(key, []).extend(map(str, rows))
    return {key: sorted(rows) for key, rows in found.items()}
