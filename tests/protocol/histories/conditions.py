"""Which refusals a step may end with, and which it must: told from the model and from the table's metadata.

An error that is not listed for the state in which it was raised fails the test; so does a step that goes through although an
error is due. Several may be due at once: which of them is raised first is not said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_ckpt_provider import exceptions as refusals
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.tables.iceberg.history import PROPERTY_PREFIX

if TYPE_CHECKING:
    from protocol.histories.model import Generation
    from protocol.histories.play import Play, Running, Write
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Member

#: Outcomes of a look into the table's history.
FOUND, NONE = "found", "none"


@dataclass
class Due:
    """Errors that are due (one of ``must`` is raised if there is any) and those that are only possible."""

    must: set[type[Exception]] = field(default_factory=set)
    may: set[type[Exception]] = field(default_factory=set)

    def add(self, other: Due, *, sure: bool = True) -> None:
        (self.must if sure else self.may).update(other.must)
        self.may |= other.may

    @property
    def possible(self) -> set[type[Exception]]:
        return self.must | self.may


def table_of(play: Play, write: Write) -> Table | None:
    return play.world.table(write.table) if play.exists(write.table) else None


def head_of(table: Table | None, branch: str) -> int | None:
    if table is None:
        return None
    ref = table.metadata.refs.get(branch) or table.metadata.refs.get("main")
    return ref.snapshot_id if ref else None


def looked_up(play: Play, write: Write, one: Generation) -> set:
    """What a look for a generation's commit in the table's history may say, if one was ever begun."""
    table, group = table_of(play, write), bound_group(play.checkpoint(write, one))
    if table is None or group is None:
        return {NONE}
    metadata, history = table.metadata, play.histories[write.table]
    there = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    true = list(history.lineage(head_of(table, write.branch)))
    visible = true[: next((n for n, snapshot_id in enumerate(true) if snapshot_id not in there), len(true))]
    reaches = history.numbers[visible[-1]] - 1 if visible else metadata.last_sequence_number
    if one.landed is None:
        # Only where history was cut, or a branch has none, absence proves nothing.
        return {NONE, refusals.HistoryExpiredError} if reaches > group.horizon and (history.expired or not visible) else {NONE}
    if one.landed in visible:
        return {FOUND}
    remembered = any(name.startswith(PROPERTY_PREFIX) and group.id in text for name, text in metadata.properties.items())
    if one.landed in true and remembered:
        # Once its snapshot is expired, a file of it that is still there tells that it was not rolled back.
        there_still = one.files & play.live_files(table, write.branch).keys()
        return {FOUND} if there_still else {FOUND, refusals.HistoryExpiredError}
    if one.landed in true:
        return {refusals.HistoryExpiredError}
    if one.landed in there or (remembered and history.numbers[one.landed] > reaches):
        return {refusals.RolledBackError}
    if remembered:
        # Where history does not reach back, nothing tells a commit that was rolled back from one whose files are gone.
        return {refusals.RolledBackError, refusals.HistoryExpiredError}
    # Rolled back, and no trace is left.
    return {NONE, refusals.HistoryExpiredError} if reaches > group.horizon else {NONE}


def of_open(play: Play, write: Write, *, restart: bool, replace: bool, mode: str) -> Due:
    """Opening an attempt."""
    due, table, latest = Due(), table_of(play, write), write.latest
    if mode != "create" and table is None:
        due.must.add(refusals.TableMissingError)
        return due
    branch_of_nothing = table is not None and write.branch != "main" and not table.metadata.refs
    if branch_of_nothing or (mode == "overwrite_partitions" and table.spec().is_unpartitioned()):
        due.must.add(refusals.InvalidInputError)
        return due
    if latest is None:
        return _new(play, write, table, due, replaces=False)
    checkpoint = play.checkpoint(write, latest)
    if checkpoint.discarded() is not None:
        return _new(play, write, table, due, replaces=latest.replaces is not None)
    recorded = checkpoint.committed()
    pinned = checkpoint.header.table
    if pinned.creation is not None and table is not None and str(table.metadata.table_uuid) != pinned.uuid:
        due.must.add(refusals.TableExistsError)
        return due
    look = {FOUND} if recorded else looked_up(play, write, latest)
    if landed_nothing(checkpoint):
        # There is nothing to protect: it is begun anew if that is asked for, or if there is something to read by now.
        look = {NONE}
    errors = look - {FOUND, NONE}
    (due.may if look & {FOUND, NONE} else due.must).update(errors)
    if due.must:
        return due
    sure = len(look) == 1
    if mode != write.mode:
        if restart or FOUND not in look:
            due.add(Due({refusals.BindingMismatchError}), sure=sure)
        else:
            due.add(Due({refusals.BindingMismatchError}), sure=sure)
        return due
    if FOUND in look and replace:
        due.add(of_record(play, write, latest), sure=sure)
        if not latest.files <= play.live_files(table, write.branch).keys():
            due.add(Due({refusals.TableMovedError}), sure=sure)
    elif FOUND in look and restart:
        due.add(Due({refusals.RestartRefusedError}), sure=sure)
    elif restart:
        _new(play, write, table, due, replaces=latest.replaces is not None)
    return due


def landed_nothing(checkpoint: Checkpoint) -> bool:
    """Whether its commit is recorded, and made no snapshot."""
    recorded = checkpoint.committed()
    return recorded is not None and recorded.commit_id is None


def _new(play: Play, write: Write, table: Table | None, due: Due, *, replaces: bool) -> Due:
    """Opening a generation, whose source is planned before anything is put for it."""
    if write.mode == "create" and not replaces:
        if table is not None:
            due.must.add(refusals.TableExistsError)
        if not write.files:
            due.must.add(refusals.InvalidInputError)
    elif write.source == "since" and not replaces:
        due.add(play.increment_refused(write))
    return due


def of_record(play: Play, write: Write, one: Generation) -> Due:
    """Verifying that a recorded commit is still in the table."""
    checkpoint = play.checkpoint(write, one)
    recorded = checkpoint.committed()
    if recorded is not None and recorded.commit_id is None:
        return Due()
    look = looked_up(play, write, one)
    gone = look & {NONE, refusals.RolledBackError}
    # Where history was cut, the record says that it landed, and a file of it that it was not rolled back.
    untold = look & {refusals.HistoryExpiredError}
    return Due(
        {refusals.RolledBackError} if gone and gone == look else set(), untold | ({refusals.RolledBackError} if gone else set())
    )


def of_round(play: Play, running: Running) -> Due:
    """Going on with an attempt: planning, a split, or the seal."""
    due, write, one = Due(), running.write, running.generation
    table, header = table_of(play, write), running.attempt.checkpoint.header
    if header.table.creation is not None:
        if table is not None and str(table.metadata.table_uuid) != header.table.uuid:
            due.may.add(refusals.TableExistsError)
    elif write.note and not play.has_note(table, header.table.schema_id):
        due.may.add(refusals.SchemaMismatchError)
    if write.provisional and table is not None and table.metadata.current_schema_id != header.table.schema_id:
        due.may.add(refusals.SchemaMismatchError)
    if one.rows is None:
        if write.source == "since" and one.replaces is None:
            due.add(play.increment_refused(write))
        return due
    if not rows_fit(one):
        due.may |= {refusals.DuplicateKeyError if one.mode == "upsert" else refusals.InvalidInputError}
    return due


def rows_fit(one: Generation) -> bool:
    """Whether the source's rows are such that the mode takes them."""
    from protocol.histories.model import FILTERS

    if one.mode == "upsert":
        return len({row.id for row in one.rows}) == one.rows.total()
    if one.parameters.get("overwrite_filter"):
        return all(map(FILTERS[one.parameters["overwrite_filter"]], one.rows))
    return True


