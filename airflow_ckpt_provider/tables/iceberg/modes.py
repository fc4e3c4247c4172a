"""The modes of a write into an Iceberg table, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.iceberg.landing import Append, Overwrite, OverwritePartitions, OverwriteWhere
from airflow_ckpt_provider.tables.iceberg.upsert.mode import Upsert

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import JsonObject

_MODES: dict[str, type[Append]] = {
    "create": Append,
    "append": Append,
    "overwrite": Overwrite,
    "overwrite_partitions": OverwritePartitions,
    "upsert": Upsert,
}


def mode_of(mode: str, parameters: JsonObject) -> Append:
    """The mode of a header, told its parameters.

    :raises InvalidInputError: if there is no such mode.
    """
    if mode == "overwrite" and "overwrite_filter" in parameters:
        return OverwriteWhere(parameters)
    if mode not in _MODES:
        raise InvalidInputError(f"mode={mode!r}: the modes are {', '.join(_MODES)}.")
    return _MODES[mode](parameters)
