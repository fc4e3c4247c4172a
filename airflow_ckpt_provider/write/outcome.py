"""What a commit has come to: in the words of its table's format, for logs and references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import State
from airflow_ckpt_provider.checkpoint.reference import CommitFacts, reference
from airflow_ckpt_provider.tables.format import format_of

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Commit, Connections
    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.write.groups import Settled


def commit_word(checkpoint: Checkpoint) -> str:
    """What a commit is called in the table format of a checkpoint."""
    return format_of(checkpoint.header.table.format).commit_is


def commit_facts(checkpoint: Checkpoint, commit: Commit, *, landed_now: bool) -> CommitFacts:
    """The commit of a checkpoint, in the words of its table format."""
    facts = CommitFacts(committed_at=commit.committed_at.isoformat(), landed_now=landed_now)
    if commit_word(checkpoint) == "version":
        facts["version"] = commit.snapshot_id
    else:
        facts["snapshot_id"] = commit.snapshot_id
    return facts


def committed_reference(member: Settled, pointer: str | Reference, connections: Connections) -> Reference:
    """The reference to a checkpoint that a commit has landed, now or before.

    :param pointer: what the commit was given.
    :param connections: as whoever commits says.
    """
    map_index, instances = (None, None) if isinstance(pointer, str) else (pointer.get("map_index"), pointer.get("instances"))
    committed = reference(
        member.checkpoint, member.seal, State.COMMITTED,
        recovered=member.seal.splits, written=0, map_index=map_index, instances=instances, connections=connections,
    )  # fmt: skip
    committed["commit"] = commit_facts(member.checkpoint, member.commit, landed_now=member.landed_now)
    return committed
