"""How far a task has read a growing source: carried in the commit that lands what it read, so that the two cannot disagree.

A mark is set by the commit from what the plan was made from to what it was made up to. A plan that was made from another mark
than the table shows read rows that have landed already, or left some out: it is not committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_ckpt_provider.exceptions import CorruptObjectError, TableMovedError
from airflow_ckpt_provider.tables.iceberg.history import MARK_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.table.metadata import TableMetadata

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.tables.protocol import Sealed


class Mark(NamedTuple):
    """Who has read from one point of a source, excluded (None: its beginning), to another, included."""

    reading: str
    begin: JsonObject | None
    end: JsonObject


def mark_of(metadata: TableMetadata, reading: str) -> JsonObject | None:
    """How far the last commit of this reading has read its source.

    :raises CorruptObjectError: if somebody edited the property.
    """
    name = MARK_PREFIX + reading
    text = metadata.properties.get(name)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise CorruptObjectError(
            f"The table property {name} was altered and cannot be read ({error}). It says how far the source was read. Set it back "
            "to what the table's metadata file before that holds."
        ) from error


def marks_of(sealed: Sequence[Sealed]) -> dict[str, str]:
    """Table properties that remember how far these checkpoints have read."""
    return {MARK_PREFIX + mark.reading: msgspec.json.encode(mark.end, order="deterministic").decode() for _, mark in _marks(sealed)}


def require_marks(metadata: TableMetadata, sealed: Sequence[Sealed]) -> None:
    """Refuse to commit what was not read from where the last commit ended.

    :raises TableMovedError: if another run has committed a part of it meanwhile.
    """
    for one, mark in _marks(sealed):
        shown = mark_of(metadata, mark.reading)
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
