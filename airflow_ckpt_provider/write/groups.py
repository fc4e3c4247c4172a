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
from airflow_ckpt_provider.checkpoint.documents import Group, Member
from airflow_ckpt_provider.checkpoint.group import bind, list_members
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.tables.ownership import reading_records
from airflow_ckpt_provider.tables.state import GroupCommit, Landed
from airflow_ckpt_provider.write.commit_loop import land
from airflow_ckpt_provider.write.commits import commit_of, find_commit, require_not_undone, verify
from airflow_ckpt_provider.write.conflict_checks import ConflictChecks, require_live_together, require_nothing_earlier
from airflow_ckpt_provider.write.grouping import require_one_snapshot, require_one_table, require_together
from airflow_ckpt_provider.write.looks import look_at
from airflow_ckpt_provider.write.membership import group_id_of, group_of, not_asked_for, require_one_way
from airflow_ckpt_provider.write.staged_files import StagedFileCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Commit, Seal
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.tables.state import TableState
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.commit_loop import TellTries
    from airflow_ckpt_provider.write.staged_files import TellCost


#: Looks at what is about to land in one commit, and raises to stop it.
Audit: TypeAlias = "Callable[[Sequence[SealedWrite]], None]"


class Settled(NamedTuple):
    """One checkpoint of a commit: its seal, the record of its commit, and whether it landed just now."""

    checkpoint: Checkpoint
    seal: Seal
    commit: Commit
    landed_now: bool


def settle_nothing(checkpoint: Checkpoint, table: Table) -> bool:
    """Settle a commit that was begun and has nothing to land, as its own retry would.

    :returns: False, and nothing is done, if it was not begun, or would land something.
    """
    group = group_of(checkpoint)
    if group is None:
        return False
    members = [SealedWrite(_opened(checkpoint.store, member)) for member in group.members]
    if not mode_type(checkpoint.header).changes_nothing(members):
        return False
    _settle(group, SealedWrite(checkpoint), table, _Audited(None, lambda _: None, group.members, lambda _: None))
    return True


def commit(
    checkpoints: Sequence[Checkpoint],
    table: Table,
    audit: Audit | None = None,
    tell_cost: TellCost = lambda _: None,
    tell_tries: TellTries = lambda _: None,
) -> list[Settled]:
    """Land all ``checkpoints``, each exactly once, in as few snapshots as their history allows: normally one.

    :param audit: looks at what is about to land, before it is bound to a group that later commits would have to settle first;
        again at just what lands, if that is something else by then. Raises to stop. Not called for what has landed.
    :param tell_cost: told what each check of the staged files cost.
    :param tell_tries: told how often each commit was tried.
    :raises NotSealedError: if one of them is not complete.
    :raises DiscardedError: if one of them was discarded.
    :raises InvalidInputError: if they belong to different tables or branches.
    """
    require_together([checkpoint.header for checkpoint in checkpoints], table.identifier)
    require_one_table(checkpoints)
    known = {checkpoint.member: checkpoint for checkpoint in checkpoints}
    store = checkpoints[0].store
    writes = dict(zip(known, store.each(SealedWrite, known.values()), strict=True))
    require_one_snapshot(checkpoints, table)
    audited = _Audited(audit, tell_cost, known, tell_tries)
    settled: dict[Member, tuple[Commit, bool]] = {}
    fresh: list[SealedWrite] = []
    verified: set[str] = set()
    recorded: list[Checkpoint] = []
    for member, standing in zip(known, store.each(_standing, known.values()), strict=True):
        checkpoint = known[member]
        if member in settled:
            continue
        if standing.recorded is not None:
            if standing.recorded.group not in verified:
                verify(checkpoint, standing.recorded, table)
                verified.add(standing.recorded.group)
            if standing.recorded.commit_id is None:
                # No table vouches for the record of a commit that changed nothing.
                audited.look([writes[member]])
            settled[member] = (standing.recorded, False)
            recorded.append(checkpoint)
            continue
        if standing.is_discarded:
            checkpoint.require_live()
        group = group_of(checkpoint) if standing.is_bound else None
        if group is None:
            fresh.append(writes[member])
        else:
            settled |= _settle(group, writes[member], table, audited)
    store.each(lambda checkpoint: require_not_undone(checkpoint, table), recorded)
    if fresh:
        settled |= _begin(fresh, table, audited, settled)
    return [Settled(checkpoint, writes[checkpoint.member].seal, *settled[checkpoint.member]) for checkpoint in checkpoints]


