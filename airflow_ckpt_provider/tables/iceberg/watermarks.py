"""Where an Iceberg table keeps how far a task has read a growing source; see ``tables.watermarks``.

In the summary of the snapshot that lands what was read, and in a table property, which stays when snapshots are expired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import JsonObject  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.exceptions import RolledBackError
from airflow_ckpt_provider.tables.decoding import decoded
from airflow_ckpt_provider.tables.iceberg.history import lineage_of
from airflow_ckpt_provider.tables.watermarks import NOTHING_READ, WATERMARK_PREFIX, watermark_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table.metadata import TableMetadata


class RememberedWatermark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Value of the table property, which outlives the snapshot that carries the watermark in its summary."""

    watermark: JsonObject | None
    sequence_number: int


def watermark_of(metadata: TableMetadata, consumer: str, branch: str) -> JsonObject | None:
    """How far the last commit of this consumer on the branch has read its source.

    The branch's own snapshots say so, so that what was rolled back counts as not read; the property, if they are expired.

    :raises CorruptObjectError: if somebody edited the property.
    :raises RolledBackError: if that commit was rolled back, and the history before it is expired.
    """
    name = WATERMARK_PREFIX + consumer
    lineage = lineage_of(metadata, branch)
    shown = (snapshot.summary[name] for snapshot in lineage.snapshots.values() if snapshot.summary)
    text = next((entry for entry in shown if entry is not None), None)
    if text is not None:
        return None if text == NOTHING_READ else msgspec.json.decode(text, type=dict[str, object])
    text = metadata.properties.get(name)
    if text is None:
        return None
    remedy = "It says how far the source was read. Set it back to what the table's metadata file before that holds."
    remembered = decoded(text, RememberedWatermark, f"The table property {name}", remedy)
    if remembered.sequence_number <= lineage.reaches:
        return remembered.watermark
    if not lineage.reaches:
        return None
    raise RolledBackError(
        f"The last commit of this task has read its source up to {watermark_text(remembered.watermark)}, and it was rolled back; "
        "up to where the commits before it have read cannot be told, because the snapshots up to number "
        f"{lineage.reaches} are expired. To begin anew, give the task another task_id: its first run reads the whole source, so "
        "write it with mode='overwrite'."
    )


def remembering(watermarks: Mapping[str, str], sequence_number: int) -> dict[str, str]:
    """Table properties that remember these entries of a summary."""
    return {
        name: msgspec.json.encode(RememberedWatermark(msgspec.json.decode(text), sequence_number)).decode()
        for name, text in watermarks.items()
    }
