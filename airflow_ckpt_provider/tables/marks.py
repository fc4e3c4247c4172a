"""How far a task has read a growing source: carried in the commit that lands what it read, so that the two cannot disagree.

A mark is set by the commit from what the plan was made from to what it was made up to. A plan that was made from another mark
than the table shows read rows that have landed already, or left some out: it is not committed. Where a table keeps its marks is
its format's own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, TableMovedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Origin, Plan
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite

#: Prefix of the entries that say how far a task has read a source, increment by increment; followed by who reads what.
MARK_PREFIX = "airflow.checkpoint.read."

#: Member of a source's description that names what it follows increment by increment.
FOLLOWED = "follows"


class Mark(NamedTuple):
    """Who has read from one point of a source, excluded (None: its beginning), to another, included."""

    reading: str
    begin: JsonObject | None
    end: JsonObject


def marks_of(sealed: Sequence[SealedWrite]) -> dict[str, str]:
    """How far these checkpoints have read, as entries of what a commit says of itself."""
    return {
        MARK_PREFIX + mark.reading: msgspec.json.encode(mark.end, order="deterministic").decode() for _, mark in marks_in(sealed)
    }


def moves_mark(sealed: Sequence[SealedWrite]) -> bool:
    """Whether any of these has read on, be it over snapshots without rows for it.

    The next increment must not begin before those, which may be expired by then.
    """
    return any(mark.end != mark.begin and mark.end.get("snapshot_id") is not None for _, mark in marks_in(sealed))


def require_marks(mark_of: Callable[[str], JsonObject | None], sealed: Sequence[SealedWrite]) -> None:
    """Refuse to commit what was not read from where the last commit ended.

    :param mark_of: how far a reading has read, as the table shows it.
    :raises TableMovedError: if another run has committed a part of it meanwhile.
    """
    for one, mark in marks_in(sealed):
        shown = mark_of(mark.reading)
        if shown != mark.begin:
            raise TableMovedError(
                f"The write of the key {one.header.key!r} has read its source from {place_of(mark.begin)} on, but "
                f"{one.header.table.identifier} has its rows up to {place_of(shown)} by now: another run of the task "
                f"{one.header.origin.task_id!r} committed in between. Nothing was committed. To read what is "
                f"left: {how_to_restart(one.header)}. Set max_active_runs=1 to keep runs apart."
            )


def place_of(mark: JsonObject | None) -> str:
    """A mark, for messages."""
    return "the beginning" if mark is None else f"snapshot {mark.get('snapshot_id')}"


def has_mark(plan: Plan, *, replaces: bool) -> bool:
    """Whether the commit of this plan sets a mark.

    :param replaces: whether it is of a generation that replaces another.
    """
    return plan.inputs.get("mark") is not None and not replaces


def reading_of(origin: Origin, source: str) -> str:
    """Who reads what, increment by increment: 16 hex digits for a task and the name of its source."""
    return hashlib.sha256(f"{origin.dag_id}\0{origin.task_id}\0{source}".encode()).hexdigest()[:16]


def marks_in(sealed: Sequence[SealedWrite]) -> Iterator[tuple[SealedWrite, Mark]]:
    """Marks of these plans; a generation that replaces another reads the same increment again and moves none.

    :raises CorruptObjectError: if a plan has a mark of another task or source than its header says, or none where it must have
        one: the next increment of that task would be left out, or be there twice (I15).
    """
    for one in sealed:
        if one.header.replaces is not None:
            continue
        followed, reading = one.header.source.get(FOLLOWED), one.plan.inputs.get("reading")
        mark: Any = one.plan.inputs.get("mark")
        if followed is None and reading is None and mark is None:
            continue
        told = None if followed is None else reading_of(one.header.origin, str(followed))
        whole = isinstance(mark, dict) and isinstance(mark.get("to"), dict) and isinstance(mark.get("from", 0), dict | None)
        if reading != told or not whole:
            raise CorruptObjectError(
                f"The plan of the key {one.header.key!r} in the checkpoint store does not say how far the task "
                f"{one.header.origin.task_id!r} has read {followed or 'a source: it reads no increments'}. The store was altered; "
                f"nothing was changed. Redo the write: {how_to_restart(one.header)}."
            )
        yield one, Mark(str(reading), mark["from"], mark["to"])