def _begin(
    fresh: Sequence[SealedWrite], table: Table, audited: _Audited, settled: Mapping[Member, tuple[Commit, bool]]
) -> dict[Member, tuple[Commit, bool]]:
    """Land writes of which no commit was begun yet, as one group; those that another task binds meanwhile, as it has them.

    :param settled: what has landed before.
    """
    for write in fresh:
        write.require_handed_over()
    if audited.is_asked:
        _require_owned_files(fresh, table)
        audited.look(fresh)
    members = tuple(sorted(write.checkpoint.member for write in fresh))
    # Of the first member, not of whoever is listed first: everybody who begins this group writes the same.
    stream = min(fresh, key=lambda write: write.checkpoint.member).header.stream
    state = look_at(table, fresh[0].header.table, lambda state: state)
    group = Group(id=group_id_of(members), members=members, stream=stream, bound_at=now(), horizon=state.horizon)
    landed = _settle(group, fresh[0], table, audited, fresh, state)
    for write in fresh:
        member = write.checkpoint.member
        bound = group_of(write.checkpoint) if member not in landed and member not in settled else None
        if bound is not None:
            landed |= _settle(bound, write, table, audited)
    return landed


class _Standing(NamedTuple):
    """How far the commit of one checkpoint is, as the store says it."""

    recorded: Commit | None
    is_discarded: bool
    is_bound: bool


def _standing(checkpoint: Checkpoint) -> _Standing:
    recorded = checkpoint.committed()
    if recorded is not None:
        return _Standing(recorded, is_discarded=False, is_bound=True)
    # In this order: whoever binds a group after the tombstone was put, sees the tombstone.
    is_discarded = checkpoint.discarded() is not None
    return _Standing(None, is_discarded, checkpoint.store.exists(checkpoint.paths.group))


class _Audited:
    """What an audit has looked at, by member and round of its seal.

    :param tell_cost: told what checks of staged files cost.
    :param asked_for: the members that the caller was told to commit.
    :param tell_tries: told how often each commit was tried.
    """

    def __init__(self, audit: Audit | None, tell_cost: TellCost, asked_for: Iterable[Member], tell_tries: TellTries) -> None:
        self._audit = audit
        self.tell_cost = tell_cost
        self.tell_tries = tell_tries
        self.asked_for = frozenset(asked_for)
        self._seen: set[tuple[Member, int]] = set()

    @property
    def is_asked(self) -> bool:
        """Whether there is anything that looks."""
        return self._audit is not None

    def look(self, writes: Sequence[SealedWrite]) -> None:
        """Audit these, unless all of them were."""
        these = {(Member(key=write.header.key, generation=write.header.generation), write.seal.round) for write in writes}
        if self._audit is not None and not these <= self._seen:
            self._audit(writes)
            self._seen |= these


