"""Removing the orphans of a key: what its attempts have written and never landed, and never will. Nothing else is touched (I4, I5).

Rows that were rejected lie in the store: those that a committed write has left out stay there for ``Rejected``, and all others go.

Whose a file is, its name says: key, generation, and the id of an attempt that is recorded in the store. Whether it landed, the
table says, whatever the store says (I15): what any snapshot or version that is there refers to, stays. Nothing is removed while a
commit may refer to it:

- a committed generation cannot land again, so whatever of it has not landed never will;
- a discarded one has a tombstone. A commit that begins after that sees it. One that was begun before may still be under way: then
  everything stays;
- one whose key the table shows as committed by a checkpoint that the store does not hold cannot land any more: a commit of it that
  is under way was begun on the table before that, and fails;
- of any other, everything stays: its next attempt needs it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    HistoryExpiredError,
    RolledBackError,
    TableExistsError,
    TableMissingError,
)
from airflow_ckpt_provider.sources.rejected.file import in_store, remove
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.tables.summary import trace_of
from airflow_ckpt_provider.write import commits
from airflow_ckpt_provider.write.freeing import give_up_read
from airflow_ckpt_provider.write.looks import look_at
from airflow_ckpt_provider.write.membership import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_ckpt_provider.checkpoint.documents import Commit, TableBinding
    from airflow_ckpt_provider.tables.summary import Trace
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.tables.written_files import WrittenFiles
    from airflow_ckpt_provider.write.freeing import NotBegun


class Cleaned(NamedTuple):
    """What became of one generation.

    :param files: removed, and their bytes.
    :param left: why its orphans were not removed; empty if they were.
    """

    generation: int
    state: State
    files: int = 0
    bytes: int = 0
    left: str = ""


class Listings:
    """Listings of tables' storage, each made once, for the clean-up of many keys and generations."""

    def __init__(self) -> None:
        self._listings: dict[tuple[str, str], WrittenFiles] = {}

    def of(self, table: Table, binding: TableBinding) -> WrittenFiles:
        """What attempts have written into the storage of a table; of a moment ago, if it was asked before."""
        name = (table.identifier, binding.uuid)
        if name not in self._listings:
            self._listings[name] = table.written(binding)
        return self._listings[name]


def clean(
    latest: Checkpoint,
    table_of: Callable[[Checkpoint], Table],
    listings: Listings | None = None,
    *,
    not_begun: NotBegun = lambda _: (),
    discard_unfinished: bool = False,
    dry_run: bool = False,
) -> Iterator[Cleaned]:
    """Remove the orphans of the generations of a key, one generation after the other.

    :param latest: its newest generation.
    :param table_of: the table of a generation.
    :param listings: of clean-ups of other keys in the same task.
    :param not_begun: who else is to read rows that were staged for other tasks; see ``write.freeing``.
    :param discard_unfinished: whether the newest generation is given up if it is not committed, so that it can be cleaned.
    :param dry_run: whether to change nothing, and tell what would be removed; not of rows that were staged for other tasks.
    """
    generations = [Checkpoint.at(latest.store, latest.key, number) for number in Checkpoint.generations(latest.store, latest.key)]
    known = {trace_of(checkpoint.header) for checkpoint in generations}
    listings = listings or Listings()
    for checkpoint in generations:
        generation = checkpoint.header.generation
        discard = discard_unfinished and generation == latest.header.generation
        try:
            if mode_type(checkpoint.header).lands:
                yield _cleaned(checkpoint, table_of(checkpoint), known, listings, discard=discard, dry_run=dry_run)
            elif not dry_run:
                yield free(checkpoint, table_of(checkpoint), listings, not_begun, discard=discard)
        except (TableExistsError, TableMissingError, RolledBackError, HistoryExpiredError, BindingMismatchError) as error:
            yield Cleaned(generation, state_of(checkpoint), left=str(error))


