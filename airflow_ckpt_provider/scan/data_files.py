"""The data files of an Iceberg table, and what says which of their rows are deleted, as plans store them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.checkpoint.documents import Part, Pinned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_ckpt_provider.checkpoint.documents import Plan


class DeleteFile(Part, frozen=True, array_like=True):
    """A file that says which rows of data files are deleted: Parquet, ORC, or Puffin for deletion vectors."""

    path: str
    bytes: int
    format: str


def identity_of(path: str, deletes: Iterable[DeleteFile]) -> str:
    """The text that says which rows a data file has: its path, and the files that delete some of them."""
    return "\0".join([path, *sorted(delete.path for delete in deletes)])


class ScanFile(Part, frozen=True, kw_only=True, omit_defaults=True):
    """One data file, as a plan stores it.

    :param rows: rows in the file, deleted ones too.
    :param format: ``PARQUET`` or ``ORC``.
    :param constants: field ids and JSON values of columns that the file's partition fixes; used if the file lacks the column.
    :param deletes: position delete files that may hold rows of this file.
    """

    path: str
    bytes: int
    rows: int
    spec_id: int
    format: str = "PARQUET"
    constants: tuple[tuple[int, str | int | float | bool], ...] = ()
    deletes: tuple[DeleteFile, ...] = ()


class PinnedSnapshot(Pinned, frozen=True, kw_only=True, omit_defaults=True, tag="iceberg"):
    """The snapshot of a table that a plan reads, and what it had then.

    :param snapshot_id: None of a table without any.
    """

    table: str
    table_uuid: str
    snapshot_id: Count | None
    schema_id: Count
    files: Count
    rows: Count
    bytes: Count
    filter: str | None = None

    @classmethod
    def of(cls, plan: Plan) -> PinnedSnapshot | None:
        """What a plan says; None if it reads something else than an Iceberg table."""
        return plan.source_as(cls) if plan.source.get("kind") == "iceberg" else None
