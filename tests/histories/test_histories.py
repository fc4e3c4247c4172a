"""Whatever is done in whatever order: the table holds what a model of it holds, and only what is due is refused.

The histories are the same in each run, and the first that fails is shown as it was played. ``HISTORIES=2000 pytest
tests/histories`` plays that many others, chosen anew, and makes one that fails as short as it gets, which takes minutes.
"""

from __future__ import annotations

import os

from histories.machine import Histories
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support import readers

#: Without it, few enough for every run of the suite.
MORE = os.environ.get("HISTORIES")


def test_any_history_of_writes_crashes_and_other_hands_is_that_of_the_model():
    # Every history has files of its own: DuckDB would keep them all in memory, and read none of them a second time.
    readers._duckdb().execute("set enable_external_file_cache = false")
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=int(MORE or 150),
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
