"""Iceberg, as a table format; see ``tables.format``."""

from __future__ import annotations

from airflow_ckpt_provider.tables.format import TableFormat
from airflow_ckpt_provider.tables.iceberg.binding import NAME
from airflow_ckpt_provider.tables.iceberg.modes import MODES
from airflow_ckpt_provider.tables.iceberg.refusals import refusal
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable


def _open(identifier: str, branch: str, opened: object) -> CatalogTable:
    """A table of a catalog."""
    from pyiceberg.catalog import Catalog

    if not isinstance(opened, Catalog):
        raise TypeError(f"A table is opened with its catalog, and this is {opened!r}.")
    return CatalogTable(opened, identifier, branch)


FORMAT = TableFormat(
    name=NAME,
    commit_is="snapshot",
    what_deletes=(
        "Something deletes files that no snapshot references yet, such as an orphan clean-up with too short a retention: stop it."
    ),
    connection="iceberg",
    modes=MODES,
    open=_open,
    named=lambda identifier: identifier,
    refusal=refusal,
)
