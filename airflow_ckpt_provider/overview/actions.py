"""What a person may do to a checkpoint from the command line or the page, and what that does, in numbers, before it is done."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.codes import request_continuation, require_continuable
from airflow_ckpt_provider.checkpoint.restart import run_again
from airflow_ckpt_provider.exceptions import CheckpointMissingError
from airflow_ckpt_provider.write.cleanup import clean
from airflow_ckpt_provider.write.giving_up import give_up, require_can_give_up
from airflow_ckpt_provider.write.outcome import commit_word
from airflow_ckpt_provider.write.undoing import foresee, undo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.tables.mode import UndoOutcome
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.cleanup import Cleaned

    TableOf: TypeAlias = Callable[[Checkpoint], Table]


class Action(StrEnum):
    """What may be done to the newest generation of a key.

    ``CONTINUE`` keeps what is staged and goes on with other code. ``RESTART`` and ``DISCARD`` give it up; after a restart the stage
    is to run again, and after a discard it is not. ``UNDO`` takes what has landed out of the table again. ``CLEAN`` removes
    what the attempts of the key, of all its generations, have left in the table's storage.
    """

    CONTINUE = "continue"
    RESTART = "restart"
    DISCARD = "discard"
    UNDO = "undo"
    CLEAN = "clean"


def newest(store: CheckpointStore, key: IdempotenceKey) -> Checkpoint:
    """The newest generation of a key.

    :raises CheckpointMissingError: if there is none.
    """
    checkpoint = Checkpoint.latest(store, key)
    if checkpoint is None:
        raise missing(store, key)
    return checkpoint


def missing(store: CheckpointStore, key: IdempotenceKey) -> CheckpointMissingError:
    """The error of a key that was never used in a store."""
    return CheckpointMissingError(
        f"There is no checkpoint under the key {key.value!r} in the store {store.uri}. Its stage logs the key that it writes under."
    )


def announce(action: Action, checkpoint: Checkpoint, table_of: TableOf, *, force: bool = False) -> str:
    """What an action will do, in numbers. Nothing is changed.

    :param table_of: opens the table, which is asked whether a commit has landed.
    :param force: of an undo; see ``write.undoing.foresee``.
    :raises CheckpointError: if it cannot be done, saying why.
    """
    header, staged = checkpoint.header, len(checkpoint.staged_ids())
    which = f"Generation {header.generation} of the key {header.key!r}"
    if action is Action.CONTINUE:
        require_continuable(checkpoint)
        return f"{which} keeps its {staged} staged splits, and its next attempt goes on with the code that it has then."
    if action is Action.UNDO:
        return _foreseen(checkpoint, foresee(checkpoint, table_of(checkpoint), force=force))
    if action is Action.CLEAN:
        return _cleaned(checkpoint, clean(checkpoint, table_of, dry_run=True), "would be removed")
    require_can_give_up(checkpoint, table_of(checkpoint))
    given_up = f"{which} is given up with its {staged} staged splits, none of which has landed in {header.table.identifier}."
    if action is Action.RESTART:
        return f"{given_up} The next attempt writes everything anew."
    return f"{given_up} Their files stay until a clean-up removes them."


def perform(action: Action, checkpoint: Checkpoint, table_of: TableOf, requested_by: str, *, force: bool = False) -> str:
    """Do it.

    :param table_of: as for ``announce``, and ``force``.
    :param requested_by: name of the user, which is kept in the store.
    :returns: what was done, and what to do next.
    :raises CheckpointError: if it cannot be done, saying why. Nothing is changed then.
    """
    if action is Action.UNDO:
        undone = undo(checkpoint, table_of(checkpoint), requested_by, force=force)
        word = commit_word(checkpoint).capitalize()
        return (
            f"{word} {undone.commit.commit_id} has taken out of {checkpoint.header.table.identifier} what generation "
            f"{undone.undo.header.undoes} of the key {checkpoint.key.value!r} had committed"
            + (", and put back what that had replaced." if undone.landed_now else " before. Nothing is repeated.")
        )
    if action is Action.CLEAN:
        return _cleaned(checkpoint, clean(checkpoint, table_of), "were removed")
    done = announce(action, checkpoint, table_of)
    again = run_again(checkpoint.header)
    if action is Action.CONTINUE:
        request_continuation(checkpoint, requested_by)
        return f"{done} {again} now."
    give_up(checkpoint, table_of(checkpoint), f"{action} was asked for by {requested_by}")
    return f"{done} {again} now." if action is Action.RESTART else done


def _cleaned(checkpoint: Checkpoint, generations: Iterable[Cleaned], what: str) -> str:
    """What a clean-up removes, and what it leaves."""
    cleaned = list(generations)
    files, size = sum(one.files for one in cleaned), sum(one.bytes for one in cleaned)
    left = "".join(f" Those of generation {one.generation} stay: {one.left}." for one in cleaned if one.left)
    return (
        f"Files of the key {checkpoint.key.value!r} that no commit of {checkpoint.header.table.identifier} refers to {what}: "
        f"{files:,} ({size:,} bytes). What has landed stays, and so do the records.{left}"
    )


def _foreseen(checkpoint: Checkpoint, outcome: UndoOutcome | None) -> str:
    """What an undo will do, in numbers as far as they are known."""
    header = checkpoint.header
    generation = header.generation if header.undoes is None else header.undoes
    which = f"what generation {generation} of the key {header.key!r} has committed to {header.table.identifier}"
    if outcome is None:
        return f"{which[0].upper()}{which[1:]} is undone already. Nothing is repeated."
    goes = (
        f"{outcome.rows or 0:,} rows in {outcome.files:,} files go"
        if outcome.files is not None
        else "the rows that it has added go"
    )
    back = "nothing comes back" if outcome.files_back == 0 else "what it has replaced comes back"
    if outcome.files_back:
        back = f"{outcome.rows_back or 0:,} rows in {outcome.files_back:,} files come back"
    return f"One more commit takes out {which}: {goes}, and {back}."
