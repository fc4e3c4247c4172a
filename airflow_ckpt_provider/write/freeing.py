"""Removing rows that were staged for other tasks to read, once all of those are done; see ``checkpoint.readers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from airflow_ckpt_provider.checkpoint.readers import is_done, readers_of, was_used
from airflow_ckpt_provider.tables.format import mode_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import ReadBy

    #: Tasks that are to read the rows of a generation, and have not all begun to, by their ids; given who has.
    NotBegun: TypeAlias = Callable[[Checkpoint, Sequence[ReadBy]], Sequence[str]]


def give_up_read(checkpoint: Checkpoint, not_begun: NotBegun, *, discard: bool, is_old: bool = False) -> str:
    """Put the tombstone of rows that other tasks read, if none needs them any more.

    :param discard: whether rows that no task has begun to read are given up, too.
    :param is_old: whether so much time has passed that no other run will ask for what was computed.
    :returns: why they stay; empty if they are given up.
    """
    if checkpoint.discarded() is None:
        left = why_kept(checkpoint, not_begun, discard=discard, is_old=is_old)
        if left:
            return left
        why = "all tasks that read it were done" if readers_of(checkpoint) else "it was cleaned up unread"
        # Rows of which nothing came are computed again for whoever asks for them.
        checkpoint.discard(why, freed=was_used(checkpoint) and checkpoint.sealed() is not None)
    # In this order: whoever begins to read after the tombstone was put, sees it.
    return being_read(checkpoint)


def being_read(checkpoint: Checkpoint) -> str:
    """Who reads the rows of a generation now, as why they stay; empty if nobody does."""
    reading = _reading(checkpoint)
    return f"the key {reading[0]!r} had begun to read it" if reading else ""


def why_kept(checkpoint: Checkpoint, not_begun: NotBegun, *, discard: bool, is_old: bool = False) -> str:
    """Why rows that other tasks read are not given up; empty if they can be. See ``give_up_read``."""
    if discard and not _reading(checkpoint):
        return ""
    if is_old and readers_of(checkpoint):
        return _still_read(checkpoint, not_begun)
    if not mode_type(checkpoint.header).stays_freed(checkpoint.header.parameters):
        return "" if is_old else "its key stands for what was computed, and other runs may ask for it"
    return _still_read(checkpoint, not_begun)


def _reading(checkpoint: Checkpoint) -> list[str]:
    return sorted(record.reader.key for record in readers_of(checkpoint) if not is_done(record, checkpoint))


def _still_read(checkpoint: Checkpoint, not_begun: NotBegun) -> str:
    readers = readers_of(checkpoint)
    if not readers:
        return "no task has read it yet"
    reading = _reading(checkpoint)
    if reading:
        return f"the key {reading[0]!r}{f' and {len(reading) - 1} more' if len(reading) > 1 else ''} reads it, and is not committed"
    waiting = not_begun(checkpoint, readers)
    return f"the task {', '.join(map(repr, waiting))} is to read it, and has not begun" if waiting else ""
