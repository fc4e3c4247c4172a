"""The data files of an Iceberg table, and what says which of their rows are deleted, as plans store them."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.documents import Part


class DeleteFile(Part, frozen=True, array_like=True):
    """A file that says which rows of data files are deleted: Parquet, ORC, or Puffin for deletion vectors."""

    path: str
    bytes: int
    format: str


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
