"""Green means readable, whatever others do between any two steps, in both formats.

``FOREIGN_HISTORIES=2000 pytest tests/protocol/histories/test_foreign_hands.py`` plays that many others, chosen anew, and makes one
that fails as short as it gets.
"""

from __future__ import annotations

import os

import pytest
from protocol.histories.foreign_machine import ForeignHandsOnIceberg, ForeignHandsOnLance
from protocol.histories.playing import play


@pytest.mark.parametrize("machine", [ForeignHandsOnIceberg, ForeignHandsOnLance])
def test_green_means_that_exactly_these_rows_are_readable_once(machine):
    play(machine, few=25, others=os.environ.get("FOREIGN_HISTORIES"))
