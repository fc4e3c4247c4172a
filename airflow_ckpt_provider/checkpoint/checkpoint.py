"""One generation of one key: what has been recorded of it, and how more is recorded.

Every method is safe to repeat and safe to race: it puts if absent, reads back what is there, and answers from that. No
state is kept in memory but the header, which never changes. What a generation is sealed with, is in ``sealing``; whom it lands
with, in ``group``; how far it is, in ``state``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.bounds import MAX_ROUNDS
from airflow_ckpt_provider.checkpoint.documents import (
    Attempt,
    Commit,
    Compact,
    Header,
    Member,
    Plan,
    Seal,
    Staged,
    Tombstone,
)
from airflow_ckpt_provider.checkpoint.encoding import corrupt
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths, OwnedNames, generation_of, id_of, is_id, is_writer
from airflow_ckpt_provider.checkpoint.restart import how_to_continue, how_to_restart
from airflow_ckpt_provider.checkpoint.store import ObjectGoneError
from airflow_ckpt_provider.exceptions import (
    BindingMismatchError,
    CheckpointMissingError,
    CorruptObjectError,
    DiscardedError,
    InvalidInputError,
    NotSealedError,
    RecordsRemovedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_ckpt_provider.checkpoint.store import CheckpointStore


def now() -> datetime:
    """The time written into documents: UTC."""
    return datetime.now(UTC)


class Checkpoint:
    """One generation of one key in one store. Opened with ``latest``, ``at`` or ``create``.

    :param store: the checkpoint store.
    :param header: the header that is stored there.
    """

    def __init__(self, store: CheckpointStore, header: Header) -> None:
        self.store = store
        self.header = header
        #: Digest of the seal that a reference vouches for; None without one.
        self.vouched: str | None = None
        self.key = IdempotenceKey(header.key)
        self.paths = CheckpointPaths(self.key.hash, header.generation)

    def __repr__(self) -> str:
        return f"<Checkpoint {self.key} generation {self.header.generation} in {self.store.uri}>"

    # -- opening ------------------------------------------------------------------------------------------------------

    @classmethod
    def latest(cls, store: CheckpointStore, key: IdempotenceKey) -> Checkpoint | None:
        """The newest generation of ``key``, or None if the key was never used here.

        An undo that was given up is passed over, unless its commit was under way then and has landed.

        :raises CorruptObjectError: if there is a newest generation without a readable header.
        """
        for number in reversed(cls.generations(store, key)):
            checkpoint = cls.at(store, key, number)
            if not checkpoint.is_passed_over:
                return checkpoint
        return None

    @property
    def is_passed_over(self) -> bool:
        """Whether it is an undo that was given up, which leaves the generation before it the newest."""
        return self.header.undoes is not None and self.discarded() is not None and self.committed() is None

    @classmethod
    def generations(cls, store: CheckpointStore, key: IdempotenceKey) -> list[int]:
        """The generations of ``key`` that have any object, in their order."""
        numbers = {generation_of(folder) for folder in store.folders(f"{key.hash}/")}
        return sorted(generation for generation in numbers if generation is not None)

    @property
    def next_generation(self) -> int:
        """Number of the generation that takes the place of this one as the newest, whoever opens it first."""
        number = self.header.generation + 1
        while (header := self.store.read(CheckpointPaths(self.key.hash, number).header, Header)) is not None:
            if not Checkpoint(self.store, header).is_passed_over:
                break
            number += 1
        return number

    def later_generations(self) -> list[Checkpoint]:
        """All later generations of the key, in their order."""
        numbers = [number for number in self.generations(self.store, self.key) if number > self.header.generation]
        return [Checkpoint.at(self.store, self.key, number) for number in numbers]

    def earlier_generations(self) -> list[Checkpoint]:
        """All earlier generations of the key, in their order.

        :raises CheckpointMissingError: if one is missing, since what became of it is not known then.
        """
        if self.header.generation == 1:
            return []
        numbers = [number for number in self.generations(self.store, self.key) if number < self.header.generation]
        missing = next((number for number, present in enumerate(numbers, 1) if number != present), len(numbers) + 1)
        if missing != self.header.generation:
            # Says which one; a forged number does not make anybody ask for a million of them.
            numbers = [missing]
        return [Checkpoint.at(self.store, self.key, number) for number in numbers]

    @classmethod
    def at(cls, store: CheckpointStore, key: IdempotenceKey, generation: int) -> Checkpoint:
        """Generation ``generation`` of ``key``.

        :raises CheckpointMissingError: if there is none.
        """
        name = CheckpointPaths(key.hash, generation).header
        header = store.read(name, Header)
        if header is None:
            raise CheckpointMissingError(
                f"There is no checkpoint under the key {key.value!r}, generation {generation}, in the store {store.uri}. Check "
                "that the stage ran, and that both tasks use the same checkpoint connection."
            )
        if header.key != key.value or header.generation != generation:
            raise CorruptObjectError(
                f"Object {name} in the checkpoint store {store.uri} belongs to the key {header.key!r}, generation "
                f"{header.generation}, and not to {key.value!r}, generation {generation}."
            )
        return cls(store, header)

    @classmethod
    def create(cls, store: CheckpointStore, header: Header) -> Checkpoint:
        """Open the generation that ``header`` describes; if somebody created it first, theirs is opened.

        :raises BindingMismatchError: if theirs is bound to something else.
        """
        key = IdempotenceKey(header.key)
        store.create(CheckpointPaths(key.hash, header.generation).header, header)
        checkpoint = cls.at(store, key, header.generation)
        checkpoint.require_binding(header)
        return checkpoint

    def require_binding(self, header: Header) -> None:
        """Refuse to go on if ``header`` describes another write than this one (I6).

        :raises BindingMismatchError: naming each difference.
        """
        differences = self.header.differences(header)
        if differences:
            raise BindingMismatchError(
                f"The idempotence key {self.key.value!r} already belongs to another write:\n  "
                + "\n  ".join(differences)
                + '\nUse another idempotence_key for another write. To redo this one from its start: set on_change="restart" on '
                f"the stage and clear it, or {how_to_restart(self.header)}."
                + (f" {how_to_continue(self.header)}" if self.header.differs_in_code_only(header) else "")
            )

    # -- planning and staging -----------------------------------------------------------------------------------------

    def plan(self, number: int = 1) -> Plan | None:
        """The pinned plan of a round, or None before there is one.

        :raises RecordsRemovedError: if there was one, and it was cleaned up.
        """
        plan = self.store.read(self.paths.plan(number), Plan)
        if plan is None and number == 1:
            self.require_not_compacted()
        for split in plan.splits if plan is not None else ():
            if not is_id(split.id):
                raise self._altered(self.paths.plan(number), f"has a split {split.id!r}")
        if plan is not None and len({split.id for split in plan.splits}) < len(plan.splits):
            raise self._altered(self.paths.plan(number), "lists a split twice")
        return plan

    def plans(self) -> list[Plan]:
        """The pinned plans of all rounds, in their order."""
        rounds: list[Plan] = []
        while len(rounds) <= MAX_ROUNDS and (plan := self.plan(len(rounds) + 1)) is not None:
            rounds.append(plan)
        if len(rounds) > MAX_ROUNDS:
            raise corrupt(self.paths.plan(MAX_ROUNDS + 1), f"is of a later round than the {MAX_ROUNDS} that a write may have")
        return rounds

    def pin(self, plan: Plan, number: int = 1) -> Plan:
        """Pin ``plan`` as that of a round unless one is pinned already; the pinned one is returned.

        :raises InvalidInputError: if it is larger than a reader takes, or of a later round.
        """
        if number > MAX_ROUNDS:
            raise InvalidInputError(
                f"The write of the key {self.key.value!r} was planned {MAX_ROUNDS} times, because its table moved each time before "
                "the commit. Use another idempotence key, and commit soon after the stage."
            )
        if self.store.create(self.paths.plan(number), plan):
            return plan
        pinned = self.plan(number)
        if pinned is None:
            raise self.store.vanished(self.paths.plan(number))
        return pinned

    def begin(self, attempt: Attempt) -> None:
        """Record an attempt, before it may write any file (I4)."""
        self.store.create(self.paths.attempt(attempt.id), attempt)

    def attempts(self) -> list[Attempt]:
        """All recorded attempts, oldest first."""
        documents = self.store.read_many(self.store.names(self.paths.attempts), Attempt)
        return sorted(documents, key=lambda attempt: attempt.started_at)

    def owned_names(self) -> OwnedNames:
        """Which files this generation has written, by the attempts that are recorded."""
        recorded = frozenset(id_of(name) for name in self.store.names(self.paths.attempts))
        return self.names_of(recorded)

    def names_of(self, attempts: Iterable[str]) -> OwnedNames:
        """The names of the files that these attempts have written for this generation."""
        return OwnedNames(self.paths.key_hash, self.paths.generation, frozenset(attempts))

    def staged_ids(self) -> set[str]:
        """Ids of the splits that are published."""
        return {id_of(name) for name in self.store.names(self.paths.staged_folder)}

    def staged(self, split_ids: Sequence[str]) -> list[Staged]:
        """The published records of these splits, which must be published.

        :raises RecordsRemovedError: if they were, and were cleaned up.
        :raises DiscardedError: if that is because the generation was discarded.
        """
        try:
            records = self.store.read_many([self.paths.staged(split_id) for split_id in split_ids], Staged)
        except ObjectGoneError:
            self.require_not_removed()
            raise
        for split_id, record in zip(split_ids, records, strict=True):
            if record.split != split_id or not is_writer(record.writer) or not record.rejects_its_own:
                raise self._altered(self.paths.staged(split_id), f"is about the split {record.split!r} of {record.writer!r}")
        return records

    def publish(self, staged: Staged) -> bool:
        """Publish a written split. The first publication wins (I3).

        :returns: True if ``staged`` is the published record, False if another attempt's is.
        """
        return self.store.create(self.paths.staged(staged.split), staged)

    def require_complete(self, plan: Plan) -> None:
        """Check that every split of ``plan`` is staged.

        :raises NotSealedError: if not.
        """
        ids = {split.id for split in plan.splits}
        missing = ids - self.staged_ids()
        if missing:
            raise NotSealedError(f"{len(missing)} of {len(ids)} splits of the key {self.key.value!r} are not staged yet.")

    def sealed(self) -> Seal | None:
        """The newest seal, or what stands in its place once its records are removed; None before there is one."""
        return self.newest_seal() or self.compacted()

    def newest_seal(self) -> Seal | None:
        """The newest seal itself, for whoever knows that nothing of this generation is committed; None before there is one."""
        seals = self.seals()
        return seals[-1] if seals else None

    def seals(self) -> list[Seal]:
        """All seals, in their order."""
        seals: list[Seal] = []
        while (seal := self.store.read(self.paths.seal(len(seals) + 1), Seal)) is not None:
            seals.append(seal)
        return seals

    # -- committing and discarding ------------------------------------------------------------------------------------

    @property
    def member(self) -> Member:
        """This generation as a member of a commit group."""
        return Member(key=self.key.value, generation=self.header.generation)

    def committed(self) -> Commit | None:
        """The commit record. None does not prove the contrary: the table's history does."""
        return self.store.read(self.paths.commit, Commit)

    def record(self, commit: Commit) -> Commit:
        """Record a commit that the table's history shows. The first record stays."""
        if self.store.create(self.paths.commit, commit):
            return commit
        recorded = self.committed()
        if recorded is None:
            raise self.store.vanished(self.paths.commit)
        if (recorded.group, recorded.commit_id) != (commit.group, commit.commit_id):
            raise CorruptObjectError(
                f"The key {self.key.value!r} is recorded as committed under the number {recorded.commit_id}, and the table "
                f"shows it under {commit.commit_id}. One of the two was restored from elsewhere; nothing was changed."
            )
        return recorded

    def discard(self, reason: str, *, freed: bool = False) -> None:
        """Put the tombstone: from now on this generation is not committed. Deletes nothing.

        :param freed: see ``Tombstone``.
        """
        self.store.create(self.paths.discard, Tombstone(discarded_at=now(), reason=reason, freed=freed))

    def discarded(self) -> Tombstone | None:
        """The tombstone, or None."""
        return self.store.read(self.paths.discard, Tombstone)

    def require_live(self) -> None:
        """Refuse to go on with a discarded generation.

        :raises DiscardedError: saying when and why it was discarded.
        """
        tombstone = self.discarded()
        if tombstone is not None:
            raise DiscardedError(
                f"Generation {self.header.generation} of the key {self.key.value!r} was discarded at "
                f"{tombstone.discarded_at:%Y-%m-%d %H:%M:%S} UTC ({tombstone.reason}) and is not committed any more. Use the "
                "reference that the newer stage run returned."
            )

    # -- removing records ---------------------------------------------------------------------------------------------

    def compact(self, seal: Seal) -> Compact:
        """Put what stays of a committed generation, before the first of its records is removed. Removes nothing.

        :param seal: its newest seal.
        """
        facts = {name: getattr(seal, name) for name in seal.__struct_fields__} | {"manifests": ()}
        attempts = tuple(sorted(self.owned_names().attempts))
        compact = Compact(**facts, compacted_at=now(), sealed=seal.digest, attempts=attempts)
        if self.store.create(self.paths.compact, compact):
            return compact
        first = self.compacted()
        if first is None:
            raise self.store.vanished(self.paths.compact)
        return first

    def compacted(self) -> Compact | None:
        """The compact record of a generation whose records a sweep has removed, or is about to remove; None of any other."""
        return self.store.read(self.paths.compact, Compact)

    def require_not_removed(self) -> None:
        """Say why a record is not there, if it was there and a clean-up has removed it.

        :raises RecordsRemovedError: if the generation is committed.
        :raises DiscardedError: if it was discarded.
        """
        self.require_not_compacted()
        self.require_live()

    def require_not_compacted(self) -> None:
        """Refuse what needs the records of a generation, if they are removed or about to be.

        :raises RecordsRemovedError: saying when they were.
        """
        compact = self.compacted()
        if compact is not None:
            raise RecordsRemovedError(
                f"The records of generation {self.header.generation} of the key {self.key.value!r}, which is committed to "
                f"{self.header.table.identifier}, were cleaned up at {compact.compacted_at:%Y-%m-%d %H:%M:%S} UTC. That it is "
                "committed, and with how many rows, is still known. What it has read and which files it has staged is not, so that "
                "it cannot be replaced or compared any more. Nothing was changed. To write it anew, remove its rows from the table "
                "and use another idempotence key; to keep records for longer, raise older_than of the clean-up."
            )

    def _altered(self, name: str, what: str) -> CorruptObjectError:
        return CorruptObjectError(
            f"Object {name} in the checkpoint store {self.store.uri} {what}, as no task writes it. The store was altered; nothing "
            f"was changed. Redo the write: {how_to_restart(self.header)}."
        )
