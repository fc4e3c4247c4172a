"""Removing rows that were staged for other tasks to read, once all of those are done; see ``checkpoint.readers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from airflow_ckpt_provider.checkpoint.readers import Readers
from airflow_ckpt_provider.tables.format import mode_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint

    #: Tasks that are to read the rows of a generation, and have not all begun to, by their ids.
    NotBegun: TypeAlias = Callable[[Checkpoint], Sequence[str]]


def give_up_read(checkpoint: Checkpoint, not_begun: NotBegun, *, discard: bool, is_old: bool = False) -> str:
    """Put the tombstone of rows that other tasks read, if none needs them any more.

    :param discard: whether rows that no task has begun to read are given up, too.
    :param is_old: whether so much time has passed that no other run will ask for what was computed.
    :returns: why they stay; empty if they are given up.
    """
    if checkpoint.discarded() is None:
        readers = Readers.of(checkpoint)
        left = _why_kept(checkpoint, readers, not_begun, discard=discard, is_old=is_old)
        if left:
            return left
        why = "all tasks that read it were done" if readers.number else "it was cleaned up unread"
        # Rows of which nothing came are computed again for whoever asks for them.
        checkpoint.discard(why, freed=readers.used and checkpoint.sealed() is not None)
    # In this order: whoever begins to read after the tombstone was put, sees it.
    return being_read(checkpoint)


def being_read(checkpoint: Checkpoint) -> str:
    """Who reads the rows of a generation now, as why they stay; empty if nobody does."""
    going_on = Readers.of(checkpoint).going_on
    return f"the key {going_on[0]!r} had begun to read it" if going_on else ""


def why_kept(checkpoint: Checkpoint, not_begun: NotBegun, *, discard: bool, is_old: bool = False) -> str:
    """Why rows that other tasks read are not given up; empty if they can be. See ``give_up_read``."""
    return _why_kept(checkpoint, Readers.of(checkpoint), not_begun, discard=discard, is_old=is_old)


def _why_kept(checkpoint: Checkpoint, readers: Readers, not_begun: NotBegun, *, discard: bool, is_old: bool) -> str:
    going_on = readers.going_on
    if discard and not going_on:
        return ""
    if not mode_type(checkpoint.header).stays_freed(checkpoint.header.parameters):
        if not is_old:
            return "its key stands for what was computed, and other runs may ask for it"
        if not readers.number:
            return ""
    if not readers.number:
        return "no task has read it yet"
    if going_on:
        return (
            f"the key {going_on[0]!r}{f' and {len(going_on) - 1} more' if len(going_on) > 1 else ''} reads it, and is not committed"
        )
    waiting = not_begun(checkpoint)
    return f"the task {', '.join(map(repr, waiting))} is to read it, and has not begun" if waiting else ""
