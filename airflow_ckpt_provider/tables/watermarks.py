"""How far a task has read a growing source: carried in the commit that lands what it read, so that the two cannot disagree.

A watermark is set by the commit from what the plan was made from to what it was made up to. A plan that was made from another
watermark than the table shows read rows that have landed already, or left some out: it is not committed. Where a table keeps its
watermarks is its format's own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, TableMovedError, UndoRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Origin, Plan
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite

#: Prefix of the entries that say how far a task has read a source, increment by increment; followed by who reads what.
WATERMARK_PREFIX = "airflow.checkpoint.read."

#: Member of a source's description that names what it follows increment by increment.
FOLLOWED = "follows"


def watermarks_of(writes: Sequence[SealedWrite]) -> dict[str, str]:
    """How far these checkpoints have read, as entries of what a commit says of itself."""
    return {
        WATERMARK_PREFIX + watermark.consumer: msgspec.json.encode(watermark.end, order="deterministic").decode()
        for _, watermark in watermarks_in(writes)
    }


#: What an entry says of a consumer that has read nothing: its only write was undone.
NOTHING_READ = "null"


def moves_watermark(writes: Sequence[SealedWrite]) -> bool:
    """Whether any of these has read on, be it over snapshots without rows for it.

    The next increment must not begin before those, which may be expired by then.
    """
    return any(
        watermark.end is not None and watermark.end != watermark.begin and watermark.end.get("snapshot_id") is not None
        for _, watermark in watermarks_in(writes)
    )


def require_watermarks(watermark_of: Callable[[str], JsonObject | None], writes: Sequence[SealedWrite]) -> None:
    """Refuse to commit what was not read from where the last commit ended.

    :param watermark_of: how far a consumer has read, as the table shows it.
    :raises TableMovedError: if another run has committed a part of it meanwhile.
    """
    for write, watermark in watermarks_in(writes):
        shown = watermark_of(watermark.consumer)
        if shown != watermark.begin and write.header.undoes is not None:
            raise UndoRefusedError(
                f"What the key {write.header.key!r} has committed cannot be undone: it has read its source up to "
                f"{watermark_text(watermark.begin)}, and {write.header.table.identifier} has the rows up to "
                f"{watermark_text(shown)} by now. Undo those increments first, the latest of them before the others. Nothing was "
                "changed."
            )
        if shown != watermark.begin:
            raise TableMovedError(
                f"The write of the key {write.header.key!r} has read its source from {watermark_text(watermark.begin)} on, but "
                f"{write.header.table.identifier} has its rows up to {watermark_text(shown)} by now: another run of the task "
                f"{write.header.origin.task_id!r} committed in between. Nothing was committed. To read what is "
                f"left: {how_to_restart(write.header)}. Set max_active_runs=1 to keep runs apart."
            )


def watermark_text(watermark: JsonObject | None) -> str:
    """A watermark, for messages."""
    if watermark is None:
        return "the beginning"
    if "batch" in watermark:
        return f"micro-batch {watermark['batch']} of the query {watermark.get('query')}"
    return f"snapshot {watermark.get('snapshot_id')}"


def has_watermark(plan: Plan, *, replaces: bool) -> bool:
    """Whether the commit of this plan sets a watermark.

    :param replaces: whether it is of a generation that replaces another.
    """
    return plan.increment is not None and not replaces


def consumer_of(origin: Origin, source: str) -> str:
    """Who reads what, increment by increment: 16 hex digits for a task and the name of its source."""
    return hashlib.sha256(f"{origin.dag_id}\0{origin.task_id}\0{source}".encode()).hexdigest()[:16]


class Moved(NamedTuple):
    """From where to where a commit moves the watermark of a consumer; None is the source's beginning."""

    begin: JsonObject | None
    end: JsonObject | None
    consumer: str


def watermarks_in(writes: Sequence[SealedWrite]) -> Iterator[tuple[SealedWrite, Moved]]:
    """What these commits move; a generation that replaces another reads the same increment again and moves nothing.

    An undo moves the watermark back to where the increment began that it takes out.

    :raises CorruptObjectError: if a plan has a watermark of another task or source than its header says, or none where it must have
        one: the next increment of that task would be left out, or be there twice (I15).
    """
    for write in writes:
        if write.replaced is not None and write.header.undoes is not None and FOLLOWED in write.replaced.header.source:
            for _, moved in watermarks_in([write.replaced]):
                yield write, Moved(moved.end, moved.begin, moved.consumer)
        if write.header.replaces is not None:
            continue
        followed, increment = write.header.source.get(FOLLOWED), write.plan.increment
        if followed is None and increment is None:
            continue
        told = None if followed is None else consumer_of(write.header.origin, str(followed))
        if increment is None or increment.consumer != told:
            raise CorruptObjectError(
                f"The plan of the key {write.header.key!r} in the checkpoint store does not say how far the task "
                f"{write.header.origin.task_id!r} has read {followed or 'a source: it reads no increments'}. The store was "
                f"altered; nothing was changed. Redo the write: {how_to_restart(write.header)}."
            )
        yield write, Moved(increment.begin, increment.end, increment.consumer)
