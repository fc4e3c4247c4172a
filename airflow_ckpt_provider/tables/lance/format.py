"""Lance, as a table format; see ``tables.format``."""

from __future__ import annotations

from airflow_ckpt_provider.scan.lance import dataset_uri
from airflow_ckpt_provider.tables.format import TableFormat, named_by, storage_options
from airflow_ckpt_provider.tables.lance.binding import NAME
from airflow_ckpt_provider.tables.lance.modes import MODES
from airflow_ckpt_provider.tables.lance.table import DatasetTable

FORMAT = TableFormat(
    name=NAME,
    commit_is="version",
    what_deletes="Lance's clean-up of old versions deletes files that no version refers to once they are seven days old.",
    connection="checkpoint",
    modes=MODES,
    open=lambda identifier, _, opened: DatasetTable(identifier, storage_options(opened)),
    named=named_by(dataset_uri),
    refusal=lambda _: None,
)
