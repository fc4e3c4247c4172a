"""What the operators tell Airflow's metrics, under names that begin with ``checkpoints.``; ``docs/metrics.md`` lists them.

Decision: the only tags are the table format and the mode. Keys, tables and runs are as many as there are writes, and a system for
metrics keeps a series for each value of a tag; Airflow's own tags of a task are not repeated.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk.observability import stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.documents import Header, Seal
    from airflow_ckpt_provider.write.commit_loop import CommitTries
    from airflow_ckpt_provider.write.groups import Settled
    from airflow_ckpt_provider.write.recovery import TakenUp


def _tags(header: Header) -> dict[str, str]:
    return {"format": header.table.format, "mode": header.mode}


def sealed(header: Header, seal: Seal, taken_up: TakenUp) -> None:
    """Tell what a stage has written, and what earlier attempts saved it."""
    tags = _tags(header)
    stats.incr("checkpoints.stage.splits_written", seal.splits - taken_up.splits, tags=tags)
    stats.incr("checkpoints.stage.splits_recovered", taken_up.splits, tags=tags)
    stats.incr("checkpoints.stage.bytes_saved", taken_up.bytes, tags=tags)
    stats.incr("checkpoints.stage.seconds_saved", round(taken_up.seconds), tags=tags)


def reused(header: Header) -> None:
    """Tell that a stage had nothing to do: its key was committed, or all who read its rows were done."""
    stats.incr("checkpoints.stage.reused", tags=_tags(header))


def tried(header: Header, tries: CommitTries) -> None:
    """Tell what it took to land a commit, or to give it up."""
    stats.incr("checkpoints.commit.tries", tries.tries, tags=_tags(header))
    stats.incr("checkpoints.commit.conflicts", tries.conflicts, tags=_tags(header))


def settled(members: Sequence[Settled]) -> None:
    """Tell of one commit that has landed, and how long its rows had been staged before; nothing if that was earlier.

    :param members: of the commit.
    """
    landed = [member for member in members if member.landed_now and member.commit.commit_id is not None]
    if not landed:
        return
    tags = _tags(landed[0].checkpoint.header)
    oldest = min(member.seal.sealed_at for member in landed)
    stats.incr("checkpoints.commit.landed", tags=tags)
    stats.timing("checkpoints.commit.staged_age", max(timedelta(0), landed[0].commit.committed_at - oldest), tags=tags)
