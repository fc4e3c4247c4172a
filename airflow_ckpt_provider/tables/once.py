"""The loop that every commit goes through: look, swap, and on any error look again. No library's own retry is trusted with it."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import CommitRefusedError, OutcomeUnknownError, RetryableError, first_line
from airflow_ckpt_provider.tables.protocol import Landed

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_ckpt_provider.checkpoint.documents import Group

#: How long one call keeps trying, in seconds, and the waits between its tries.
PATIENCE_S, FIRST_WAIT_S, LONGEST_WAIT_S = 600.0, 0.05, 5.0

#: Times that growing is tried against other commits.
_GROWTH_TRIES = 10


def land(
    swap: Callable[[int], Landed | Exception],
    look: Callable[[], Landed | None],
    what: str,
    refusal: Callable[[Exception], str | None] = lambda _: None,
) -> Landed:
    """Swap a commit in, or find that it has landed.

    :param swap: one try, told its number from 1 on: looks, swaps, and returns the error if the answer was not yes. Raises what
        no other try can change.
    :param look: loads the table and looks for the commit.
    :param what: the commit and its table, for messages, such as ``the key 'a' to shop.orders``.
    :param refusal: what helps with an answer that no second try changes; None for any other.
    :raises CommitRefusedError: for such an answer.
    :raises OutcomeUnknownError: if there was no usable answer for ``PATIENCE_S`` seconds.
    """
    end = time.monotonic() + PATIENCE_S
    tries = 0
    while True:
        tries += 1
        try:
            outcome = swap(tries)
        except RetryableError as error:
            # Once a swap was tried, a table that does not answer for a moment is asked again.
            if tries == 1:
                raise
            outcome = error
        if isinstance(outcome, Landed):
            return outcome
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(tries, 8)) * random.uniform(0.3, 1.0)  # noqa: S311
        advice = refusal(outcome)
        if advice is not None or time.monotonic() + wait > end:
            break
        time.sleep(wait)
    said = f"{type(outcome).__name__}: {first_line(outcome)}"
    landed = look()
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


def grow(swap: Callable[[], list[str]], conflict: type[Exception], table: str) -> list[str]:
    """Let a table's columns grow, or find that they have grown.

    :param swap: one try: looks, swaps, and returns what was changed.
    :param conflict: what it raises if somebody else committed meanwhile.
    :param table: its name, for messages.
    :returns: what was changed, one readable line each.
    :raises RetryableError: if others commit all the time.
    """
    for number in range(1, _GROWTH_TRIES + 1):
        try:
            return swap()
        except conflict as error:
            # Perhaps it was the same growth.
            last = error
        time.sleep(random.uniform(0.05, 0.2) * number)  # noqa: S311
    raise RetryableError(
        f"The columns of {table} could not be changed in {_GROWTH_TRIES} tries, because others commit to it all the time: "
        f"{first_line(last)}. Nothing was changed; a retry tries again."
    ) from last


def keys_of(group: Group) -> str:
    """The keys of a group, for messages."""
    members = group.members
    return f"the key {members[0].key!r}" + (f" and {len(members) - 1} more" if len(members) > 1 else "")
