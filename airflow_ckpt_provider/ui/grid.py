"""The splits of a plan as the browser draws them: one letter each, so that ten thousand of them are ten kilobytes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.overview.facts import SplitState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.overview.facts import SplitFacts

#: The letter of each state, in the order of the legend.
LETTERS = {SplitState.RECOVERED: "r", SplitState.WRITTEN: "w", SplitState.BEGUN: "b", SplitState.MISSING: "m"}

#: What the legend says of each.
MEANINGS = {
    SplitState.RECOVERED: "staged by an earlier attempt",
    SplitState.WRITTEN: "staged by the newest attempt",
    SplitState.BEGUN: "saved in part",
    SplitState.MISSING: "not staged yet",
}


class Legend(NamedTuple):
    """One line of the legend: how many splits are in a state."""

    state: SplitState
    number: int
    meaning: str


def letters(splits: Sequence[SplitFacts]) -> str:
    """The states of all splits, in the order of the plan."""
    return "".join(LETTERS[split.state] for split in splits)


def legend(splits: Sequence[SplitFacts]) -> list[Legend]:
    """How many splits there are of each state."""
    numbers = Counter(split.state for split in splits)
    return [Legend(state, numbers[state], meaning) for state, meaning in MEANINGS.items()]