def of_commit(play: Play, picked: list[tuple[Write, Generation]]) -> Due:
    """Committing these together."""
    due, (first, _) = Due(), picked[0]
    pairs = [(write, one, play.checkpoint(write, one)) for write, one in picked]
    if len({(write.table, write.branch, at.header.table.uuid) for write, _, at in pairs}) > 1:
        return Due({refusals.InvalidInputError})
    together = not first.provisional
    if len(pairs) > 1 and (not together or len({(w.mode, repr(w.parameters)) for w, _, _ in pairs}) > 1):
        return Due({refusals.InvalidInputError})
    increments = {at.header.key for _, one, at in pairs if at.header.source.get("since") and one.replaces is None}
    if len(increments) > 1:
        # All writes of increments here are one task's, which has one place to read on from.
        return Due({refusals.InvalidInputError})
    for _, _, at in pairs:
        if at.sealed() is None:
            due.must.add(refusals.DiscardedError if at.discarded() else refusals.NotSealedError)
    if due.must:
        return due
    bound = {group.id if (group := bound_group(at)) else None for _, _, at in pairs}
    if len(bound) > 1 and first.mode.startswith("overwrite"):
        due.may.add(refusals.InvalidInputError)
    for write, one, at in pairs:
        fresh = [(w, o) for w, o, a in pairs if bound_group(a) is None]
        due.add(_of_one(play, write, one, at, fresh, {a.member for _, _, a in pairs}))
    return due


