"""Green means readable, whatever others do between any two steps, in both formats.

``FOREIGN_HISTORIES=2000 pytest tests/histories/test_foreign_hands.py`` plays that many others, chosen anew, and makes one that
fails as short as it gets.
"""

from __future__ import annotations

import os

import pytest
from histories.foreign_machine import ForeignHandsOnIceberg, ForeignHandsOnLance
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support import readers

#: Without it, few enough for every run of the suite.
MORE = os.environ.get("FOREIGN_HISTORIES")


@pytest.mark.parametrize("machine", [ForeignHandsOnIceberg, ForeignHandsOnLance])
def test_green_means_that_exactly_these_rows_are_readable_once(machine):
    readers._duckdb().execute("set enable_external_file_cache = false")
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(MORE or 100),
            stateful_step_count=12,
            phases=(Phase.generate, Phase.shrink) if MORE else (Phase.generate,),
            derandomize=not MORE,
            report_multiple_bugs=False,
            database=None,
            deadline=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
