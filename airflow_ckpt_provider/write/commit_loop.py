"""The loop that every commit goes through: load, look, check, change, swap, and on any error look again.

Why it is exactly once, whatever a catalog or a library answers:

- a swap is made only on a state whose history was searched for the commit, and the format's swap fails if another commit came
  after that state;
- an error, whatever it says, is followed by a new load and a new search. A conflict is no proof of absence: a client that resends
  after a lost reply reports a conflict with our own commit. So no library's own retry is trusted with it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from airflow_ckpt_provider.exceptions import (
    CommitRefusedError,
    OutcomeUnknownError,
    RetryableError,
    TerminalError,
    first_line,
)
from airflow_ckpt_provider.tables.format import format_of
from airflow_ckpt_provider.tables.state import Landed
from airflow_ckpt_provider.write.looks import look_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_ckpt_provider.tables.state import GroupCommit, TableState
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.conflict_checks import ConflictChecks

#: How long one call keeps trying, in seconds, and the waits between its tries.
PATIENCE_S, FIRST_WAIT_S, LONGEST_WAIT_S = 600.0, 0.05, 5.0


@dataclass
class CommitTries:
    """What it took to land a commit, or to give it up.

    :param tries: how many swaps were tried; none if the commit was there already.
    :param conflicts: those that failed because another commit came first: the next look finds the table further on, without this
        commit in it.
    """

    tries: int = 0
    conflicts: int = 0
    _base: int | None = field(default=None, repr=False)

    def look(self, horizon: int) -> None:
        """Count a conflict if a swap was tried on an earlier state than this one, which does not show the commit."""
        if self._base is not None and horizon > self._base:
            self.conflicts += 1
        self._base = None

    def swap(self, horizon: int) -> None:
        """Count a swap on a state."""
        self.tries += 1
        self._base = horizon


#: Is told what a commit took once it has landed, or was given up.
TellTries: TypeAlias = "Callable[[CommitTries], None]"


def land(
    table: Table,
    commit: GroupCommit,
    checks: ConflictChecks,
    state: TableState | None = None,
    tell_tries: TellTries = lambda _: None,
) -> Landed:
    """Swap a commit in, or find that it has landed.

    :param checks: what is checked on each state that a swap is about to be made on; raises to stop.
    :param state: what the first try is made on, if the table was loaded a moment ago. Another commit that came since makes that
        swap fail, and the next try loads the table.
    :param tell_tries: told what it took, whatever comes of it.
    :raises CommitRefusedError: for an answer of the catalog that no second try changes.
    :raises OutcomeUnknownError: if there was no usable answer for ``PATIENCE_S`` seconds.
    :raises TerminalError: for what no second try changes.
    """
    counted = CommitTries()
    try:
        return _land(table, commit, checks, state, counted)
    finally:
        tell_tries(counted)


def _land(table: Table, commit: GroupCommit, checks: ConflictChecks, state: TableState | None, counted: CommitTries) -> Landed:
    end = time.monotonic() + PATIENCE_S
    tries = 0
    while True:
        tries += 1
        try:
            outcome = _tried(table, commit, checks, state, counted)
        except RetryableError as error:
            # Once a swap was tried, a table that does not answer for a moment is asked again.
            if tries == 1:
                raise
            outcome = error
        if isinstance(outcome, Landed):
            return outcome
        state = None
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(tries, 8)) * random.uniform(0.3, 1.0)  # noqa: S311
        advice = format_of(table.format).refusal(outcome)
        if advice is not None or time.monotonic() + wait > end:
            break
        time.sleep(wait)
    said = f"{type(outcome).__name__}: {first_line(outcome)}"
    what = f"{commit.keys} to {table.identifier}"
    landed = look_at(table, commit.first.table, lambda now: now.find(commit.group, commit.headers))
    if landed is not None:
        return landed
    if advice is not None:
        raise CommitRefusedError(
            f"The commit of {what} was refused: {said}. Nothing was changed, everything stays staged. {advice}, then clear "
            "the task."
        ) from outcome
    raise OutcomeUnknownError(
        f"The commit of {what} did not land in {tries} tries over {PATIENCE_S:.0f} s; the last error: {said}. "
        "Nothing is lost: retry the commit task. It looks into the table's history first and lands the commit once."
    ) from outcome


def _tried(
    table: Table, commit: GroupCommit, checks: ConflictChecks, state: TableState | None, counted: CommitTries
) -> Landed | Exception:
    """One try, on a state that did not go while it was looked at: what a swap raises is its outcome, and never looked at again."""
    outcome = None
    while outcome is None:
        outcome = look_at(table, commit.first.table, lambda now: _try(now, commit, checks, counted), state)
        state = None
    return outcome


def _try(state: TableState, commit: GroupCommit, checks: ConflictChecks, counted: CommitTries) -> Landed | Exception | None:
    """Find the commit in this state or swap it in; what the catalog raised if it did not say yes.

    :returns: None if preparing it has changed the table: whatever else was committed meanwhile, it has to be looked at.
    """
    landed = state.find(commit.group, commit.headers)
    if landed is not None:
        return landed
    counted.look(state.horizon)
    state.require_unchanged(commit)
    checks.require(state)
    try:
        if state.prepare(commit):
            return None
    except TerminalError:
        raise
    except Exception as error:  # noqa: BLE001 - as below
        return error
    change = state.change(commit)
    counted.swap(state.horizon)
    try:
        return change.swap()
    except TerminalError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, only the table's history knows the outcome
        return error
