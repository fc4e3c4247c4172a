"""(v) The same slow function of rows by DataChain, clean and after a kill."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.environments import python_with
from benchmarks.pieces import CALL_S, KILLED_AT, SAVE_S, SCHEMA, SPLITS, stage_once
from benchmarks.processes import tree
from benchmarks.report import Line, spread
from benchmarks.stage import MASTER, place

if TYPE_CHECKING:
    from benchmarks.stage import Place

#: Rows of a batch that are tried; the fastest clean run has the best one.
BATCHES = (100, 1000)

NOTE = (
    f"(v) The function of (u), over the same Parquet files, on {MASTER} and by DataChain 0.62.0 with `parallel=2` in an "
    "environment of its own; wall time of whole processes, from their start to their end, so that it has the start of Spark. After "
    f"the crash: of the process that goes on, once the first was killed with {KILLED_AT:.0%} of the rows computed. DataChain has "
    f"the batch size, of {' and '.join(map(str, BATCHES))}, with which it is faster; this project saves every {SAVE_S:g} s."
)

_SCRIPT = Path(__file__).parent / "datachain_map.py"


def measure(cache: Path, rows: int, repeats: int) -> list[Line]:
    """Lines of the clean runs, and of those after a kill."""
    python = python_with(cache, "datachain")
    ours: dict[str, list[float]] = {"clean": [], "crashed": []}
    others: dict[str, list[float]] = {"clean": [], "crashed": []}
    with place(cache) as here:
        folder = here.root / "in"
        folder.mkdir()
        for number in range(SPLITS):
            ids = range(number * rows // SPLITS, (number + 1) * rows // SPLITS)
            pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / f"{number}.parquet")
        here.create_table("made", SCHEMA)
        batch = min(BATCHES, key=lambda size: _datachain(python, here, f"try-{size}", size, rows))
        for number in range(repeats):
            ours["clean"].append(_ours(here, f"clean-{number}", rows))
            others["clean"].append(_datachain(python, here, f"clean-{number}", batch, rows))
            stage_once(here, f"killed-{number}", SAVE_S, int(KILLED_AT * rows))
            ours["crashed"].append(_ours(here, f"killed-{number}", rows))
            _datachain(python, here, f"killed-{number}", batch, rows, int(KILLED_AT * rows))
            others["crashed"].append(_datachain(python, here, f"killed-{number}", batch, rows))
    what = f"(v) {rows:,} rows of {1000 * CALL_S:.0f} ms"
    return [
        Line(
            f"{what}, {name}",
            f"{spread(ours[kind], 1)} s",
            f"DataChain, batches of {batch}: {spread(others[kind], 1)} s",
            statistics.median(one / other for one, other in zip(ours[kind], others[kind], strict=True)),
            target if rows >= 20_000 else None,
        )
        for kind, name, target in (("clean", "clean", 1.2), ("crashed", f"after a kill at {KILLED_AT:.0%}", 1.0))
    ]


def _ours(here: Place, key: str, rows: int) -> float:
    start = time.perf_counter()
    found = stage_once(here, key, SAVE_S)["rows"]
    seconds = time.perf_counter() - start
    if found != rows:
        raise RuntimeError(f"{rows} rows must be sealed, and {found} are.")
    return seconds


def _datachain(python: Path, here: Place, name: str, batch: int, rows: int, die_at: int | None = None) -> float:
    """Seconds of a process of DataChain, which is killed with all that it started once so many rows are computed.

    :param name: of the folder in which it keeps what it has done.
    """
    home, log = here.root / f"datachain-{name}", here.root / f"datachain-{name}.log"
    log.touch()
    command = [str(python), str(_SCRIPT), str(here.root / "in"), str(log), str(CALL_S), str(batch)]
    # This folder has modules of names that DataChain's own dependencies have.
    environment = os.environ | {"DATACHAIN_ROOT_DIR": str(home), "PYTHONSAFEPATH": "1", "PYTHONPATH": "", "DO_NOT_TRACK": "1"}
    start = time.perf_counter()
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    while die_at is not None and log.read_bytes().count(b"\n") < die_at:
        if child.poll() is not None:
            raise RuntimeError("The run of DataChain that was to be killed came to its end.")
        time.sleep(0.01)
    if die_at is not None:
        for pid in reversed(tree(child.pid)):
            os.kill(pid, signal.SIGKILL)
        child.wait()
        return time.perf_counter() - start
    said, _ = child.communicate()
    if child.returncode or said.split()[-1:] != [str(rows)]:
        raise RuntimeError(f"DataChain ended with {child.returncode} and said {said[-200:]!r}; {rows} rows must be saved.")
    return time.perf_counter() - start
