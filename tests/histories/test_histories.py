"""Whatever is done in whatever order: the table holds what a model of it holds, and only what is due is refused.

The histories are the same in each run. ``HISTORIES=2000 pytest tests/histories`` plays that many others, chosen anew.
"""

from __future__ import annotations

import os

from histories.machine import Histories
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

#: Without it, few enough for every run of the suite.
MORE = os.environ.get("HISTORIES")


def test_any_history_of_writes_crashes_and_other_hands_is_that_of_the_model():
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=int(MORE or 100),
            stateful_step_count=12,
            derandomize=MORE is None,
            database=None,
            deadline=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
