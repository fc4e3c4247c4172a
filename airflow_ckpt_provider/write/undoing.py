"""Undoing a commit: one more commit takes out what a generation has landed, and puts back what that has replaced.

An undo is a generation of the same key, after the one that it undoes: header, an empty plan and an empty seal, and then a commit
group like any other. So it lands once, whatever is killed, and whoever asks for it twice at the same time. What it does to the
table, the mode ``undo`` of the table's format says, from the table's own history.

A generation is undone if the table shows the commit of its undo. The stage opens a new generation then, the commit of the old one
is refused, and no sensor takes it for committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, now
from airflow_ckpt_provider.checkpoint.documents import UNDO, Header, Plan, fingerprint
from airflow_ckpt_provider.checkpoint.sealing import put_seal
from airflow_ckpt_provider.checkpoint.staged_write import StagedWrite
from airflow_ckpt_provider.exceptions import InvalidInputError, TableMovedError, UndoneError, UndoRefusedError
from airflow_ckpt_provider.tables.format import format_of
from airflow_ckpt_provider.tables.mode import TakesOut
from airflow_ckpt_provider.write import commits, groups
from airflow_ckpt_provider.write.looks import look_at

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import Commit
    from airflow_ckpt_provider.tables.mode import UndoOutcome
    from airflow_ckpt_provider.tables.state import TableState
    from airflow_ckpt_provider.tables.table import Table


class Undone(NamedTuple):
    """An undo that has landed.

    :param undo: its generation, which names the one that it has undone.
    :param landed_now: False if it had landed before.
    """

    undo: Checkpoint
    commit: Commit
    landed_now: bool


def foresee(latest: Checkpoint, table: Table, *, force: bool = False) -> UndoOutcome | None:
    """What an undo would do to the table as it is; None if it has landed already. Nothing is changed.

    :param latest: the newest generation of the key.
    :param force: whether rows that others have added since may stand beside what comes back.
    :raises UndoRefusedError: if it cannot be done, saying why.
    """
    if latest.header.undoes is not None:
        if commits.landed(latest, table) is not None:
            return None
        return _foreseen(latest, table)
    return _foreseen(Checkpoint(latest.store, _header(latest, table, "", force=force)), table)


def undo(latest: Checkpoint, table: Table, requested_by: str, *, force: bool = False) -> Undone:
    """Take what the newest generation of a key has landed out of the table, once.

    :param latest: that generation, or the undo of it that was begun.
    :param requested_by: who asks for it, for people to read.
    :param force: as for ``foresee``.
    :raises UndoRefusedError: if it has not landed, or something was built on it. Nothing is changed then.
    """
    begun = latest if latest.header.undoes is not None else None
    if begun is not None:
        landed = commits.landed(begun, table)
        if landed is not None:
            return Undone(begun, landed, landed_now=False)
        if begun.header.parameters != _parameters(force=force):
            begun.discard("it was asked for in another way")
            latest = Checkpoint.at(begun.store, begun.key, begun.header.undoes or 1)
            begun = None
    if begun is None:
        try:
            header = _header(latest, table, requested_by, force=force)
            _foreseen(Checkpoint(latest.store, header), table)
        except (UndoneError, UndoRefusedError):
            newest = Checkpoint.latest(latest.store, latest.key)
            if newest is None or newest.header.undoes != latest.header.generation:
                raise
            # Another caller was first.
            return undo(newest, table, requested_by, force=force)
        begun = Checkpoint.create(latest.store, header)
    plan = begun.pin(Plan(created_at=now(), source={}, splits=()))
    put_seal(begun, [], plan=plan)
    try:
        (settled,) = groups.commit([begun], table)
    except (TableMovedError, UndoRefusedError) as error:
        # Another commit came in between. The stage and its commit stand as they were, unless a second caller has landed it.
        begun.discard(f"it could not be made: {error}")
        landed = commits.landed(begun, table)
        if landed is None:
            raise
        return Undone(begun, landed, landed_now=False)
    return Undone(begun, settled.commit, settled.landed_now)


def _foreseen(undo: Checkpoint, table: Table) -> UndoOutcome:
    """What the commit of this undo would do, whether it is stored or not."""

    def look(state: TableState) -> UndoOutcome:
        mode = state.mode(undo.header)
        if not isinstance(mode, TakesOut):
            raise TypeError(f"The mode {undo.header.mode!r} of {table.format} takes nothing out.")
        return mode.outcome(StagedWrite(undo))

    return look_at(table, undo.header.table, look)


def _parameters(*, force: bool) -> dict[str, object]:
    return {"force": True} if force else {}


def _header(landed: Checkpoint, table: Table, requested_by: str, *, force: bool) -> Header:
    """The header of the undo of a generation.

    :raises UndoRefusedError: if that has not landed, or there is nothing of it in the table.
    """
    header = landed.header
    subject = f"Generation {header.generation} of the key {header.key!r} cannot be undone"
    try:
        format_of(header.table.format).mode(UNDO, {})
    except InvalidInputError as error:
        raise UndoRefusedError(f"{subject}: rows of the format {header.table.format!r} are not committed.") from error
    commit = commits.landed(landed, table)
    if commit is None:
        raise UndoRefusedError(
            f"{subject}: nothing of it has landed in {header.table.identifier}. To give up what is staged, discard it."
        )
    if commit.commit_id is None:
        raise UndoRefusedError(f"{subject}: it had nothing to write, and has changed nothing in {header.table.identifier}.")
    commits.require_not_undone(landed, table)
    commits.verify(landed, commit, table)
    source: dict[str, object] = {UNDO: header.generation}
    return Header(
        key=header.key,
        generation=landed.next_generation,
        created_at=now(),
        table=table.binding(),
        mode=UNDO,
        parameters=_parameters(force=force),
        source=source | {"requested_by": requested_by},
        # Whoever asks, it is the same undo.
        source_fingerprint=fingerprint(source),
        transform="",
        transform_fingerprint="",
        connections=header.connections,
        origin=header.origin,
        replaces=header.generation,
    )
