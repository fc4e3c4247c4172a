"""What a retry of the stage would do now, in a sentence or two, by the state of its newest generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.restart import run_again
from airflow_ckpt_provider.checkpoint.state import State

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.overview.facts import Summary


def next_attempt(checkpoint: Checkpoint, found: Summary, *, staged: int) -> str:
    """What the next attempt does, if source and code are as they were.

    :param found: the summary of the generation.
    :param staged: splits of its plan that are staged.
    """
    header = checkpoint.header
    again = run_again(header)
    settled = {
        State.COMMITTED: "A retry verifies the commit and writes nothing. No Spark is started.",
        State.UNDONE: f"It was undone. A retry opens generation {header.generation + 1}, and writes everything anew.",
        State.FREED: "A retry computes nothing: all tasks that have read the rows are done.",
        State.DISCARDED: f"It was given up. A retry opens generation {header.generation + 1}, and writes everything.",
        State.SEALED: "A retry looks whether all staged files are there, writes nothing, and starts no Spark."
        + (f" To land the {found.rows or 0:,} rows, run the commit." if found.lands else ""),
    }
    if found.state in settled:
        return settled[found.state]
    if found.state is None:
        return "What a retry does cannot be told, because something in the store cannot be read."
    if found.splits is None:
        return f"A retry plans the write and stages all of it. {again}, if no attempt is running."
    return (
        f"A retry keeps {staged:,} of {found.splits:,} splits and writes {found.splits - staged:,}. {again}, if no attempt is "
        "running."
    )
