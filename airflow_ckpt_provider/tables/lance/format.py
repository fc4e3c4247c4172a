"""Lance, as a table format; see ``tables.format``."""

from __future__ import annotations

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.scan.lance import dataset_uri
from airflow_ckpt_provider.tables.format import TableFormat
from airflow_ckpt_provider.tables.lance.binding import NAME
from airflow_ckpt_provider.tables.lance.modes import MODES, mode_of
from airflow_ckpt_provider.tables.lance.table import LanceTarget


def _open(identifier: str, branch: str, opened: object) -> LanceTarget:
    """A dataset, opened with storage options."""
    del branch
    if not isinstance(opened, dict):
        raise TypeError("A dataset is opened with storage options.")
    return LanceTarget(identifier, opened)


def _named(identifier: str) -> str | None:
    try:
        return dataset_uri(identifier)
    except InvalidInputError:
        return None


FORMAT = TableFormat(
    name=NAME,
    commit_is="version",
    what_deletes="Lance's clean-up of old versions deletes files that no version refers to once they are seven days old.",
    connection="checkpoint",
    modes=MODES,
    mode=mode_of,
    open=_open,
    named=_named,
    refusal=lambda _: None,
)
