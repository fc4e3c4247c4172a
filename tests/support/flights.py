"""The demonstration: runs the example DAG on a real scheduler and says in a few lines what happened.

Run by ``python3 dev.py demo``; its facts are asserted by the tests.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from support.live_airflow import LiveAirflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.live_airflow import DagRun

EXAMPLES = Path(__file__).parents[2] / "example_dags"


@dataclass(frozen=True)
class Outcome:
    """What one run of the example did."""

    tries: list[str]
    splits: int
    recovered: int
    written: int
    rows_recovered: int
    rows_written_again: int
    rows_in_table: int
    snapshots: int
    attempts: int


def run_flights(home: Path, report: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run the example in an Airflow of its own below ``home``."""
    with LiveAirflow(home, EXAMPLES, report) as airflow:
        run = airflow.trigger("example_flights")
        found = outcome(airflow, run)
        report("Looking into the table")
    return found


def outcome(airflow: LiveAirflow, run: DagRun) -> Outcome:
    """What a run of the example did, when it has ended."""
    if airflow.wait_for(run, 500) != "success":
        raise RuntimeError(f"The run ended as {run.state}. Task logs: {airflow.home}/logs")
    return _outcome(airflow.home, run.returned("stage_flights"), run.tries("stage_flights"))


def _outcome(home: Path, reference: dict, tries: list[str]) -> Outcome:  # type: ignore[type-arg]
    import pyarrow.parquet as pq
    from pyiceberg.catalog import load_catalog

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore

    place = home / "checkpoints"
    table = load_catalog("embedded", type="sql", uri=f"sqlite:///{place}/catalog.db").load_table(reference["table"])
    store = CheckpointStore.at(reference["store"])
    checkpoint = Checkpoint.at(store, IdempotenceKey(reference["idempotence_key"]), reference["generation"])
    staged = checkpoint.staged(sorted(checkpoint.staged_ids()))
    attempts = [attempt.id for attempt in checkpoint.attempts()]
    # Every data file names its split and its attempt, so the disk tells what the last attempt wrote a second time.
    stems = [checkpoint.paths.file_stem(one.split, attempts[-1]) for one in staged if not one.writer.startswith(attempts[-1])]
    again = [path for stem in stems for path in (place / "warehouse").rglob(f"{stem}*.parquet")]
    return Outcome(
        tries=tries,
        splits=reference["splits"]["total"],
        recovered=reference["splits"]["recovered"],
        written=reference["splits"]["written"],
        rows_recovered=sum(one.rows for one in staged if one.writer.startswith(attempts[0])) if len(attempts) > 1 else 0,
        rows_written_again=sum(pq.read_metadata(path).num_rows for path in again),
        rows_in_table=table.scan().count(),
        snapshots=len(table.snapshots()),
        attempts=len(attempts),
    )


def main() -> int:
    """Run the demonstration and print its summary."""
    started = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="airflow-ckpt-demo-"))

    def report(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", flush=True)

    report(f"A fresh Airflow in {home}; it is removed at the end")
    found = run_flights(home, report)
    print(
        f"""
  The stage was killed with SIGKILL part-way on try 1, and retried by the scheduler:

    tries of the stage            {" -> ".join(found.tries)}
    splits in the plan            {found.splits}
    splits recovered on try 2     {found.recovered}
    splits written on try 2       {found.written}
    rows recovered                {found.rows_recovered:,}
    rows written again            {found.rows_written_again:,}
    rows in the table             {found.rows_in_table:,}
    snapshots in the table        {found.snapshots}
""",
        flush=True,
    )
    good = found.rows_in_table == 336_776 and found.snapshots == 1 and found.recovered > 0
    print("  Every flight is there once, in one snapshot." if good else "  THIS IS NOT WHAT SHOULD HAVE HAPPENED.", flush=True)
    if good:
        shutil.rmtree(home)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
