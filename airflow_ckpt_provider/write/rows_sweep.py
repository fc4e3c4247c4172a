"""Sweeping rows that were staged for other tasks: no commit lands them, and they are needed until all who read them are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.staged_write import StagedWrite
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.write.freeing import being_read, give_up_read, why_kept
from airflow_ckpt_provider.write.removal import kept

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.inventory import GenerationObjects
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.removal import Removal, SweptGeneration


class RowsSweep:
    """What one sweep does with rows for other tasks.

    :param table_of: the table of a generation.
    :param discards: whether what is abandoned is discarded.
    """

    def __init__(self, removal: Removal, table_of: Callable[[Checkpoint], Table], *, discards: bool) -> None:
        self._removal = removal
        self._table_of = table_of
        self._discards = discards

    def swept(
        self, checkpoint: Checkpoint, state: State, objects: GenerationObjects, listed: dict[str, int], before: datetime
    ) -> SweptGeneration:
        """Free rows whose readers are done, or, of a key that stands for what was computed, for which nobody asks any more.

        What was sealed stays in a compact record: a stage that is cleared hands over what it has handed over before.
        """
        sealed = checkpoint.newest_seal()
        if objects.is_compact and state is State.FREED and sealed is None:
            # The sweep that began it was killed, after it had removed the rows.
            return self._removal.removed(checkpoint, state, listed, [])
        table = self._table_of(checkpoint)
        left = self._given_up_rows(checkpoint, state, before)
        if left:
            return kept(checkpoint, state_of(checkpoint), left)
        files = self._removal.orphans(StagedWrite(checkpoint), table, None)
        if not self._removal.dry_run:
            if sealed is not None and state_of(checkpoint) is State.FREED:
                checkpoint.compact(sealed)
            self._removal.remove_files(table, checkpoint, files)
        if state is not State.DISCARDED:
            # An attempt that was thought dead may still leave files, which its record tells to be its own.
            listed = {name: size for name, size in listed.items() if not name.startswith(checkpoint.paths.attempts)}
        return self._removal.removed(checkpoint, state, listed, files)

    def _given_up_rows(self, checkpoint: Checkpoint, state: State, before: datetime) -> str:
        """Put the tombstone of rows for other tasks, if that is not there and nothing needs them.

        :returns: why they stay; empty if they are given up.
        """
        # The table was opened in between.
        if self._removal.records_of(checkpoint, before) is None:
            return "a task has gone on with it, or has begun to read it, since this clean-up began"
        if state in {State.DISCARDED, State.FREED}:
            return being_read(checkpoint)
        if state is State.SEALED:
            ask = why_kept if self._removal.dry_run else give_up_read
            return ask(checkpoint, lambda _: (), discard=self._discards, is_old=True)
        if not self._discards:
            return "it is not finished, and its next attempt needs what is staged; abandoned='discard' gives it up"
        if not self._removal.dry_run:
            checkpoint.discard("it was cleaned up unfinished")
        return ""
