"""Appending Arrow rows to an Iceberg table through the table layer alone: write splits, commit them."""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyiceberg.io.pyarrow import schema_to_pyarrow

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Group, Member, Plan, Seal, Staged
from airflow_ckpt_provider.checkpoint.layout import OwnNames
from support.samples import HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Header
    from airflow_ckpt_provider.tables.iceberg.table import IcebergTarget
    from airflow_ckpt_provider.tables.protocol import Written
    from support.world import World

_numbers = itertools.count()


def write(world: World, *splits: pa.Table, name: str = "shop.orders", rows_per_batch: int | None = None) -> list[Written]:
    """Write each of ``splits``; nothing is committed."""
    target = world.target(name)
    writer = target.writer(header_of(target), [], lambda _: [])
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
        horizon=target.base(target.binding()).horizon,
    )
    target.commit(group, [sealed_of(target, written)], lambda _base: None)
    return world.table(name)


class SealedSplits(NamedTuple):
    """Written splits as a sealed checkpoint."""

    header: Header
    seal: Seal
    plan: Plan
    staged: Sequence[Staged]
    replaced: SealedSplits | None = None
    names: OwnNames = OwnNames("", 1, frozenset())


def sealed_of(target: IcebergTarget, written: list[Written]) -> SealedSplits:
    """Written splits as a sealed checkpoint."""
    seal = Seal(
        sealed_at=now(),
        splits=len(written),
        rows=sum(one.rows for one in written),
        bytes=sum(one.bytes for one in written),
        files=sum(len(one.files) for one in written),
        manifests=tuple(one.manifest for one in written if one.manifest),
    )
    staged = [
        Staged(
            split=f"{n}",
            writer="a.0",
            published_at=now(),
            rows=one.rows,
            bytes=one.bytes,
            files=one.files,
            manifest=one.manifest,
        )
        for n, one in enumerate(written)
    ]
    return SealedSplits(header_of(target), seal, Plan(created_at=now(), inputs={}, splits=()), staged)


def append(world: World, *splits: pa.Table, name: str = "shop.orders", rows_per_batch: int | None = None) -> Table:
    """Write and commit; the table afterwards."""
    return commit(world, write(world, *splits, name=name, rows_per_batch=rows_per_batch), name)


def header_of(target: IcebergTarget) -> Header:
    """Header of a write that appends to the table as it is now."""
    return msgspec.structs.replace(HEADER, table=target.binding())


def arrow_schema(schema: Schema) -> pa.Schema:
    """Arrow's form of an Iceberg schema, without field ids, as a user would have it."""
    import pyarrow as pa

    return pa.schema([field.remove_metadata() for field in schema_to_pyarrow(schema, include_field_ids=False)])


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
