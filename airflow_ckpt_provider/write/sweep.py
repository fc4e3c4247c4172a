"""A sweep: removing, from a whole checkpoint store, the records of writes that are done, and from the tables their orphans.

What a generation is, it says by the objects that it has; how old it is, the store's own clock says (I13). What is young is live. Of
what is older:

- a committed generation keeps a compact record, from which whoever asks about it later is answered, and loses all other records but
  header, group and commit, if nothing needs them (see ``needs``) and its table does not contradict its commit;
- a discarded one keeps its header and its tombstone, unless a commit of it may be under way;
- one that is neither keeps everything, or is discarded first, if that is asked for;
- rows for other tasks go once all who have read them are done, and a compact record stays to answer whoever clears their run.

Each step can be the last: a generation has all its records or its compact record, at any moment. A sweep that is repeated goes on
where the one before it was killed, and two may run at the same time.

Decision: a compact record is put before it is looked, once more, for a generation that is to take this one's place. The stage of a
replacement does it the other way round. So one of the two sees the other, as a commit and a discard do.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Header
from airflow_ckpt_provider.checkpoint.inventory import Inventory
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.checkpoint.store import ObjectGoneError, StoreError
from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    CheckpointMissingError,
    CorruptObjectError,
    HistoryExpiredError,
    RecordsRemovedError,
    RolledBackError,
    TableExistsError,
    TableMissingError,
    first_line,
)
from airflow_ckpt_provider.sources.rejected.file import in_store, remove
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.tables.summary import trace_of
from airflow_ckpt_provider.write.cleanup import landed_or_barred, unfinished
from airflow_ckpt_provider.write.membership import group_of
from airflow_ckpt_provider.write.needs import Candidate, reason_to_keep
from airflow_ckpt_provider.write.removal import Removal, SweptGeneration, kept
from airflow_ckpt_provider.write.rows_sweep import RowsSweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime, timedelta

    from airflow_ckpt_provider.checkpoint.inventory import GenerationObjects
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.tables.table import Table

Abandoned = Literal["keep", "discard"]

_WILDCARDS = frozenset("*?[")


@dataclass
class Counts:
    """What a sweep did not look into.

    :param foreign: objects in the store that are none of ours.
    :param younger: generations of which something was put since the moment that was asked for.
    :param without_records: generations that have nothing to remove.
    """

    foreign: int = 0
    younger: int = 0
    without_records: int = 0


@dataclass
class _Key:
    """What is known of one key while it is swept."""

    objects: dict[int, GenerationObjects]
    without_records: set[int] = field(default_factory=set)
    opened: dict[int, Checkpoint] = field(default_factory=dict)


class Sweep:
    """One sweep over a store.

    :param table_of: the table of a generation; raises ``BindingMismatchError`` for one that this sweep is not to look at.
    :param older_than: how long nothing must have been put of a generation.
    :param keys: which keys, as a pattern of ``fnmatch`` with ``*``, ``?`` and ``[…]``; upper and lower case differ.
    :param abandoned: what becomes of generations that are neither committed nor discarded: kept, or discarded and then removed.
    :param dry_run: look at everything and change nothing.
    """

    def __init__(
        self,
        store: CheckpointStore,
        table_of: Callable[[Checkpoint], Table],
        *,
        older_than: timedelta,
        keys: str = "*",
        abandoned: Abandoned = "keep",
        dry_run: bool = False,
    ) -> None:
        self._store = store
        self._table_of = table_of
        self._older_than = older_than
        self._keys = keys
        self._abandoned = abandoned
        self._removal = Removal(store, dry_run=dry_run)
        self._rows = RowsSweep(self._removal, table_of, discards=abandoned == "discard")
        self._settled: set[str] = set()
        self.counts = Counts()

    def run(self) -> Iterator[SweptGeneration]:
        """Sweep, key by key; each generation is reported when it is done.

        :raises StoreError: if the store does not answer.
        """
        before = self._store.now() - self._older_than
        one_key = "" if _WILDCARDS.intersection(self._keys) else IdempotenceKey(self._keys).hash
        inventory = Inventory.of(self._store, one_key)
        self.counts.foreign = inventory.foreign
        if not self._removal.dry_run:
            self._store.remove([name for name, modified in sorted(inventory.probes.items()) if modified < before])
        for key_hash, generations in sorted(inventory.generations.items()):
            key = _Key(generations)
            # The last one first: what takes the place of another needs that one.
            for number, objects in sorted(generations.items(), reverse=True):
                if not objects.records:
                    self.counts.without_records += 1
                    key.without_records |= {number} if objects.is_committed else set()
                elif not objects.is_older_than(before):
                    self.counts.younger += 1
                else:
                    swept = self._swept(key_hash, number, key, inventory, before)
                    if swept is not None:
                        yield swept

    def _swept(self, key_hash: str, number: int, key: _Key, inventory: Inventory, before: datetime) -> SweptGeneration | None:
        """Sweep one generation; None if its key is not among those that were asked for, or if it is younger by now."""
        name, state = None, None
        try:
            checkpoint = self._opened(key_hash, number, key)
            name = checkpoint.key.value
            if not fnmatch.fnmatchcase(name, self._keys) and name != self._keys:
                return None
            state = state_of(checkpoint)
            # Somebody may have gone on with it, or committed it, since the store was listed.
            listed = self._removal.records_of(checkpoint, before)
            if listed is None:
                self.counts.younger += 1
                return None
            return self._of_generation(checkpoint, state, key, inventory, listed, before)
        except RecordsRemovedError:
            kept = "another clean-up is removing its records"
            return SweptGeneration(name, f"{key_hash}/g{number}", number, state, kept=kept)
        except (TableExistsError, TableMissingError, RolledBackError, HistoryExpiredError, BindingMismatchError) as error:
            return SweptGeneration(name, f"{key_hash}/g{number}", number, state, kept=str(error))
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, ObjectGoneError):
                raise
            # Whatever is wrong with one key or table, the others are cleaned up.
            said = f"{type(error).__name__}: {first_line(error)}"
            return SweptGeneration(name, f"{key_hash}/g{number}", number, state, kept=said, is_error=True)

    def _opened(self, key_hash: str, number: int, key: _Key) -> Checkpoint:
        """A generation by the name of its folder, which does not say its key."""
        if number not in key.opened:
            paths = CheckpointPaths(key_hash, number)
            header = self._store.read(paths.header, Header)
            if header is None:
                raise CheckpointMissingError(
                    f"Objects below {paths.root} in the checkpoint store {self._store.uri} have no {paths.header}, so that nobody "
                    "can tell what they are. Something has deleted from the store: restore the object, or remove that folder."
                )
            if (IdempotenceKey(header.key).hash, header.generation) != (key_hash, number):
                raise CorruptObjectError(
                    f"Object {paths.header} in the checkpoint store {self._store.uri} belongs to the key {header.key!r}, "
                    f"generation {header.generation}, and not where it lies."
                )
            key.opened[number] = Checkpoint(self._store, header)
        return key.opened[number]

    def _of_generation(
        self,
        checkpoint: Checkpoint,
        state: State,
        key: _Key,
        inventory: Inventory,
        listed: dict[str, int],
        before: datetime,
    ) -> SweptGeneration:
        generation = checkpoint.header.generation
        objects = key.objects[generation]
        if not mode_type(checkpoint.header).lands:
            return self._rows.swept(checkpoint, state, objects, listed, before)
        generations = {number: self._opened(checkpoint.paths.key_hash, number, key) for number in key.objects}
        if objects.is_compact and state is State.COMMITTED and SealedWrite(checkpoint).is_compact:
            # The sweep that began it was killed.
            key.without_records.add(generation)
            return self._removal.removed(checkpoint, state, listed, [])
        table = self._table_of(checkpoint)
        known = {trace_of(opened.header) for opened in generations.values()}
        commit, barred = landed_or_barred(checkpoint, table, known, record=not self._removal.dry_run)
        if commit is not None:
            later = [opened for number, opened in sorted(generations.items()) if number > generation]
            candidate = Candidate(checkpoint, commit, later, frozenset(key.without_records), inventory, self._settled)
            return self._committed(candidate, table, key, listed)
        is_newest = generation == max(key.objects)
        return self._not_committed(checkpoint, table, state, listed, before, barred, is_newest=is_newest)

    # -- committed ----------------------------------------------------------------------------------------------------

    def _committed(self, candidate: Candidate, table: Table, key: _Key, listed: dict[str, int]) -> SweptGeneration:
        checkpoint = candidate.checkpoint
        reason = reason_to_keep(candidate)
        if reason is not None:
            return kept(checkpoint, State.COMMITTED, reason)
        write = SealedWrite(checkpoint)
        if write.is_compact:
            checkpoint.require_not_compacted()
        write.is_replaceable = False
        files = self._removal.orphans(write, table, write)
        if not self._removal.dry_run:
            checkpoint.compact(write.seal)
            replacement = self._new_replacement(candidate)
            if replacement is not None:
                return kept(checkpoint, State.COMMITTED, f"generation {replacement} was opened a moment ago to take its place")
            self._removal.remove_files(table, checkpoint, files)
        key.without_records.add(checkpoint.header.generation)
        return self._removal.removed(checkpoint, State.COMMITTED, listed, files)

    def _new_replacement(self, candidate: Candidate) -> int | None:
        """A generation that is to take the place of this one, and that came after the store was listed."""
        checkpoint = candidate.checkpoint
        known = {checkpoint.header.generation, *(later.header.generation for later in candidate.later)}
        for number in Checkpoint.generations(self._store, checkpoint.key):
            if number > checkpoint.header.generation and number not in known:
                opened = Checkpoint.at(self._store, checkpoint.key, number)
                if opened.header.replaces == checkpoint.header.generation:
                    return number
        return None

    # -- discarded, or abandoned --------------------------------------------------------------------------------------

    def _not_committed(
        self,
        checkpoint: Checkpoint,
        table: Table,
        state: State,
        listed: dict[str, int],
        before: datetime,
        barred: str,
        *,
        is_newest: bool,
    ) -> SweptGeneration:
        was_discarded = state is State.DISCARDED
        discard = self._abandoned == "discard" and is_newest and not was_discarded
        if not was_discarded and not discard:
            return kept(checkpoint, state, _unfinished_because(checkpoint, barred, is_newest=is_newest))
        if discard and not barred and group_of(checkpoint) is not None:
            return kept(checkpoint, state, unfinished(checkpoint, discard=True))
        if discard:
            # The table was asked in between.
            if self._removal.records_of(checkpoint, before) is None:
                return kept(checkpoint, state, "an attempt of it has gone on since this clean-up began")
            if not self._removal.dry_run:
                checkpoint.discard("it was cleaned up unfinished")
        if not self._removal.dry_run or was_discarded:
            left = "" if barred and checkpoint.discarded() is not None else unfinished(checkpoint, discard=discard)
            if left:
                return kept(checkpoint, state_of(checkpoint), left)
        files = self._removal.orphans(StagedWrite(checkpoint), table, None)
        # Nobody reads rows that a write has rejected which was given up: the next generation reads its input again.
        rejected = in_store(checkpoint.store, checkpoint.paths)
        if not self._removal.dry_run:
            self._removal.remove_files(table, checkpoint, files)
            remove(checkpoint.store, rejected)
        if discard:
            # An attempt that was thought dead may still leave files, which its record tells to be its own.
            listed = {name: size for name, size in listed.items() if not name.startswith(checkpoint.paths.attempts)}
        return self._removal.removed(checkpoint, State.DISCARDED, listed | rejected, files)


def _unfinished_because(checkpoint: Checkpoint, barred: str, *, is_newest: bool) -> str:
    """Why a generation that is neither committed nor discarded is kept as it is."""
    if not is_newest:
        return "it is neither committed nor discarded, though there is a later one"
    if barred:
        return f"it is not given up, though it cannot be committed any more: {barred}"
    if group_of(checkpoint) is not None:
        return "a commit of it was begun and has not landed: run its commit task again"
    return "it is not finished, and its next attempt needs what is staged; abandoned='discard' gives it up"
