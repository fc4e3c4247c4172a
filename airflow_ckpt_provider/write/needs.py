"""What the records of a committed generation are still needed for. Whatever comes to need them adds a rule to ``NEEDS``.

A sweep removes the records of a committed generation, and with them whatever only these records lead to, if none of the rules gives
a reason to keep them. What is asked of such a generation afterwards, its compact record answers.

Rules look at what one listing of the store showed and at headers, which never change. So what they are told may be a while ago; a
rule has to hold for whatever can have come since, or look for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
from airflow_ckpt_provider.write.membership import group_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Commit, Member
    from airflow_ckpt_provider.checkpoint.inventory import Inventory


@dataclass(frozen=True)
class Candidate:
    """A committed generation whose records are about to be removed.

    :param commit: as it is recorded, or as the table shows it.
    :param later: later generations of its key.
    :param without_records: numbers of those of them whose records are removed.
    :param settled: groups of which each member is known to be recorded as committed, in the whole sweep.
    """

    checkpoint: Checkpoint
    commit: Commit
    later: Sequence[Checkpoint]
    without_records: frozenset[int]
    inventory: Inventory
    settled: set[str] = field(default_factory=set)


class Need(Protocol):
    """A rule that tells what the records of a generation are still needed for."""

    def reason(self, candidate: Candidate) -> str | None:
        """Why its records have to stay, to follow "because", or None.

        :raises CheckpointError: if that cannot be told: they stay, too.
        """
        ...


class Replaced:
    """A replacement takes away exactly the files that the generation has committed, and may be replaced itself."""

    def reason(self, candidate: Candidate) -> str | None:
        """The later generation that takes its place, until the records of that one are removed."""
        replaced = candidate.checkpoint.header.generation
        replacements = [later.header.generation for later in candidate.later if later.header.replaces == replaced]
        if not replacements or candidate.without_records.intersection(replacements):
            return None
        return f"generation {replacements[-1]} takes its place, and needs to know what it has committed"


class UnsettledGroup:
    """A commit that was begun with several is recorded for each, by whoever comes first, from what all have sealed."""

    def reason(self, candidate: Candidate) -> str | None:
        """The first member that is not recorded as committed."""
        group = group_of(candidate.checkpoint)
        if group is None or group.id in candidate.settled:
            return None
        for member in group.members:
            if member != candidate.checkpoint.member and not _is_committed(candidate, member):
                return (
                    f"it was committed together with the key {member.key!r}, generation {member.generation}, which is not recorded "
                    "as committed yet: run the commit task of that"
                )
        candidate.settled.add(group.id)
        return None


class LandedNothing:
    """A write that had nothing to commit is looked at again when its stage is cleared: there may be something to read by then."""

    def reason(self, candidate: Candidate) -> str | None:
        """That no snapshot came of it; its records are few."""
        if candidate.commit.commit_id is not None:
            return None
        return "its commit changed nothing, and its stage compares what it has read with what there is to read when it is cleared"


#: All rules. Ledgers of what increments have taken in, and what an undo has to know, are to be rules of their own here. Rows that a
#: later stage of a chain reads are no commit's: ``freeing`` has their rules.
NEEDS: tuple[Need, ...] = (LandedNothing(), Replaced(), UnsettledGroup())


def reason_to_keep(candidate: Candidate) -> str | None:
    """The first reason why the records of a generation have to stay; None if there is none."""
    return next((reason for need in NEEDS if (reason := need.reason(candidate)) is not None), None)


def _is_committed(candidate: Candidate, member: Member) -> bool:
    """Whether a commit of a member is recorded; nothing takes that record away."""
    paths = CheckpointPaths(IdempotenceKey(member.key).hash, member.generation)
    if not candidate.inventory.covers(paths.key_hash):
        return candidate.checkpoint.store.exists(paths.commit)
    objects = candidate.inventory.get(paths.key_hash, paths.generation)
    return objects is not None and objects.is_committed
