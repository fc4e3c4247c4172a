"""What is checked on each state that a commit is about to be made on, whatever the table's format.

A discard puts its tombstone first and looks for the commit's group second; the commit does it the other way round. So one of the
two sees the other. A discarded generation whose commit was under way may land late: the commit of the generation after it looks for
that, on the very state that it swaps against.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import BindingMismatchError, DiscardedError, RestartRefusedError, RolledBackError
from airflow_ckpt_provider.tables.summary import trace_of
from airflow_ckpt_provider.write.looks import look_at
from airflow_ckpt_provider.write.membership import group_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.documents import Group, Header
    from airflow_ckpt_provider.tables.state import Landed, TableState
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.staged_files import StagedFileCheck


class ConflictChecks:
    """The checks of one commit. What the store says of earlier generations is read once.

    :param checkpoints: the members of the commit.
    :param files: the looks at their staged files.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint], files: StagedFileCheck) -> None:
        self._checkpoints = checkpoints
        self._files = files
        self._earlier_generations = [(checkpoint, checkpoint.earlier_generations()) for checkpoint in checkpoints]
        self._groups = [(before, _groups_of(checkpoint, before)) for checkpoint, before in self._earlier_generations]
        # What an earlier generation has landed is refused, or replaced.
        self._known = {trace_of(before.header) for _, generations in self._earlier_generations for before in generations}

    def require(self, state: TableState) -> None:
        """Check that the commit may be made on this state.

        :raises DiscardedError: if a member was discarded.
        :raises RestartRefusedError: if the commit of an earlier generation has landed after all.
        :raises BindingMismatchError: if another checkpoint store has committed one of the keys.
        :raises StagedFileMissingError: if staged files are gone.
        """
        self._checkpoints[0].store.each(lambda member: require_live_together(member, self._checkpoints), self._checkpoints)
        for earlier_generations, groups in self._groups:
            undone = _undone(earlier_generations, state)
            for generation, group in groups.items():
                with contextlib.suppress(RolledBackError):
                    if generation not in undone and state.find(group) is not None:
                        raise _landed_after_all(group, self._checkpoints)
        state.require_unknown([checkpoint.header for checkpoint in self._checkpoints], self._known, since_bound=True)
        for checkpoint, earlier_generations in self._earlier_generations:
            require_not_landed(checkpoint.header, earlier_generations, state, since_bound=True)
        self._files.require_still(state)


def require_nothing_earlier(checkpoints: Sequence[Checkpoint], table: Table) -> None:
    """What is checked before a swap, for checkpoints without rows, which make none."""
    for checkpoint in checkpoints:
        earlier_generations = checkpoint.earlier_generations()
        undone = look_at(table, checkpoint.header.table, functools.partial(_undone, earlier_generations))
        for generation, group in _groups_of(checkpoint, earlier_generations).items():
            if generation in undone:
                continue
            members = [Checkpoint.at(checkpoint.store, IdempotenceKey(member.key), member.generation) for member in group.members]
            find = functools.partial(_find, group, [member.header for member in members])
            with contextlib.suppress(RolledBackError):
                if look_at(table, checkpoint.header.table, find) is not None:
                    raise _landed_after_all(group, checkpoints)


def _find(group: Group, headers: Sequence[Header], state: TableState) -> Landed | None:
    return state.find(group, headers)


def require_not_landed(
    header: Header, earlier_generations: Sequence[Checkpoint], state: TableState, *, since_bound: bool = False
) -> None:
    """Refuse a generation if the table shows an earlier one of its key that it does not replace, whatever the store says of that.

    :param earlier_generations: the generations of the key before it.
    :param since_bound: see ``TableState.require_unknown``.
    :raises RestartRefusedError: if it does.
    """
    traces = {before.header.generation: trace_of(before.header) for before in earlier_generations}
    replaced = {traces[generation] for generation in _replaced(header, earlier_generations) | _undone(earlier_generations, state)}
    if set(traces.values()) <= replaced:
        return
    try:
        state.require_unknown([header], {trace_of(header), *replaced}, since_bound=since_bound)
    except BindingMismatchError as error:
        raise RestartRefusedError(
            f"An earlier generation of the key {header.key!r} has landed in {header.table.identifier}, though the checkpoint store "
            f"does not say so any more. Generation {header.generation} would double its rows; nothing was changed. Keep the "
            "earlier rows and mark the task as success, or remove them before you run the write under another key."
        ) from error


def _replaced(header: Header, earlier_generations: Sequence[Checkpoint]) -> set[int]:
    """The committed generations that one takes the place of, one after the other."""
    headers = {before.header.generation: before.header for before in earlier_generations}
    chain, replaces = set[int](), header.replaces
    while replaces is not None:
        chain.add(replaces)
        replaces = headers[replaces].replaces
    return chain


def _undone(earlier_generations: Sequence[Checkpoint], state: TableState) -> set[int]:
    """The generations whose rows an undo has taken out of the table, as its history shows, and those of the undo itself."""
    undone = set[int]()
    for undo in earlier_generations:
        group = group_of(undo) if undo.header.undoes is not None else None
        with contextlib.suppress(RolledBackError):
            if group is not None and state.find(group, [undo.header]) is not None:
                undone |= {undo.header.generation, *_replaced(undo.header, earlier_generations)}
    return undone


def _landed_after_all(group: Group, checkpoints: Sequence[Checkpoint]) -> RestartRefusedError:
    return RestartRefusedError(
        f"An earlier generation of the key {checkpoints[0].key.value!r} was discarded while its commit was under way, and "
        f"that commit ({group.id}) has landed after all. Committing the newer generation would double the rows; nothing was "
        "changed. Keep the earlier rows and mark the task as success, or remove them before you run the write under "
        "another key."
    )


def require_live_together(checkpoint: Checkpoint, members: Sequence[Checkpoint]) -> None:
    """Refuse a group with a discarded member, and say what becomes of the others: a generation never changes its group."""
    try:
        checkpoint.require_live()
    except DiscardedError as error:
        other_keys = [repr(other.key.value) for other in members if other is not checkpoint]
        if not other_keys:
            raise
        shown = ", ".join(other_keys[:10]) + (f" and {len(other_keys) - 10} more" if len(other_keys) > 10 else "")
        raise DiscardedError(
            f"{error} A commit of it together with {shown} was begun before that and cannot land any more. Run the stages of those "
            f"keys again too, from their start, then commit all of them. For each: {how_to_restart(checkpoint.header)}."
        ) from error


def _groups_of(checkpoint: Checkpoint, earlier_generations: Sequence[Checkpoint]) -> dict[int, Group]:
    """Groups that earlier generations were bound to, by their numbers; but of those that the checkpoint takes the place of."""
    chain = _replaced(checkpoint.header, earlier_generations)
    bound = {}
    for before in earlier_generations:
        group = group_of(before) if before.header.generation not in chain else None
        if group is not None and not _landed_nothing(before):
            bound[before.header.generation] = group
    return bound


def _landed_nothing(checkpoint: Checkpoint) -> bool:
    """Whether its commit is known to have made no snapshot, however often it was tried: history has nothing to tell about it."""
    recorded, seal = checkpoint.committed(), checkpoint.sealed()
    return recorded is not None and recorded.commit_id is None and seal is not None and not seal.provisional
