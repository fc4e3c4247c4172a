"""Where an Iceberg table keeps how far a task has read a growing source; see ``tables.marks``.

In the summary of the snapshot that lands what was read, and in a table property, which stays when snapshots are expired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import JsonObject  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.exceptions import CorruptObjectError, RolledBackError
from airflow_ckpt_provider.tables.iceberg.history import lineage_of
from airflow_ckpt_provider.tables.marks import MARK_PREFIX, place_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table.metadata import TableMetadata


class Remembered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Value of the table property, which outlives the snapshot that carries the mark in its summary."""

    mark: JsonObject
    sequence_number: int


def mark_of(metadata: TableMetadata, reading: str, branch: str) -> JsonObject | None:
    """How far the last commit of this reading on the branch has read its source.

    The branch's own snapshots say so, so that what was rolled back counts as not read; the property, if they are expired.

    :raises CorruptObjectError: if somebody edited the property.
    :raises RolledBackError: if that commit was rolled back, and the history before it is expired.
    """
    name = MARK_PREFIX + reading
    lineage = lineage_of(metadata, branch)
    shown = (snapshot.summary[name] for snapshot in lineage.snapshots.values() if snapshot.summary)
    text = next((one for one in shown if one is not None), None)
    if text is not None:
        return msgspec.json.decode(text, type=dict[str, object])
    text = metadata.properties.get(name)
    if text is None:
        return None
    try:
        remembered = msgspec.json.decode(text, type=Remembered)
    except msgspec.DecodeError as error:
        raise CorruptObjectError(
            f"The table property {name} was altered and cannot be read ({error}). It says how far the source was read. Set it back "
            "to what the table's metadata file before that holds."
        ) from error
    if remembered.sequence_number <= lineage.reaches:
        return remembered.mark
    if not lineage.reaches:
        return None
    raise RolledBackError(
        f"The last commit of this task has read its source up to {place_of(remembered.mark)}, and it was rolled back; up to where "
        f"the commits before it have read cannot be told, because the snapshots up to number {lineage.reaches} are expired. "
        "To begin anew, give the task another task_id: its first run reads the whole source, so write it with "
        "mode='overwrite'."
    )


def remembering(marks: Mapping[str, str], sequence_number: int) -> dict[str, str]:
    """Table properties that remember these entries of a summary."""
    return {
        name: msgspec.json.encode(Remembered(msgspec.json.decode(text), sequence_number)).decode() for name, text in marks.items()
    }
