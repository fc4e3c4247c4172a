"""How far a task has read a growing source: carried in the commit that lands what it read, so that the two cannot disagree.

A mark is set by the commit from what the plan was made from to what it was made up to. A plan that was made from another mark
than the table shows read rows that have landed already, or left some out: it is not committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_ckpt_provider.checkpoint.documents import JsonObject  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.exceptions import CorruptObjectError, RolledBackError, TableMovedError
from airflow_ckpt_provider.tables.iceberg.history import MARK_PREFIX, lineage_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.table.metadata import TableMetadata

    from airflow_ckpt_provider.tables.protocol import Sealed


class Mark(NamedTuple):
    """Who has read from one point of a source, excluded (None: its beginning), to another, included."""

    reading: str
    begin: JsonObject | None
    end: JsonObject


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
        f"The last commit of this task has read its source up to {_place(remembered.mark)}, and it was rolled back; up to where "
        f"the commits before it have read cannot be told, because the snapshots up to number {lineage.reaches} are expired. "
        "To begin anew, give the task another task_id: its first run reads the whole source, so write it with "
        "mode='overwrite'."
    )


def marks_of(sealed: Sequence[Sealed]) -> dict[str, str]:
    """How far these checkpoints have read, as entries of the snapshot's summary."""
    return {MARK_PREFIX + mark.reading: msgspec.json.encode(mark.end, order="deterministic").decode() for _, mark in _marks(sealed)}


def remembering(marks: Mapping[str, str], sequence_number: int) -> dict[str, str]:
    """Table properties that remember these entries of a summary."""
    return {
        name: msgspec.json.encode(Remembered(msgspec.json.decode(text), sequence_number)).decode() for name, text in marks.items()
    }


def moves_mark(sealed: Sequence[Sealed]) -> bool:
    """Whether any of these has read on, be it over snapshots without rows for it.

    The next increment must not begin before those, which may be expired by then.
    """
    return any(mark.end != mark.begin and mark.end.get("snapshot_id") is not None for _, mark in _marks(sealed))


def require_marks(metadata: TableMetadata, sealed: Sequence[Sealed]) -> None:
    """Refuse to commit what was not read from where the last commit ended.

    :raises TableMovedError: if another run has committed a part of it meanwhile.
    """
    for one, mark in _marks(sealed):
        shown = mark_of(metadata, mark.reading, one.header.table.branch)
        if shown != mark.begin:
            raise TableMovedError(
                f"The write of the key {one.header.key!r} has read its source from {_place(mark.begin)} on, but "
                f"{one.header.table.identifier} has its rows up to {_place(shown)} by now: another run of the task "
                f"{one.header.origin.task_id!r} committed in between. Nothing was committed. Clear the stage with the "
                'configuration {"checkpoint": "restart"} to read what is left; set max_active_runs=1 to keep runs apart.'
            )


def _place(mark: JsonObject | None) -> str:
    return "the beginning" if mark is None else f"snapshot {mark.get('snapshot_id')}"


def _marks(sealed: Sequence[Sealed]) -> Iterator[tuple[Sealed, Mark]]:
    """Marks of these plans; a generation that replaces another reads the same increment again and moves none."""
    for one in sealed:
        mark: Any = one.plan.inputs.get("mark")
        if mark is not None and one.header.replaces is None:
            yield one, Mark(str(one.plan.inputs["reading"]), mark["from"], mark["to"])
