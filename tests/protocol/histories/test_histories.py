"""Whatever is done in whatever order: the table holds what a model of it holds, and only what is due is refused.

The histories are the same in each run, and the first that fails is shown as it was played. ``HISTORIES=2000 pytest
tests/protocol/histories/test_histories.py`` plays that many others, chosen anew, and makes one that fails as short as it gets,
which takes minutes.
"""

from __future__ import annotations

import os

from protocol.histories.machine import Histories
from protocol.histories.playing import play


def test_any_history_of_writes_crashes_and_other_hands_is_that_of_the_model():
    play(Histories, few=25, others=os.environ.get("HISTORIES"))
