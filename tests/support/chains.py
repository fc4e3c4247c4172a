"""Stages whose rows the next task reads, in the words of tests that have no Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.layout import rows_folder
from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.sources import Staged
from airflow_ckpt_provider.tables.staged.format import RowsTable
from airflow_ckpt_provider.write.attempt import WriteAttempt
from support.world import staged

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.sources import Source
    from support.world import World


def rows_of(checkpoint: Checkpoint) -> RowsTable:
    """The folder of the rows that a key stages."""
    return RowsTable(checkpoint.header.table.identifier)


def for_next(
    world: World, key: str, transform: Callable[..., Any] | None, splits: int | None = None, **changes: Any
) -> WriteAttempt:
    """Stage rows for the next task; with ``splits``, die after so many."""
    request = world.request(key, transform=transform, mode="for_next", **changes)
    attempt = WriteAttempt(world.store, RowsTable(rows_folder(world.store.uri, request.key.hash)), request)
    return attempt if attempt.state is State.FREED else staged(attempt, splits)


def output(attempt: WriteAttempt) -> Reference:
    """What the task returns."""
    checkpoint = attempt.checkpoint
    return reference(checkpoint, checkpoint.sealed(), state_of(checkpoint), recovered=0, written=0)


def read(world: World, *attempts: WriteAttempt, **settings: Any) -> Source:
    """A source of what these have staged."""
    given = [output(attempt) for attempt in attempts]
    return Staged(given if len(given) > 1 else given[0], **settings).opened(world.store)
