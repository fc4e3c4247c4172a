"""The mode ``undo``: what an earlier generation of the key has landed is taken out of the table. No stage has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.exceptions import InvalidInputError, TableMovedError, UndoRefusedError
from airflow_ckpt_provider.scan.sizes import file_sizes
from airflow_ckpt_provider.tables.iceberg.conflict_checks import require_whole
from airflow_ckpt_provider.tables.iceberg.modes.base import IcebergMode
from airflow_ckpt_provider.tables.iceberg.removals import RemoveFiles
from airflow_ckpt_provider.tables.iceberg.search import find
from airflow_ckpt_provider.tables.iceberg.undo import undoing
from airflow_ckpt_provider.tables.mode import Grouping, TakesOut, UndoOutcome
from airflow_ckpt_provider.tables.parameters import ModeParameters
from airflow_ckpt_provider.tables.staged_files import lost_of
from airflow_ckpt_provider.tables.summary import identity_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.iceberg.removals import Removal
    from airflow_ckpt_provider.tables.iceberg.undo import Restored, Undoing


class UndoParameters(ModeParameters, frozen=True, kw_only=True):
    """What may stay."""

    force: Annotated[bool, Meta(description="whether rows that others added since stay beside what comes back")] = False


class Undo(IcebergMode, TakesOut):
    """What a commit has added goes, and what it has removed comes back."""

    Parameters = UndoParameters
    parameters: UndoParameters
    grouping = Grouping.ALONE
    removes_rows = True
    takes_increments = False
    is_public = False

    #: What was found last.
    _found: Undoing | None = None

    def validate(self) -> None:
        """Refuse it to a stage."""
        raise InvalidInputError("mode='undo' is no mode of a stage: see CheckpointUndoOperator.")

    def outcome(self, write: StagedWrite) -> UndoOutcome:
        """What the commit would do; see ``TakesOut.outcome``."""
        found = self._undoing(write)
        self._require_whole(write, found)
        self._require_there(write, found)
        return UndoOutcome(len(found.added), found.rows, found.restored.tally.files[0], found.restored.rows)

    def removals(self, writes: Sequence[SealedWrite]) -> list[Removal]:
        """The files that the commit has added."""
        (write,) = writes
        self._found = self._undoing(write)
        self._require_whole(write, self._found)
        return [RemoveFiles(self._found.added)] if self._found.added else []

    def restored(self, writes: Sequence[SealedWrite]) -> Restored:
        """The files that it has removed, all of which are there; asked after ``removals``.

        :raises UndoRefusedError: if one of them was deleted.
        """
        (write,) = writes
        found = self._found or self._undoing(write)
        self._require_there(write, found)
        return found.restored

    def _require_whole(self, write: StagedWrite, found: Undoing) -> None:
        """Refuse to take files out of which others have deleted or updated rows.

        :raises UndoRefusedError: naming a delete file.
        """
        try:
            if found.added:
                require_whole(self.table, write.header, found.added)
        except TableMovedError as error:
            raise UndoRefusedError(
                f"What the key {write.header.key!r} has committed to {write.header.table.identifier} cannot be undone: {error} "
                "Undo what was built on it first, or remove its rows with your query engine."
            ) from error

    def _require_there(self, write: StagedWrite, found: Undoing) -> None:
        """Refuse to put back files that are gone.

        :raises UndoRefusedError: naming one.
        """
        restored = found.restored
        lost = lost_of(restored.files, file_sizes(self.table.io, [file.path for file in restored.files]))
        if lost:
            raise UndoRefusedError(
                f"What the key {write.header.key!r} has committed to {write.header.table.identifier} cannot be undone: "
                f"{len(lost)} of {len(restored.files)} files that it has replaced were deleted since, such as {lost[0].path}. "
                "Nothing was changed. Remove its rows with your query engine."
            )

    def _undoing(self, write: StagedWrite) -> Undoing:
        """What undoes the write that this one names, on this state of the table."""
        undone = write.replaced
        group = None if undone is None else bound_group(undone.checkpoint)
        landed = (
            None
            if undone is None or group is None
            else find(self.table, write.header.table.branch, group, identity_of([undone.header]))
        )
        if undone is None or group is None or landed is None or landed.commit_id is None:
            raise UndoRefusedError(
                f"The table {write.header.table.identifier} shows no commit of the key {write.header.key!r} that could be undone. "
                "Nothing was changed."
            )
        return undoing(
            self.table,
            write.header.table.branch,
            landed.commit_id,
            undone.names,
            beside=self.parameters.force,
        )
