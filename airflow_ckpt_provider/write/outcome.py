"""A commit in the words of its table's format, for logs and references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.reference import CommitFacts
from airflow_ckpt_provider.tables.format import format_of

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Commit


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
