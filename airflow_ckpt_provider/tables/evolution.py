"""Schema evolution: letting a table's columns grow, against commits of other writers."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import RetryableError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

#: Times that an evolution is tried against other commits.
_TRIES = 10


def evolved(swap: Callable[[], list[str]], conflict: type[Exception], table: str) -> list[str]:
    """Let a table's columns grow, or find that they have grown.

    :param swap: one try: looks, swaps, and returns what was changed.
    :param conflict: what it raises if another writer committed meanwhile.
    :param table: its name, for messages.
    :returns: what was changed, one readable line each.
    :raises RetryableError: if other writers commit all the time.
    """
    for number in range(1, _TRIES + 1):
        try:
            return swap()
        except conflict as error:
            # Perhaps it was the same evolution.
            last = error
        time.sleep(random.uniform(0.05, 0.2) * number)  # noqa: S311
    raise RetryableError(
        f"The columns of {table} could not be changed in {_TRIES} tries, because others commit to it all the time: "
        f"{first_line(last)}. Nothing was changed; a retry tries again."
    ) from last