def free(checkpoint: Checkpoint, table: Table, listings: Listings, not_begun: NotBegun, *, discard: bool = False) -> Cleaned:
    """Remove rows that were staged for other tasks to read, if those are done.

    :param not_begun: who else is to read them.
    :param discard: whether rows that no task has begun to read are given up, too.
    """
    left = give_up_read(checkpoint, not_begun, discard=discard)
    generation, state = checkpoint.header.generation, state_of(checkpoint)
    if left:
        return Cleaned(generation, state, left=left)
    files = table.orphans(StagedWrite(checkpoint), None, listings.of(table, checkpoint.header.table))
    table.remove(checkpoint.header.table, files)
    return Cleaned(generation, state, len(files), sum(file.bytes for file in files))


def _cleaned(
    checkpoint: Checkpoint, table: Table, known: set[Trace], listings: Listings, *, discard: bool, dry_run: bool
) -> Cleaned:
    commit, barred = landed_or_barred(checkpoint, table, known, record=not dry_run)
    landed = SealedWrite(checkpoint) if commit is not None else None
    if landed is not None and landed.is_compact:
        # Its records were removed, and before them whatever else it had left.
        return Cleaned(checkpoint.header.generation, State.COMMITTED)
    if commit is None and discard and (barred or group_of(checkpoint) is None):
        checkpoint.discard("it was cleaned up unfinished")
    state = State.COMMITTED if commit is not None else state_of(checkpoint)
    if barred:
        left = "" if checkpoint.discarded() is not None else f"it is not given up, though it cannot be committed any more: {barred}"
    else:
        left = "" if commit is not None else unfinished(checkpoint, discard=discard)
    if left:
        return Cleaned(checkpoint.header.generation, state, left=left)
    files = table.orphans(StagedWrite(checkpoint), landed, listings.of(table, checkpoint.header.table))
    rejected = _unnamed(checkpoint, landed)
    if not dry_run:
        table.remove(checkpoint.header.table, files)
        remove(checkpoint.store, rejected)
    sizes = [*(file.bytes for file in files), *rejected.values()]
    return Cleaned(checkpoint.header.generation, state, len(sizes), sum(sizes))


def _unnamed(checkpoint: Checkpoint, landed: SealedWrite | None) -> dict[str, int]:
    """Files of rejected rows that a generation leaves behind, and their bytes: those that its seals name are rows that it has left
    out.

    Of a generation that did not land, the next one reads the input again.
    """
    paths, stored = checkpoint.paths, in_store(checkpoint.store, checkpoint.paths)
    seals = checkpoint.seals() if stored and landed is not None else []
    kept = {paths.rejected(file.split, file.writer) for seal in seals for file in seal.rejected}
    return {name: stored[name] for name in sorted(stored.keys() - kept)}


def landed_or_barred(checkpoint: Checkpoint, table: Table, known: set[Trace], *, record: bool = True) -> tuple[Commit | None, str]:
    """The commit of a generation if it landed; if not, why none can land any more, or nothing.

    :param known: traces of all generations of the key.
    :param record: whether a commit that the table shows and the store does not may be recorded.
    """
    try:
        commit = commits.landed(checkpoint, table, record=record)
        if commit is not None:
            # The record alone does not tell that nothing of it is needed any more (I15). Expired history cannot tell otherwise.
            with contextlib.suppress(HistoryExpiredError):
                commits.verify(checkpoint, commit, table)
        if commit is None and checkpoint.newest_seal() is not None:
            look_at(table, checkpoint.header.table, lambda state: state.require_unknown([checkpoint.header], known))
    except BindingMismatchError as error:
        return None, str(error)
    return commit, ""


def unfinished(checkpoint: Checkpoint, *, discard: bool) -> str:
    """Why the files of a generation that is not committed stay; empty if it is discarded for good.

    :param discard: whether it would have been discarded, had that been possible.
    """
    discarded = checkpoint.discarded() is not None
    # In this order: whoever binds a group after the tombstone was seen here, sees the tombstone.
    group = group_of(checkpoint)
    if group is not None and (discarded or discard):
        begun = f"a commit of it was begun at {group.bound_at:%Y-%m-%d %H:%M:%S} UTC, and could still land"
        return begun if discarded else f"{begun}: run its commit task again"
    return "" if discarded else "it is not finished, and its next attempt needs what is staged"
