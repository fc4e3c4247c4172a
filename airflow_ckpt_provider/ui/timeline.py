"""Attempts on a common axis of time: where each bar begins and ends, in thousandths of its width."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.overview.facts import AttemptFacts

#: The shortest bar that can be seen.
SHORTEST = 6.0


class Bar(NamedTuple):
    """An attempt, and its bar from its start to the last split that it has staged, or to now while it may be running."""

    attempt: AttemptFacts
    start: float
    width: float
    seconds: float
    open: bool


def bars(attempts: Sequence[AttemptFacts], *, running: bool) -> list[Bar]:
    """A bar for each attempt.

    :param running: whether the newest attempt may still be staging.
    """
    if not attempts:
        return []
    ends = [attempt.last_staged_at or attempt.started_at for attempt in attempts]
    if running:
        ends[-1] = max(ends[-1], datetime.now(UTC))
    first = min(attempt.started_at for attempt in attempts)
    whole = max(1.0, (max(ends) - first).total_seconds())

    def bar(attempt: AttemptFacts, end: datetime, *, is_open: bool) -> Bar:
        seconds = max(0.0, (end - attempt.started_at).total_seconds())
        width = max(SHORTEST, 1000 * seconds / whole)
        start = min(1000 * (attempt.started_at - first).total_seconds() / whole, 1000 - width)
        return Bar(attempt, round(max(0.0, start), 1), round(width, 1), seconds, is_open)

    last = len(attempts) - 1
    pairs = enumerate(zip(attempts, ends, strict=True))
    return [bar(attempt, end, is_open=running and number == last) for number, (attempt, end) in pairs]
