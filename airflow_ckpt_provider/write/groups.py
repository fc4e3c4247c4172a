"""Committing sealed checkpoints: one, or many as one snapshot, whatever was begun before.

A commit **group** is a set of generations that land together. Each of them is bound to its group, by put-if-absent, before
the table is touched; a generation never changes its group. So a later, larger list first settles the groups that its members
are bound to already, and then commits the rest.

Who is in a group follows from the store alone: those of its listed members that are bound to it. Everybody who commits a
group binds all its members first, so all see the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, now
from airflow_ckpt_provider.checkpoint.documents import Commit, Group, Member
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, sealed_of
from airflow_ckpt_provider.exceptions import (
    CorruptObjectError,
    HistoryExpiredError,
    InvalidInputError,
    RolledBackError,
)
from airflow_ckpt_provider.tables.protocol import GroupCommit, Landed
from airflow_ckpt_provider.write.commit_loop import land
from airflow_ckpt_provider.write.conflict_checks import ConflictChecks, require_nothing_earlier
from airflow_ckpt_provider.write.looks import look_at
from airflow_ckpt_provider.write.membership import group_id_of, group_of, place_of, require_one_way
from airflow_ckpt_provider.write.staged_files import StagedFileCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Seal
    from airflow_ckpt_provider.tables.protocol import Table, TableState
    from airflow_ckpt_provider.write.staged_files import Told


#: Looks at what is about to land in one commit, and raises to stop it.
Audit: TypeAlias = "Callable[[Sequence[SealedWrite]], None]"


class Settled(NamedTuple):
    """One checkpoint of a commit: its seal, the record of its commit, and whether it landed just now."""

    checkpoint: Checkpoint
    seal: Seal
    commit: Commit
    landed_now: bool


def landed(checkpoint: Checkpoint, table: Table) -> Commit | None:
    """The commit of ``checkpoint``, from its record or else from the table's history; recorded if it was not.

    Looks at the table only if a commit was ever begun (I10), so that it costs nothing before that.
    """
    recorded = checkpoint.committed()
    if recorded is not None:
        return recorded
    group = group_of(checkpoint)
    if group is None:
        return None
    found = _find(checkpoint, group, table)
    return None if found is None else _record(checkpoint, group, found)


def verify(checkpoint: Checkpoint, recorded: Commit, table: Table) -> None:
    """Check that a recorded commit is still in the table's history.

    Where that is expired, the record tells that it landed, and a file of it in the table that it was not rolled back since.

    :raises RolledBackError: if it was taken off the branch since.
    :raises HistoryExpiredError: if neither its history nor any file of it is there.
    :raises TableMissingError: if the table was replaced since.
    :raises CorruptObjectError: if the record is not one of a commit of this generation (I15).
    """
    group = group_of(checkpoint)
    if group is None or recorded.group != group.id or (recorded.snapshot_id is None and sealed_of(checkpoint).rows):
        raise CorruptObjectError(
            f"Object {checkpoint.paths.commit} in the checkpoint store {checkpoint.store.uri} says that the key "
            f"{checkpoint.key.value!r} is committed, and that was no commit of what is staged under it. The store was altered; "
            "nothing was changed. Remove the object: the commit task looks into the table's history before it does anything."
        )
    if recorded.snapshot_id is None:
        return
    try:
        found = _find(checkpoint, group, table)
    except HistoryExpiredError as error:
        sealed = SealedWrite(checkpoint)
        if sealed.seal.files and not look_at(table, checkpoint.header.table, lambda state: state.shows(sealed)):
            raise HistoryExpiredError(
                f"It cannot be told whether the rows of the key {checkpoint.key.value!r} are in "
                f"{checkpoint.header.table.identifier}: they were committed as number {recorded.snapshot_id}, which is expired "
                "since, and no file of them is in the table now. Either later writes or a compaction have taken those files, or "
                "the table was rolled back before that expired. Nothing was changed. Look for the rows in the table; if they are "
                "there, mark the task as success, if not, run the write under another idempotence key."
            ) from error
        return
    if found is None or found.snapshot_id != recorded.snapshot_id:
        raise RolledBackError(
            f"The key {checkpoint.key.value!r} was committed as snapshot {recorded.snapshot_id}, and "
            f"{checkpoint.header.table.identifier} does not show it any more: the table was set back to earlier metadata. It "
            "is not committed again. To redo the write, run it under another idempotence key."
        )


def settle_nothing(checkpoint: Checkpoint, table: Table) -> bool:
    """Settle a commit that was begun and has nothing to land, as its own retry would.

    :returns: False, and nothing is done, if it was not begun, or would land something.
    """
    group = group_of(checkpoint)
    if group is None:
        return False
    members = [Checkpoint.at(checkpoint.store, IdempotenceKey(member.key), member.generation) for member in group.members]
    if not table.changes_nothing([SealedWrite(member) for member in members]):
        return False
    _settle(group, checkpoint, table, _Audited(None, lambda _: None))
    return True


def commit(
    checkpoints: Sequence[Checkpoint], table: Table, audit: Audit | None = None, looked: Told = lambda _: None
) -> list[Settled]:
    """Land all ``checkpoints``, each exactly once, in as few snapshots as their history allows: normally one.

    :param audit: looks at what is about to land, before it is bound to a group that later commits would have to settle first;
        again at just what lands, if that is something else by then. Raises to stop. Not called for what has landed.
    :param looked: told what each look at the staged files cost.
    :raises NotSealedError: if one of them is not complete.
    :raises DiscardedError: if one of them was discarded.
    :raises InvalidInputError: if they belong to different tables or branches.
    """
    table.require_together([checkpoint.header for checkpoint in checkpoints])
    _require_one_table(checkpoints)
    seals = {checkpoint.member: sealed_of(checkpoint) for checkpoint in checkpoints}
    _require_one_snapshot(checkpoints, table)
    audited = _Audited(audit, looked)
    settled: dict[Member, tuple[Commit, bool]] = {}
    fresh: list[Checkpoint] = []
    verified: set[str] = set()
    for checkpoint in checkpoints:
        if checkpoint.member in settled:
            continue
        recorded = checkpoint.committed()
        if recorded is not None:
            if recorded.group not in verified:
                verify(checkpoint, recorded, table)
                verified.add(recorded.group)
            settled[checkpoint.member] = (recorded, False)
            continue
        checkpoint.require_live()
        group = group_of(checkpoint)
        if group is None:
            fresh.append(checkpoint)
        else:
            settled |= _settle(group, checkpoint, table, audited)
    if fresh:
        if audit is not None:
            looked_at = [SealedWrite(checkpoint) for checkpoint in {one.member: one for one in fresh}.values()]
            look_at(table, fresh[0].header.table, lambda state: state.require_own_files(looked_at))
            audited.look(looked_at)
        members = tuple(sorted({checkpoint.member for checkpoint in fresh}))
        # Of the first member, not of whoever is listed first: everybody who begins this group writes the same.
        stream = min(fresh, key=lambda checkpoint: checkpoint.member).header.stream
        state = look_at(table, fresh[0].header.table, lambda state: state)
        group = Group(id=group_id_of(members), members=members, stream=stream, bound_at=now(), horizon=state.horizon)
        settled |= _settle(group, fresh[0], table, audited, state)
        for checkpoint in fresh:
            # Bound to another group by somebody else between our look and our put: that group comes first.
            bound = group_of(checkpoint)
            if checkpoint.member not in settled and bound is not None:
                settled |= _settle(bound, checkpoint, table, audited)
    return [Settled(checkpoint, seals[checkpoint.member], *settled[checkpoint.member]) for checkpoint in checkpoints]


class _Audited:
    """What an audit has looked at, by member and round of its seal.

    :param looked: told what looks at staged files cost.
    """

    def __init__(self, audit: Audit | None, looked: Told) -> None:
        self._audit = audit
        self.looked = looked
        self._seen: set[tuple[Member, int]] = set()

    def look(self, sealed: Sequence[SealedWrite]) -> None:
        """Audit these, unless all of them were."""
        these = {(Member(key=one.header.key, generation=one.header.generation), one.seal.round) for one in sealed}
        if self._audit is not None and not these <= self._seen:
            self._audit(sealed)
            self._seen |= these


def _settle(
    group: Group, named: Checkpoint, table: Table, audited: _Audited, state: TableState | None = None
) -> dict[Member, tuple[Commit, bool]]:
    """Land ``group``, once, and record it for each of its members.

    :param named: the member that the caller was told to commit: all others lie in its store and go where it goes (I15).
    :param state: the table as it was before anybody could begin this group, if this call is to begin it.
    """
    members = [Checkpoint.at(named.store, IdempotenceKey(one.key), one.generation) for one in group.members]
    require_one_way(named, members)
    begun_here = True
    bound = []
    for checkpoint in members:
        found = checkpoint.bind(group)
        begun_here = begun_here and found is group
        if found.id == group.id:
            # The first to bind it fixed the horizon: nobody can have committed the group before that.
            bound.append((checkpoint, found))
    if not bound:
        return {}
    checkpoints = [checkpoint for checkpoint, _ in bound]
    # Its id is that of all who were meant to be in it; what the snapshot says of itself is who is.
    there = tuple(checkpoint.member for checkpoint in checkpoints)
    group = msgspec.structs.replace(group, horizon=min(found.horizon for _, found in bound), members=there)
    headers = [checkpoint.header for checkpoint in checkpoints]
    # If nobody had begun it, it cannot have landed; should somebody be about to, the commit finds that out by itself.
    # Another task may have begun it on a later state than the one that was seen here.
    state = state if begun_here else None
    outcome = None if state is not None else look_at(table, named.header.table, lambda now: now.find(group, headers))
    if outcome is None:
        writes = [SealedWrite(checkpoint) for checkpoint in checkpoints]
        look_at(table, named.header.table, lambda now: now.require_own_files(writes), state)
        audited.look(writes)
        if table.changes_nothing(writes):
            require_nothing_earlier(checkpoints, table)
            outcome = Landed(None, now(), landed_now=False)
        else:
            outcome = _land(GroupCommit(group, writes), table, state, audited.looked)
    return {checkpoint.member: (_record(checkpoint, group, outcome), outcome.landed_now) for checkpoint in checkpoints}


def _find(checkpoint: Checkpoint, group: Group, table: Table) -> Landed | None:
    """The commit of a group as the table's history shows it, which must be that of this checkpoint."""
    return look_at(table, checkpoint.header.table, lambda state: state.find(group, [checkpoint.header]))


