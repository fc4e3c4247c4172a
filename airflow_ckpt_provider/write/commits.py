"""The commit of a generation, as its record says it and its table's history shows it: whether it has landed, and is there still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import Commit
from airflow_ckpt_provider.checkpoint.restart import run_again
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, sealed_of
from airflow_ckpt_provider.exceptions import CorruptObjectError, HistoryExpiredError, RolledBackError, UndoneError
from airflow_ckpt_provider.tables.format import format_of
from airflow_ckpt_provider.write.looks import look_at
from airflow_ckpt_provider.write.membership import group_of

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Group
    from airflow_ckpt_provider.tables.state import Landed
    from airflow_ckpt_provider.tables.table import Table


def landed(checkpoint: Checkpoint, table: Table, *, record: bool = True) -> Commit | None:
    """The commit of ``checkpoint``, from its record or else from the table's history; recorded if it was not.

    Looks at the table only if a commit was ever begun (I10), so that it costs nothing before that.

    :param record: whether the store may be changed.
    """
    recorded = checkpoint.committed()
    if recorded is not None:
        return recorded
    group = group_of(checkpoint)
    if group is None:
        return None
    in_history = find_commit(checkpoint, group, table)
    if in_history is None:
        return None
    commit = commit_of(SealedWrite(checkpoint), group, in_history)
    return checkpoint.record(commit) if record else commit


def verify(checkpoint: Checkpoint, recorded: Commit, table: Table) -> None:
    """Check that a recorded commit is still in the table's history; whether it was undone there, ``require_not_undone`` asks.

    Where that is expired, the record tells that it landed, and a file of it in the table that it was not rolled back since.

    :raises RolledBackError: if it was taken off the branch since.
    :raises HistoryExpiredError: if neither its history nor any file of it is there.
    :raises TableMissingError: if the table was replaced since.
    :raises CorruptObjectError: if the record is not one of a commit of this generation (I15).
    """
    group = group_of(checkpoint)
    if group is None or recorded.group != group.id or (recorded.commit_id is None and sealed_of(checkpoint).rows):
        raise CorruptObjectError(
            f"Object {checkpoint.paths.commit} in the checkpoint store {checkpoint.store.uri} says that the key "
            f"{checkpoint.key.value!r} is committed, and that was no commit of what is staged under it. The store was altered; "
            "nothing was changed. Remove the object: the commit task looks into the table's history before it does anything."
        )
    if recorded.commit_id is None:
        sealed = SealedWrite(checkpoint)
        sealed.require_handed_over()
        sealed.require_agreeing()
        return
    try:
        in_history = find_commit(checkpoint, group, table)
    except HistoryExpiredError as error:
        sealed = SealedWrite(checkpoint)
        if sealed.seal.files and not look_at(table, checkpoint.header.table, lambda state: state.shows(sealed)):
            raise HistoryExpiredError(
                f"It cannot be told whether the rows of the key {checkpoint.key.value!r} are in "
                f"{checkpoint.header.table.identifier}: they were committed as number {recorded.commit_id}, which is expired "
                "since, and no file of them is in the table now. Either later writes or a compaction have taken those files, or "
                "the table was rolled back before that expired. Nothing was changed. Look for the rows in the table; if they are "
                "there, mark the task as success, if not, run the write under another idempotence key."
            ) from error
        return
    if in_history is None or in_history.commit_id != recorded.commit_id:
        word = format_of(checkpoint.header.table.format).commit_is
        raise RolledBackError(
            f"The key {checkpoint.key.value!r} was committed as {word} {recorded.commit_id}, and "
            f"{checkpoint.header.table.identifier} does not show it any more: the table was set back to earlier metadata. It "
            "is not committed again. To redo the write, run it under another idempotence key."
        )


def require_not_undone(checkpoint: Checkpoint, table: Table) -> None:
    """Refuse to take a commit for one whose rows are in the table, if a later generation has taken them out.

    :raises UndoneError: naming the commit that did.
    """
    for later in checkpoint.later_generations():
        if later.header.undoes != checkpoint.header.generation:
            continue
        undo = landed(later, table)
        if undo is not None:
            word = format_of(checkpoint.header.table.format).commit_is
            raise UndoneError(
                f"What generation {checkpoint.header.generation} of the key {checkpoint.key.value!r} has committed to "
                f"{checkpoint.header.table.identifier} was undone at {undo.committed_at:%Y-%m-%d %H:%M:%S} UTC, by {word} "
                f"{undo.commit_id}, and is not committed again. To write it anew: {run_again(checkpoint.header)[0].lower()}"
                f"{run_again(checkpoint.header)[1:]}, then its commit."
            )


def find_commit(checkpoint: Checkpoint, group: Group, table: Table) -> Landed | None:
    """The commit of a group as the table's history shows it, which must be that of this checkpoint."""
    return look_at(table, checkpoint.header.table, lambda state: state.find(group, [checkpoint.header]))


def commit_of(write: SealedWrite, group: Group, outcome: Landed) -> Commit:
    """The record of a commit that the table's history shows."""
    return Commit(group=group.id, commit_id=outcome.commit_id, committed_at=outcome.committed_at, rows=write.seal.rows)
