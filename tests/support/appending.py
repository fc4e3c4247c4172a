"""Appending Arrow rows to an Iceberg table through the table layer alone: write splits, commit them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec
from pyiceberg.io.pyarrow import schema_to_pyarrow

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, now
from airflow_ckpt_provider.checkpoint.documents import Group, Member, Plan, Split, Staged
from airflow_ckpt_provider.checkpoint.sealing import put_seal
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.tables.state import GroupCommit
from airflow_ckpt_provider.write import commit_loop
from airflow_ckpt_provider.write.conflict_checks import ConflictChecks
from airflow_ckpt_provider.write.membership import group_id_of
from airflow_ckpt_provider.write.staged_files import StagedFileCheck
from support.samples import HEADER

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Header, Seal
    from airflow_ckpt_provider.tables.state import Landed
    from airflow_ckpt_provider.tables.table import Table as Target
    from airflow_ckpt_provider.tables.writer import Writer, Written
    from support.world import World

_numbers = itertools.count()


def write(world: World, *splits: pa.Table, name: str = "shop.orders", rows_per_batch: int | None = None) -> list[Written]:
    """Write each of ``splits``; nothing is committed."""
    target = world.as_table(name)
    writer = writer_of(target, header_of(target))
    return [writer.write(split.to_batches(rows_per_batch), f"ckpt-{next(_numbers):06d}") for split in splits]


def commit(world: World, written: list[Written], name: str = "shop.orders") -> Table:
    """Land written splits in one snapshot."""
    land(world.as_table(name), written)
    return world.table(name)


def land(target: Target, written: list[Written], mode: str = "append") -> Landed:
    """Land written splits in one commit of their own."""
    write = sealed_of(target, written, mode)
    member = Member(key=write.header.key, generation=1)
    horizon = target.state(write.header.table).horizon
    group = Group(id=group_id_of([member]), members=(member,), stream="tests", bound_at=now(), horizon=horizon)
    checks = ConflictChecks([write.checkpoint], StagedFileCheck([write], target))
    return commit_loop.land(target, GroupCommit(group, [write]), checks)


def writer_of(target: Target, header: Header) -> Writer:
    """What writes splits of this header."""
    return target.state(header.table).mode(header).writer(unstaged(header))


def unstaged(header: Header) -> StagedWrite:
    """A write of which nothing is planned yet, in a store of its own."""
    return StagedWrite(Checkpoint.create(CheckpointStore.at(f"memory://tests-{next(_numbers)}"), header))


def sealed_of(target: Target, written: list[Written], mode: str = "append") -> SealedWrite:
    """Written splits as a sealed write, in a store of its own."""
    checkpoint = unstaged(msgspec.structs.replace(header_of(target), key=f"key-{next(_numbers)}", mode=mode)).checkpoint
    checkpoint.pin(Plan(created_at=now(), source={}, splits=tuple(Split(id=f"{n}", bytes=0, read={}) for n in range(len(written)))))
    for n, one in enumerate(written):
        checkpoint.publish(
            Staged(
                split=f"{n}",
                writer="a.0",
                published_at=now(),
                rows=one.rows,
                bytes=one.bytes,
                files=one.files,
                manifest=one.manifest,
            )
        )
    put_seal(checkpoint, checkpoint.staged([f"{n}" for n in range(len(written))]))
    return SealedWrite(checkpoint)


def seal(checkpoint: Checkpoint, plan: Plan, number: int = 1) -> Seal:
    """Seal what is staged of a plan."""
    checkpoint.require_complete(plan)
    return put_seal(checkpoint, checkpoint.staged([split.id for split in plan.splits]), plan=plan, number=number)


def require_files(writes: list[SealedWrite], target: Target) -> None:
    """Look at the staged files of these, as a commit does."""
    StagedFileCheck(writes, target).require(target.state(writes[0].header.table))


def append(world: World, *splits: pa.Table, name: str = "shop.orders", rows_per_batch: int | None = None) -> Table:
    """Write and commit; the table afterwards."""
    return commit(world, write(world, *splits, name=name, rows_per_batch=rows_per_batch), name)


def header_of(target: Target) -> Header:
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
