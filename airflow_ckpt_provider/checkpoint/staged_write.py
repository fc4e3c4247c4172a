"""A write as its store holds it: what modes, tables and commits are told of it.

Nothing that is put into the store is ever changed. So each plan, record and seal is read when it is first asked for, and kept.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Compact, contents_of
from airflow_ckpt_provider.checkpoint.rejected import left_out
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.checkpoint.sealing import totals_of
from airflow_ckpt_provider.exceptions import BindingMismatchError, CheckpointMissingError, CorruptObjectError, NotSealedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Header, Plan, Seal, Split, Staged
    from airflow_ckpt_provider.checkpoint.layout import OwnedNames

    #: Refuses records of a write that name files which it has not written (I15).
    RequireOwned: TypeAlias = Callable[["StagedWrite", Sequence[Staged]], None]


class StagedWrite:
    """One generation's write, at any point between its header and its commit.

    :param checkpoint: the generation.
    :param require_owned: looks at the records as they are read, and raises to stop; they are taken as they are if None.
    """

    def __init__(self, checkpoint: Checkpoint, require_owned: RequireOwned | None = None) -> None:
        self.checkpoint = checkpoint
        self.header: Header = checkpoint.header
        self._require_owned = require_owned
        self._plans: list[Plan] | None = None
        self._records: dict[str, Staged] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.checkpoint!r}>"

    @property
    def is_vouched_for(self) -> bool:
        """Whether a reference or a signature vouches for what is staged, and not only the store."""
        return self.checkpoint.vouched is not None or self.checkpoint.store.signer is not None

    @property
    def plans(self) -> Sequence[Plan]:
        """The pinned plans of its rounds, in their order."""
        return self._pinned()

    def _pinned(self) -> list[Plan]:
        if self._plans is None:
            self._plans = self.checkpoint.plans()
        return self._plans

    @property
    def plan(self) -> Plan:
        """The plan that counts: the last one that is pinned."""
        return self.plans[-1]

    @property
    def source_plan(self) -> Plan:
        """The last plan that has splits of the input, which lists all of them; the last one of all if none has any."""
        return input_plan(self.plans)

    @property
    def source_splits(self) -> list[Split]:
        """The splits of the input: those that the source reads, and those with rejected rows that are run again."""
        return [split for split in self.source_plan.splits if split.is_input]

    def plan_of(self, number: int) -> Plan | None:
        """The pinned plan of a round; None before there is one."""
        if self._plans is None or number > len(self._plans):
            # Another attempt may have pinned it since the others were read.
            return self.checkpoint.plan(number)
        return self._plans[number - 1]

    def require_plans(self, number: int) -> None:
        """See that the plans of all rounds up to this one are there: another attempt may have pinned some since they were read.

        :raises CheckpointMissingError: if one of them is gone from the store.
        """
        if len(self._pinned()) < number:
            self._plans = self.checkpoint.plans()
        if len(self._pinned()) < number:
            raise self._plan_gone(len(self._pinned()) + 1, number)

    def _plan_gone(self, number: int, sealed: int) -> CheckpointMissingError:
        self.checkpoint.require_not_removed()
        return CheckpointMissingError(
            f"The checkpoint of the key {self.header.key!r} is sealed as its round {sealed} has it, but the plan of its round "
            f"{number} is gone from the store. Something deletes from it; redo the write under another idempotence key."
        )

    def pin(self, plan: Plan) -> Plan:
        """Pin ``plan`` as that of the next round; if another attempt was first, its plan is the next round. Returns that."""
        plans = self._pinned()
        pinned = self.checkpoint.pin(plan, len(plans) + 1)
        plans.append(pinned)
        return pinned

    def staged_ids(self) -> set[str]:
        """Ids of the splits that are staged by now, which is asked of the store each time."""
        return self.checkpoint.staged_ids()

    def records(self, split_ids: Sequence[str]) -> list[Staged]:
        """The published records of these splits, which must be staged.

        :raises CorruptObjectError: if one names files that this generation has not written.
        """
        new = [split_id for split_id in split_ids if split_id not in self._records]
        if new:
            records = self.checkpoint.staged(new)
            if self._require_owned is not None:
                self._require_owned(self, records)
            self._records |= zip(new, records, strict=True)
        return [self._records[split_id] for split_id in split_ids]

    def sealed_as(self, seal: Seal) -> SealedWrite:
        """The same write as a seal has it, with the plans and records that were read already."""
        return SealedWrite(self.checkpoint, seal, self._plans, self._records)

    @property
    def names(self) -> OwnedNames:
        """The names by which files of this generation are known; an attempt that begins later adds to them."""
        return self.checkpoint.owned_names()

    @cached_property
    def replaced(self) -> SealedWrite | None:
        """The generation that this one takes the place of, as it was committed; None if it replaces none."""
        if self.header.replaces is None:
            return None
        return SealedWrite(Checkpoint.at(self.checkpoint.store, self.checkpoint.key, self.header.replaces))

    @property
    def replaced_files(self) -> list[str]:
        """Files that its commit takes away because it replaces a generation; see ``SealedWrite.added_files``."""
        return self.replaced.added_files if self.replaced is not None else []


class SealedWrite(StagedWrite):
    """A write that is complete, as its newest seal says, or an earlier one.

    :param seal: one that was read; the newest if None.
    :param plans: those that were read.
    :param records: those that were read, by the ids of their splits.
    :raises NotSealedError: if it is not complete.
    :raises DiscardedError: if it was discarded before it was.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        seal: Seal | None = None,
        plans: list[Plan] | None = None,
        records: dict[str, Staged] | None = None,
    ) -> None:
        super().__init__(checkpoint)
        #: Whether a later generation may still take its place, for which it needs more than what has landed.
        self.is_replaceable = True
        self._plans, self._records = plans, {} if records is None else records
        self.seal: Seal = sealed_of(checkpoint) if seal is None else seal

    @cached_property
    def plan(self) -> Plan:
        """The plan of the sealed round.

        :raises CheckpointMissingError: if it is gone from the store.
        """
        plan = self.plan_of(self.seal.round)
        if plan is None:
            raise self._plan_gone(self.seal.round, self.seal.round)
        return plan

    @cached_property
    def staged(self) -> list[Staged]:
        """The records of the splits that make up the write.

        :raises BindingMismatchError: if a reference vouches for others (I15).
        """
        staged = self.records([split.id for split in self.plan.splits])
        if self.checkpoint.vouched is not None and self.seal.contents != contents_of(self.plan, staged):
            raise self._not_handed_over()
        return staged

    @property
    def is_handed_over(self) -> bool:
        """Whether a reference vouches for just this seal, whose stage looked at all that it says before it handed it over."""
        return self.checkpoint.vouched is not None and self.checkpoint.vouched == self.seal.digest

    @cached_property
    def names(self) -> OwnedNames:
        """The names by which files of this generation are known, as they were when they were first asked for."""
        if isinstance(self.seal, Compact):
            return self.checkpoint.names_of(self.seal.attempts)
        return self.checkpoint.owned_names()

    @property
    def is_compact(self) -> bool:
        """Whether its records are removed, so that only the facts of its seal are left."""
        return isinstance(self.seal, Compact)

    def require_handed_over(self) -> None:
        """Refuse a seal that is not, byte for byte, the one that a reference vouches for, if there is a reference (I15).

        :raises BindingMismatchError: naming the key.
        """
        if self.checkpoint.vouched is not None and not self.is_handed_over:
            raise self._not_handed_over()

    def require_agreeing(self) -> None:
        """Refuse a seal whose totals are not those of the splits that it seals: rows would be left out, or counted and not there.

        :raises CorruptObjectError: naming the key.
        """
        totals, seal = totals_of(self.staged, self.header.key), self.seal
        sealed = (seal.splits, seal.rows, seal.bytes, seal.files, dict(seal.counts))
        staged = (totals.splits, totals.rows, totals.bytes, totals.files, dict(totals.counts))
        if sealed != staged:
            raise CorruptObjectError(
                f"The seal of the key {self.header.key!r} in the checkpoint store says that {seal.splits} splits with "
                f"{seal.rows:,} rows in {seal.files:,} files are staged for {self.header.table.identifier}, and the records of its "
                f"splits say {totals.splits} with {totals.rows:,} in {totals.files:,}. The store was altered; nothing was changed. "
                f"Redo the write: {how_to_restart(self.header)}."
            )

    def require_rejected(self) -> None:
        """Refuse a seal that does not say which rows of the input its splits have rejected and no other split has run again.

        :raises CorruptObjectError: naming the key.
        """
        # Only where table splits took the place of what was read is it another plan than the sealed one.
        has_input = any(split.is_input for split in self.plan.splits) or self.seal.round == 1
        plan = self.plan if has_input else input_plan(self.plans[: self.seal.round])
        records = self.records([split.id for split in plan.splits if split.is_input])
        if tuple(left_out(plan, records)) != self.seal.rejected:
            raise CorruptObjectError(
                f"The seal of the key {self.header.key!r} in the checkpoint store says that {self.seal.rejected_rows:,} rows of "
                "the input were rejected, and the records of its splits name others. The store was altered; nothing was changed. "
                f"Redo the write: {how_to_restart(self.header)}."
            )

    def _not_handed_over(self) -> BindingMismatchError:
        seal = self.seal
        return BindingMismatchError(
            f"What is sealed under the key {self.header.key!r} in the store {self.checkpoint.store.uri} ({seal.rows:,} rows in "
            f"{seal.splits} splits) is not what the reference of its stage says: its seal, its plan or the record of a split is "
            f"another one. Nothing was changed. If the stage has run again since, clear it: it hands over a new reference and "
            "writes nothing that is there. If it has not, the store was altered: see who can write to it, and run the stage "
            "under another idempotence key."
        )

    @property
    def added_files(self) -> list[str]:
        """Files that it has staged for rows of its own."""
        # A split that replaced a file of the table carried rows over that are not this write's to remove.
        return [file.path for record in self.staged if not record.replaces for file in record.files]


def input_plan(plans: Sequence[Plan]) -> Plan:
    """The last of these plans that lists splits of the input; the last one of all if none does."""
    return next((plan for plan in reversed(plans) if any(split.is_input for split in plan.splits)), plans[-1])


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
