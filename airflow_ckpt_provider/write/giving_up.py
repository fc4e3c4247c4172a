"""Giving up a write that is not committed: its next attempt opens a new generation and writes everything anew.

A tombstone is all that is put, and nothing is deleted: files go with a clean-up. What has landed is not given up, and neither is
what a commit that was begun could still land.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import RestartRefusedError
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.write import commits
from airflow_ckpt_provider.write.cleanup import unfinished
from airflow_ckpt_provider.write.freeing import being_read, give_up_read, why_kept
from airflow_ckpt_provider.write.membership import group_of
from airflow_ckpt_provider.write.outcome import commit_word

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.tables.table import Table


def require_can_give_up(checkpoint: Checkpoint, table: Table) -> None:
    """Refuse to give up what has landed, may land, or is being read.

    :param table: whose history is asked if a commit was ever begun.
    :raises DiscardedError: if it is given up already.
    :raises RestartRefusedError: saying what stands against it.
    """
    header = checkpoint.header
    subject = f"Generation {header.generation} of the key {header.key!r} is not given up"
    checkpoint.require_live()
    if not mode_type(header).lands:
        kept = why_kept(checkpoint, lambda _: (), discard=True)
        if kept:
            raise RestartRefusedError(f"{subject}: {kept}. Let that one end first.")
        return
    commit = commits.landed(checkpoint, table)
    if commit is not None:
        landed = f" as {commit_word(checkpoint)} {commit.commit_id}" if commit.commit_id else ""
        raise RestartRefusedError(
            f"{subject}: it is committed to {header.table.identifier}{landed}. To write it anew in its place, set "
            'on_rerun="replace" on the stage and clear it and its commit.'
        )
    group = group_of(checkpoint)
    if group is not None:
        raise RestartRefusedError(
            f"{subject}: a commit of it to {header.table.identifier} was begun at {group.bound_at:%Y-%m-%d %H:%M:%S} UTC, and "
            "could still land. Clear its commit task, which finds out."
        )


def give_up(checkpoint: Checkpoint, table: Table, why: str) -> None:
    """Put the tombstone of a write that is not committed.

    :param why: as it is told to whoever comes after.
    :raises RestartRefusedError: as ``require_can_give_up``; or if a commit of it was begun meanwhile, which lands its rows or ends
        at the tombstone.
    """
    require_can_give_up(checkpoint, table)
    header = checkpoint.header
    if not mode_type(header).lands:
        left = give_up_read(checkpoint, lambda _: (), discard=True) or being_read(checkpoint)
    else:
        checkpoint.discard(why)
        # In this order: a commit that begins after the tombstone sees it, and one that began before is seen here.
        left = unfinished(checkpoint, discard=True)
    if left:
        raise RestartRefusedError(
            f"Generation {header.generation} of the key {header.key!r} was given up at the same moment at which {left}. If a "
            "commit of it has landed, it counts: clear the commit task, which finds out."
        )
