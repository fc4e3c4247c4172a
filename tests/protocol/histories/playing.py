"""How random histories are played: the same ones in each run of the suite, or many others that are made short if they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support import readers

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine


def play(machine: type[RuleBasedStateMachine], few: int, others: str | None) -> None:
    """Play histories of a machine.

    :param few: how many in every run of the suite.
    :param others: how many others, chosen anew, to play instead.
    """
    # Every history has files of its own: DuckDB would keep them all in memory, and read none of them a second time.
    readers._duckdb().execute("set enable_external_file_cache = false")
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(others or few),
            stateful_step_count=12,
            phases=(Phase.generate, Phase.shrink) if others else (Phase.generate,),
            derandomize=not others,
            report_multiple_bugs=False,
            database=None,
            deadline=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
