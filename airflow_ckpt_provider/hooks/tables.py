"""From the format and the connection id of a table to the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.hooks.catalog import iceberg_catalog
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook, storage_options
from airflow_ckpt_provider.tables.format import format_of

if TYPE_CHECKING:
    from airflow_ckpt_provider.tables.table import Table


def open_table(format_name: str, identifier: str, branch: str, conn_id: str) -> Table:
    """A table that is written to.

    :param format_name: see ``tables.format``.
    :param conn_id: of its connection; empty for the credentials of the environment, where the format takes those.
    :raises InvalidInputError: if the connection is missing or of another type, or the name cannot be one.
    """
    table_format = format_of(format_name)
    opened: object
    if table_format.connection == "iceberg":
        opened = iceberg_catalog(conn_id)
    elif table_format.connection == "store":
        opened = CheckpointHook(conn_id).location().options
    else:
        opened = storage_options(conn_id or None, "lance_conn_id")
    return table_format.open(identifier, branch, opened)