def _of_one(
    play: Play, write: Write, one: Generation, at: Checkpoint, fresh: list[tuple[Write, Generation]], asked_for: set[Member]
) -> Due:
    if at.committed() is not None:
        return of_record(play, write, one)
    if at.discarded() is not None:
        return Due({refusals.DiscardedError})
    group = bound_group(at)
    if group is None:
        return _of_landing(play, fresh)
    due, look = Due(), looked_up(play, write, one)
    table = table_of(play, write)
    if at.header.table.creation is not None and table is not None and str(table.metadata.table_uuid) != at.header.table.uuid:
        return Due({refusals.TableExistsError})
    errors = look - {FOUND, NONE}
    (due.may if look & {FOUND, NONE} else due.must).update(errors)
    if NONE in look:
        due.add(_of_landing(play, play.bound_to(group.id)), sure=len(look) == 1)
        others = [Checkpoint.at(at.store, IdempotenceKey(m.key), m.generation) for m in group.members if m not in asked_for]
        if any((bound := bound_group(other)) is None or bound.id == group.id for other in others):
            due.add(Due({refusals.CommitUnderWayError}, {refusals.DiscardedError}), sure=len(look) == 1)
    return due


def _of_landing(play: Play, members: list[tuple[Write, Generation]]) -> Due:
    """A group whose snapshot is not in the table yet."""
    due, (write, _) = Due(), members[0]
    table = table_of(play, write)
    sealed = [play.checkpoint(w, one) for w, one in members]
    for (w, one), at in zip(members, sealed, strict=True):
        due.add(_of_earlier(play, w, one))
        header = at.header.table
        if header.creation is not None and table is not None and str(table.metadata.table_uuid) != header.uuid:
            due.must.add(refusals.TableExistsError)
    if all(play.is_empty(w, one) for w, one in members) or due.must & {refusals.TableExistsError}:
        return due
    if any(at.discarded() for at in sealed):
        due.must.add(refusals.DiscardedError)
    again = all(one.replaces for _, one in members)
    if any(one.replaces for _, one in members) and (again or write.mode != "overwrite"):
        live = play.live_files(table, write.branch)
        if not all(one.replaces.files <= live.keys() for _, one in members if one.replaces):
            due.must.add(refusals.TableMovedError)
    if not again and write.mode == "overwrite_partitions":
        specs = set(play.live_files(table, write.branch).values())
        if any(specs - {at.header.table.spec_id} for at in sealed):
            due.must.add(refusals.InvalidInputError)
    head = head_of(table, write.branch)
    for (w, one), at in zip(members, sealed, strict=True):
        if w.provisional and (w.mode == "upsert" or not again):
            if table.metadata.current_schema_id != at.header.table.schema_id:
                due.must.add(refusals.SchemaMismatchError)
            if one.complete_on != head:
                due.may.add(refusals.TableMovedError)
        if w.source == "self" and one.pinned != head:
            due.may.add(refusals.TableMovedError)
        if one.mark is not None and one.replaces is None and play.read_up_to(w) != one.mark[0]:
            due.must.add(refusals.TableMovedError)
    return due


def _of_earlier(play: Play, write: Write, one: Generation) -> Due:
    """Discarded generations whose commit may have landed after all."""
    due, chain, before = Due(), set(), one.replaces
    while before is not None:
        chain.add(before.number)
        before = before.replaces
    for other in write.generations.values():
        if landed_nothing(play.checkpoint(write, other)) and not write.provisional:
            continue
        if other.number < one.number and other.number not in chain and bound_group(play.checkpoint(write, other)) is not None:
            look = looked_up(play, write, other) - {refusals.RolledBackError}
            wanted = {refusals.RestartRefusedError} if FOUND in look else set()
            wanted |= look & {refusals.HistoryExpiredError}
            due.add(Due(wanted), sure=look <= {FOUND, refusals.HistoryExpiredError} and bool(look))
    return due
