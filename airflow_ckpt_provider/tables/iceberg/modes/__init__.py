"""The modes of a write into an Iceberg table: one file each, and one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.tables.iceberg.modes.append import Append, Create
from airflow_ckpt_provider.tables.iceberg.modes.overwrite import Overwrite
from airflow_ckpt_provider.tables.iceberg.modes.overwrite_partitions import OverwritePartitions
from airflow_ckpt_provider.tables.iceberg.modes.undo import Undo
from airflow_ckpt_provider.tables.iceberg.modes.upsert import Upsert

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_ckpt_provider.tables.iceberg.modes.base import IcebergMode

MODES: Mapping[str, type[IcebergMode]] = {
    "create": Create,
    "append": Append,
    "overwrite": Overwrite,
    "overwrite_partitions": OverwritePartitions,
    "upsert": Upsert,
    "undo": Undo,
}