def _land(commit: GroupCommit, table: Table, state: TableState | None, looked: Told) -> Landed:
    """Look at all that the commit needs, and land it."""
    files = StagedFileCheck(commit.writes, table, looked)

    def look(now: TableState) -> None:
        files.require(now)
        now.require_listed(commit.writes)

    look_at(table, commit.first.table, look, state)
    return land(table, commit, ConflictChecks([write.checkpoint for write in commit.writes], files), state)


def _record(checkpoint: Checkpoint, group: Group, outcome: Landed) -> Commit:
    seal = sealed_of(checkpoint)
    return checkpoint.record(
        Commit(group=group.id, snapshot_id=outcome.snapshot_id, committed_at=outcome.committed_at, rows=seal.rows)
    )


def _require_one_snapshot(checkpoints: Sequence[Checkpoint], table: Table) -> None:
    """Refuse to land one after the other what has to land together: the later snapshot would remove the rows of the earlier."""
    if len(checkpoints) == 1 or table.adds_only([checkpoint.header for checkpoint in checkpoints]):
        return
    bound = {checkpoint.member: group_of(checkpoint) for checkpoint in checkpoints}
    if len({group.id if group else None for group in bound.values()}) == 1:
        return
    # What replaces an earlier generation removes the files of that and no others.
    new = [checkpoint for checkpoint in checkpoints if checkpoint.header.replaces is None and landed(checkpoint, table) is None]
    for checkpoint in new:
        checkpoint.require_live()
    if new:
        begun = next(member.key for member, group in bound.items() if group)
        raise InvalidInputError(
            f"The checkpoints of this commit replace rows of {new[0].header.table.identifier} and have to land in one snapshot, "
            f"but a commit of the key {begun!r} was begun without {new[0].key.value!r}: the later of the two would remove the rows "
            "of the earlier. Nothing was changed. Run the stages of all under other idempotence keys, and commit them together."
        )


def _require_one_table(checkpoints: Sequence[Checkpoint]) -> None:
    targets = {place_of(checkpoint) for checkpoint in checkpoints}
    if len(targets) != 1:
        raise InvalidInputError(
            "One commit lands in one table, but these checkpoints belong to several stores, connections, tables or branches: "
            + "; ".join(sorted(f"{identifier} in store {store}" for store, _, _, identifier, _, _ in targets))
            + ". Use one commit task for each."
        )
