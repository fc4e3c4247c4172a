"""What a commit has come to: in the words of its table's format, for logs and references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.reference import CommitFacts, reference
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.tables.format import format_of

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Commit, Connections, Seal
    from airflow_ckpt_provider.checkpoint.reference import Instances, Reference
    from airflow_ckpt_provider.write.groups import Settled


def commit_word(checkpoint: Checkpoint) -> str:
    """What a commit is called in the table format of a checkpoint."""
    return format_of(checkpoint.header.table.format).commit_is


def commit_facts(checkpoint: Checkpoint, commit: Commit, *, landed_now: bool) -> CommitFacts:
    """The commit of a checkpoint, in the words of its table format."""
    facts = CommitFacts(committed_at=commit.committed_at.isoformat(), landed_now=landed_now)
    if commit_word(checkpoint) == "version":
        facts["version"] = commit.commit_id
    else:
        facts["snapshot_id"] = commit.commit_id
    return facts


def committed_reference(
    checkpoint: Checkpoint,
    seal: Seal,
    commit: Commit,
    *,
    landed_now: bool,
    map_index: int | None = None,
    instances: Instances | None = None,
    connections: Connections | None = None,
) -> Reference:
    """The reference to a checkpoint that has landed.

    :param landed_now: by the task that makes the reference.
    :param map_index: see ``reference``, as ``instances`` and ``connections``.
    """
    committed = reference(
        checkpoint, seal, State.COMMITTED,
        recovered=seal.splits, written=0, map_index=map_index, instances=instances, connections=connections,
    )  # fmt: skip
    committed["commit"] = commit_facts(checkpoint, commit, landed_now=landed_now)
    return committed


def settled_reference(member: Settled, pointer: str | Reference, connections: Connections) -> Reference:
    """The reference to a checkpoint that a commit has landed, now or before.

    :param pointer: what the commit was given.
    :param connections: as whoever commits says.
    """
    map_index, instances = (None, None) if isinstance(pointer, str) else (pointer.get("map_index"), pointer.get("instances"))
    return committed_reference(
        member.checkpoint, member.seal, member.commit,
        landed_now=member.landed_now, map_index=map_index, instances=instances, connections=connections,
    )  # fmt: skip
