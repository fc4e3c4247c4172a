"""Table splits, whose work is on files of the table, and the plans that list them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Split
from airflow_ckpt_provider.scan.data_files import identity_of
from airflow_ckpt_provider.tables.iceberg.search import head_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Plan
    from airflow_ckpt_provider.scan.data_files import ScanFile
    from airflow_ckpt_provider.tables.iceberg.upsert.grouping import FileGroup


def table_split(task: str, file: ScanFile, *more: str) -> Split:
    """A table split for one of the table's files: its id says which file it is, with which deletes."""
    facts = "\0".join([identity_of(file.path, file.deletes), *more])
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return Split(id=f"{task}{digest}", bytes=file.bytes, read=msgspec.to_builtins(file), task=task)


def group_split(task: str, group: FileGroup) -> Split:
    """A table split for some of the table's files: its id says which these are, with which deletes."""
    return Split(id=f"{task}{group.id}", bytes=sum(group.bytes), read=msgspec.to_builtins(group), task=task)


def with_table_splits(plan: Plan, splits: Iterable[Split], base: int | None) -> Plan:
    """``plan`` with these for its table splits."""
    reads = [split for split in plan.splits if split.is_input]
    return msgspec.structs.replace(plan, created_at=now(), splits=(*reads, *splits), base=base)


def head_id(table: Table, branch: str) -> int | None:
    """Id of the snapshot that a branch shows."""
    head = head_of(table.metadata, branch)
    return head.snapshot_id if head else None
