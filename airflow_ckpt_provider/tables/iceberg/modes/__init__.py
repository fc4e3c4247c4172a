"""The modes of a write into an Iceberg table: one file each, and one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.iceberg.modes.append import Append, Create
from airflow_ckpt_provider.tables.iceberg.modes.overwrite import Overwrite
from airflow_ckpt_provider.tables.iceberg.modes.overwrite_partitions import OverwritePartitions
from airflow_ckpt_provider.tables.iceberg.modes.overwrite_where import OverwriteWhere
from airflow_ckpt_provider.tables.iceberg.modes.upsert import Upsert

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.tables.iceberg.modes.base import IcebergMode

MODES: Mapping[str, type[IcebergMode]] = {
    "create": Create,
    "append": Append,
    "overwrite": Overwrite,
    "overwrite_partitions": OverwritePartitions,
    "upsert": Upsert,
}


def mode_of(name: str, parameters: JsonObject) -> type[IcebergMode]:
    """The mode that does what a name and parameters ask.

    :raises InvalidInputError: if there is none of that name.
    """
    if name not in MODES:
        raise InvalidInputError(f"mode={name!r}: the modes are {', '.join(MODES)}.")
    return OverwriteWhere if name == "overwrite" and "overwrite_filter" in parameters else MODES[name]
