"""Committing sealed checkpoints: one, or many as one snapshot, whatever was begun before.

A commit **group** is a set of generations that land together. Each of them is bound to its group, by put-if-absent, before
the table is touched; a generation never changes its group. So a later, larger list first settles the groups that its members
are bound to already, and then commits the rest.

Who is in a group follows from the store alone: those of its listed members that are bound to it. Everybody who commits a
group binds all its members first, so all see the same ones.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, now
from airflow_ckpt_provider.checkpoint.documents import Commit, Group, Member
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import (
    CorruptObjectError,
    DiscardedError,
    HistoryExpiredError,
    InvalidInputError,
    RestartRefusedError,
    RolledBackError,
)
from airflow_ckpt_provider.tables.own import reading_records
from airflow_ckpt_provider.tables.presence import Presence
from airflow_ckpt_provider.tables.protocol import Base, Landed
from airflow_ckpt_provider.tables.sealed import SealedCheckpoint, replaced_generations, require_agreeing, sealed_of
from airflow_ckpt_provider.write.earlier import earlier_traces, require_not_landed
from airflow_ckpt_provider.write.membership import group_id_of, group_of, place_of, require_one_way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Seal
    from airflow_ckpt_provider.tables.presence import Told
    from airflow_ckpt_provider.tables.protocol import Sealed, Table


#: Looks at what is about to land in one commit, and raises to stop it.
Audit: TypeAlias = "Callable[[Sequence[Sealed]], None]"


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
    found = table.find(group, [checkpoint.header])
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
        require_agreeing(SealedCheckpoint(checkpoint))
        return
    try:
        found = table.find(group, [checkpoint.header])
    except HistoryExpiredError as error:
        sealed = SealedCheckpoint(checkpoint)
        if sealed.seal.files and not table.shows(sealed):
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
    if not table.changes_nothing([SealedCheckpoint(member) for member in members]):
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
            looked_at = [SealedCheckpoint(checkpoint) for checkpoint in {one.member: one for one in fresh}.values()]
            with reading_records(fresh[0].header):
                table.require_own_files(looked_at)
            audited.look(looked_at)
        members = tuple(sorted({checkpoint.member for checkpoint in fresh}))
        # Of the first member, not of whoever is listed first: everybody who begins this group writes the same.
        stream = min(fresh, key=lambda checkpoint: checkpoint.member).header.stream
        base = table.base(fresh[0].header.table)
        group = Group(id=group_id_of(members), members=members, stream=stream, bound_at=now(), horizon=base.horizon)
        settled |= _settle(group, fresh[0], table, audited, base)
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

    def look(self, sealed: Sequence[Sealed]) -> None:
        """Audit these, unless all of them were."""
        these = {(Member(key=one.header.key, generation=one.header.generation), one.seal.round) for one in sealed}
        if self._audit is not None and not these <= self._seen:
            self._audit(sealed)
            self._seen |= these


def _settle(
    group: Group, named: Checkpoint, table: Table, audited: _Audited, base: Base | None = None
) -> dict[Member, tuple[Commit, bool]]:
    """Land ``group``, once, and record it for each of its members.

    :param named: the member that the caller was told to commit: all others lie in its store and go where it goes (I15).
    :param base: the table as it was before anybody could begin this group, if this call is to begin it.
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
    outcome = None if base is not None and begun_here else table.find(group, headers)
    if outcome is None:
        sealed = [SealedCheckpoint(checkpoint) for checkpoint in checkpoints]
        with reading_records(headers[0]):
            table.require_own_files(sealed, base if begun_here else None)
        for one in sealed:
            require_agreeing(one)
        audited.look(sealed)
        if table.changes_nothing(sealed):
            _require_nothing_earlier(checkpoints, table)
            outcome = Landed(None, now(), landed_now=False)
        else:
            # Somebody else may have begun it on a later version than the one that was seen here.
            outcome = _land(group, checkpoints, sealed, table, base if begun_here else None, audited.looked)
    return {checkpoint.member: (_record(checkpoint, group, outcome), outcome.landed_now) for checkpoint in checkpoints}


def _land(
    group: Group, checkpoints: Sequence[Checkpoint], sealed: Sequence[Sealed], table: Table, base: Base | None, looked: Told
) -> Landed:
    presence = Presence(sealed, table, looked)
    presence.require(base)
    table.require_listed(sealed, base)
    earlier = [group for checkpoint in checkpoints for group in _earlier_groups(checkpoint)]
    headers = [checkpoint.header for checkpoint in checkpoints]
    # What an earlier generation has landed is refused below, or replaced.
    known = {trace for checkpoint in checkpoints for trace in earlier_traces(checkpoint.store, checkpoint.header)}

    def before_swap(found: object) -> None:
        for checkpoint in checkpoints:
            # A discard puts its tombstone first and looks for our group second; we did it the other way round.
            _require_live_together(checkpoint, checkpoints)
        _refuse(table.landed_earlier(earlier, headers, found), checkpoints)
        table.require_unknown(headers, known, Base(0, found))
        for checkpoint in checkpoints:
            require_not_landed(checkpoint.store, checkpoint.header, table, Base(0, found))
        presence.require_still()

    return table.commit(group, sealed, before_swap, base)


def _require_nothing_earlier(checkpoints: Sequence[Checkpoint], table: Table) -> None:
    """What is checked before a swap, for checkpoints without rows, which make none."""
    for checkpoint in checkpoints:
        for group in _earlier_groups(checkpoint):
            members = [Checkpoint.at(checkpoint.store, IdempotenceKey(member.key), member.generation) for member in group.members]
            with contextlib.suppress(RolledBackError):
                if table.find(group, [member.header for member in members]) is not None:
                    _refuse(group.id, checkpoints)


def _refuse(found: str | None, checkpoints: Sequence[Checkpoint]) -> None:
    if found is not None:
        raise RestartRefusedError(
            f"An earlier generation of the key {checkpoints[0].key.value!r} was discarded while its commit was under way, and "
            f"that commit ({found}) has landed after all. Committing the newer generation would double the rows; nothing was "
            "changed. Keep the earlier rows and mark the task as success, or remove them before you run the write under "
            "another key."
        )


def _require_live_together(checkpoint: Checkpoint, members: Sequence[Checkpoint]) -> None:
    """Refuse a group with a discarded member, and say what becomes of the others: a generation never changes its group."""
    try:
        checkpoint.require_live()
    except DiscardedError as error:
        others = [repr(other.key.value) for other in members if other is not checkpoint]
        if not others:
            raise
        shown = ", ".join(others[:10]) + (f" and {len(others) - 10} more" if len(others) > 10 else "")
        raise DiscardedError(
            f"{error} A commit of it together with {shown} was begun before that and cannot land any more. Run the stages of those "
            f"keys again too, from their start, then commit all of them. For each: {how_to_restart(checkpoint.header)}."
        ) from error


def _earlier_groups(checkpoint: Checkpoint) -> list[Group]:
    """Groups that discarded earlier generations of the same key were bound to; what this one replaces was not discarded."""
    found = []
    chain = replaced_generations(checkpoint)
    for earlier in checkpoint.earlier():
        group = group_of(earlier) if earlier.header.generation not in chain else None
        if group is not None and not _landed_nothing(earlier):
            found.append(group)
    return found


def _landed_nothing(checkpoint: Checkpoint) -> bool:
    """Whether its commit is known to have made no snapshot, however often it was tried: history has nothing to tell about it."""
    recorded, seal = checkpoint.committed(), checkpoint.sealed()
    return recorded is not None and recorded.snapshot_id is None and seal is not None and not seal.provisional


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