def _settle(
    group: Group,
    named: SealedWrite,
    table: Table,
    audited: _Audited,
    writes: Sequence[SealedWrite] | None = None,
    state: TableState | None = None,
) -> dict[Member, tuple[Commit, bool]]:
    """Land ``group``, once, and record it for each of its members.

    :param named: the member that the caller was told to commit: all others lie in its store and go where it goes (I15).
    :param writes: of its members, if this call is to begin it; read from the store if None.
    :param state: the table as it was before anybody could begin this group, if this call is to begin it.
    """
    store = named.checkpoint.store
    if writes is None:
        known = {named.checkpoint.member: named}
        members = store.each(lambda member: known[member].checkpoint if member in known else _opened(store, member), group.members)
        require_one_way(named.checkpoint, members)
        _require_asked_for(group, named, members, table, audited)
        writes = store.each(lambda checkpoint: known.get(checkpoint.member) or SealedWrite(checkpoint), members)
    else:
        require_one_way(named.checkpoint, [write.checkpoint for write in writes])
        list_members(named.checkpoint, group)
    bound = store.each(lambda write: bind(write.checkpoint, group), writes)
    # The first to bind it fixed the horizon: nobody can have committed the group before that.
    horizons = [bound_to.horizon for bound_to in bound if bound_to.id == group.id]
    begun_here = all(bound_to is group for bound_to in bound)
    writes = [write for write, bound_to in zip(writes, bound, strict=True) if bound_to.id == group.id]
    if not writes:
        return {}
    checkpoints = [write.checkpoint for write in writes]
    # Its id is that of all who were meant to be in it; what the snapshot says of itself is who is.
    landing = tuple(checkpoint.member for checkpoint in checkpoints)
    commit = GroupCommit(msgspec.structs.replace(group, horizon=min(horizons), members=landing), writes)
    # If nobody had begun it, it cannot have landed; should another task be about to, the commit finds that out by itself.
    # Another task may have begun it on a later state than the one that was seen here.
    state = state if begun_here else None
    outcome = None
    if state is None:
        outcome = look_at(table, named.header.table, lambda now: now.find(commit.group, commit.headers))
        for write in writes if outcome is not None else ():
            require_not_undone(write.checkpoint, table)
    if outcome is None:
        for write in writes:
            if write.is_compact:
                # Only of what is committed records are removed; whatever says so here, the table does not show it.
                write.checkpoint.require_not_compacted()
            write.require_handed_over()
        _require_owned_files(writes, table, state)
        audited.look(writes)
        if mode_type(writes[0].header).changes_nothing(writes):
            require_nothing_earlier(checkpoints, table)
            outcome = Landed(None, now(), landed_now=False)
        else:
            outcome = _land(commit, table, state, audited)
    records = store.each(lambda write: write.checkpoint.record(commit_of(write, commit.group, outcome)), writes)
    return {checkpoint.member: (record, outcome.landed_now) for checkpoint, record in zip(checkpoints, records, strict=True)}


def _require_asked_for(group: Group, named: SealedWrite, members: Sequence[Checkpoint], table: Table, audited: _Audited) -> None:
    """Refuse a group of the store that has not landed and would land what the caller was not told to commit (I15)."""
    more = [member for member in members if member.member not in audited.asked_for]
    # One that is bound to another commit does not land with this one.
    more = [member for member in more if (bound := group_of(member)) is None or bound.id == group.id]
    if more and find_commit(named.checkpoint, group, table) is None:
        for member in more:
            require_live_together(member, members)
        raise not_asked_for(named.checkpoint, more)


def _opened(store: CheckpointStore, member: Member) -> Checkpoint:
    return Checkpoint.at(store, IdempotenceKey(member.key), member.generation)


def _require_owned_files(writes: Sequence[SealedWrite], table: Table, state: TableState | None = None) -> None:
    """Refuse to land files that the writes have not staged, or seals that disagree with what is; a handed-over one stands (I15)."""
    unknown = _unknown(writes)
    if not unknown:
        return
    # What the looks go by is read beforehand, of all members at a time.
    unknown[0].checkpoint.store.each(lambda write: (write.names, write.staged), unknown)
    with reading_records(unknown[0].header):
        look_at(table, unknown[0].header.table, lambda now: now.storage.require_owned_files(unknown), state)
    for write in unknown:
        write.require_agreeing()


def _unknown(writes: Sequence[SealedWrite]) -> list[SealedWrite]:
    """Those that were not handed over by their stage as they are, or take the place of a generation that was not."""
    return [write for write in writes if not write.is_handed_over or write.header.replaces is not None]


def _land(commit: GroupCommit, table: Table, state: TableState | None, audited: _Audited) -> Landed:
    """Look at all that the commit needs, and land it."""
    files = StagedFileCheck(commit.writes, table, audited.tell_cost)

    def look(now: TableState) -> None:
        files.require(now)
        now.storage.require_listed(_unknown(commit.writes))

    look_at(table, commit.first.table, look, state)
    checks = ConflictChecks([write.checkpoint for write in commit.writes], files)
    return land(table, commit, checks, state, audited.tell_tries)
