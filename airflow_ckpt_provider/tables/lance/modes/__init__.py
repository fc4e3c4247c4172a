"""The modes of a write into a Lance dataset: one file each, and one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.tables.lance.modes.add_columns import AddColumns
from airflow_ckpt_provider.tables.lance.modes.append import Append, Create
from airflow_ckpt_provider.tables.lance.modes.overwrite import Overwrite
from airflow_ckpt_provider.tables.lance.modes.undo import Undo
from airflow_ckpt_provider.tables.lance.modes.upsert import Upsert

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_ckpt_provider.tables.lance.modes.base import LanceMode

MODES: Mapping[str, type[LanceMode]] = {
    "create": Create,
    "append": Append,
    "overwrite": Overwrite,
    "upsert": Upsert,
    "add_columns": AddColumns,
    "undo": Undo,
}
