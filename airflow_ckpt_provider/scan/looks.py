"""Looks at what others change meanwhile: how many there are, and the waits between them."""

from __future__ import annotations

import random
import time

#: Looks, and the wait after the first of them, in seconds.
LOOKS, _FIRST_WAIT_S = 20, 0.01


def wait_for_look(number: int) -> None:
    """Wait for a moment after so many looks at what others have changed meanwhile."""
    time.sleep(_FIRST_WAIT_S * number * random.uniform(0.3, 1.0))  # noqa: S311
