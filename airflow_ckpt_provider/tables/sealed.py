"""Sealed checkpoints as a commit sees them, and what a replacement takes the place of."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, totals_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CheckpointMissingError, CorruptObjectError, NotSealedError

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import Header, Plan, Seal, Staged
    from airflow_ckpt_provider.checkpoint.layout import OwnNames
    from airflow_ckpt_provider.tables.protocol import Sealed


class SealedCheckpoint:
    """A sealed checkpoint as a commit of its table sees it; plan and records are read when they are first asked for.

    :param seal: one that was read; the newest if None.
    :raises NotSealedError: if it is not complete.
    """

    def __init__(self, checkpoint: Checkpoint, seal: Seal | None = None) -> None:
        self.header: Header = checkpoint.header
        self.seal: Seal = sealed_of(checkpoint) if seal is None else seal
        self._checkpoint = checkpoint

    @cached_property
    def plan(self) -> Plan:
        """The plan of the sealed round.

        :raises CheckpointMissingError: if it is gone from the store.
        """
        plan = self._checkpoint.plan(self.seal.round)
        if plan is None:
            raise CheckpointMissingError(
                f"The checkpoint of the key {self.header.key!r} is sealed, but the plan of its round {self.seal.round} is gone "
                "from the store. Something deletes from it; redo the write under another idempotence key."
            )
        return plan

    @cached_property
    def staged(self) -> list[Staged]:
        """The records of its splits."""
        return self._checkpoint.staged([split.id for split in self.plan.splits])

    @cached_property
    def names(self) -> OwnNames:
        """Which files it has written, by their names."""
        return self._checkpoint.own_names()

    @cached_property
    def replaced(self) -> SealedCheckpoint | None:
        """The generation that this one replaces."""
        return replaced_by(self._checkpoint)


def require_agreeing(one: Sealed) -> None:
    """Refuse a seal whose totals are not those of the splits that it seals: rows would be left out, or counted that are not there.

    :raises CorruptObjectError: naming the key.
    """
    totals, seal = totals_of(one.staged, one.header.key), one.seal
    sealed = (seal.splits, seal.rows, seal.bytes, seal.files, dict(seal.counts))
    found = (totals.splits, totals.rows, totals.bytes, totals.files, dict(totals.counts))
    if sealed != found:
        raise CorruptObjectError(
            f"The seal of the key {one.header.key!r} in the checkpoint store says that {seal.splits} splits with {seal.rows:,} "
            f"rows in {seal.files:,} files are staged for {one.header.table.identifier}, and the records of its splits say "
            f"{totals.splits} with {totals.rows:,} in {totals.files:,}. The store was altered; nothing was changed. Redo the "
            f"write: {how_to_restart(one.header)}."
        )


def replaced_by(checkpoint: Checkpoint) -> SealedCheckpoint | None:
    """The generation that this one replaces, as it was committed; None if it replaces none."""
    if checkpoint.header.replaces is None:
        return None
    return SealedCheckpoint(Checkpoint.at(checkpoint.store, checkpoint.key, checkpoint.header.replaces))


def own_files(sealed: Sealed | None) -> list[str]:
    """Files that a sealed checkpoint has staged for rows of its own; none if there is none."""
    if sealed is None:
        return []
    # A split that replaced a file of the table carried rows of others over: those are not this key's to remove.
    return [file.path for one in sealed.staged if not one.replaces for file in one.files]


def replaced_generations(checkpoint: Checkpoint) -> set[int]:
    """The committed generations that this one takes the place of, one after the other."""
    chain: set[int] = set()
    header = checkpoint.header
    while header.replaces is not None:
        chain.add(header.replaces)
        header = Checkpoint.at(checkpoint.store, checkpoint.key, header.replaces).header
    return chain


def sealed_of(checkpoint: Checkpoint) -> Seal:
    """The newest seal of a checkpoint.

    :raises NotSealedError: if it is not complete.
    :raises DiscardedError: if it was discarded before it was.
    """
    seal = checkpoint.sealed()
    if seal is None:
        checkpoint.require_live()
        raise NotSealedError(
            f"The checkpoint of the key {checkpoint.key.value!r} is not sealed: its stage has not finished. Let the stage succeed "
            "(a retry writes only what is missing), then commit."
        )
    return seal
