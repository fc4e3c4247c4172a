"""(u) A slow function of rows: what saving costs, and what is computed again after a kill."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.transforms import Map
from airflow_ckpt_provider.write.pieces import SaveEvery
from benchmarks import child
from benchmarks.processes import tree
from benchmarks.report import Line, spread
from benchmarks.stage import MASTER, Place, place, session, stage_on_spark

if TYPE_CHECKING:
    from benchmarks.child import Outcome

#: Seconds that the function takes for a row, and seconds between two pieces; splits; after which share of the rows it is killed.
CALL_S, SAVE_S, SPLITS, KILLED_AT = 0.005, 1.0, 2, 0.7

NOTE = (
    f"(u) `Map` of a function that sleeps {1000 * CALL_S:.0f} ms a row, {SPLITS} splits on {MASTER}; a process and a session "
    f"for each run; seconds from opening the checkpoint to the seal. Saved every {SAVE_S:g} s, 30 times as often as by default, "
    f"beside never. Killed: SIGKILL to all processes once {KILLED_AT:.0%} of the rows are computed, then a retry; what is computed "
    "again is counted in the function's own log, and its limit is what all tasks compute in one interval."
)

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "half", DoubleType()))


def measure(cache: Path, rows: int, repeats: int) -> list[Line]:
    """Lines of the clean runs and of the kills."""
    saved, plain, again = [], [], []
    with place(cache) as here:
        folder = here.root / "in"
        folder.mkdir()
        for number in range(SPLITS):
            ids = range(number * rows // SPLITS, (number + 1) * rows // SPLITS)
            pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / f"{number}.parquet")
        here.create_table("made", SCHEMA)
        for number in range(repeats):
            saved.append(stage_once(here, f"saved-{number}", SAVE_S)["seconds"])
            plain.append(stage_once(here, f"plain-{number}", 1e6)["seconds"])
            again.append(_killed(here, f"killed-{number}", rows))
    limit = SPLITS * SAVE_S / CALL_S
    ratios = [one / other for one, other in zip(saved, plain, strict=True)]
    what = f"{rows:,} rows of {1000 * CALL_S:.0f} ms"
    return [
        Line(
            f"(u) {what}, clean",
            f"saved every {SAVE_S:g} s: {spread(saved, 2)} s",
            f"never saved: {spread(plain, 2)} s",
            statistics.median(ratios),
            1.03,
        ),
        Line(
            f"(u) {what}, killed at {KILLED_AT:.0%}: rows computed again",
            f"{spread([float(count) for count in again], 0)} rows",
            f"one interval of all tasks: {limit:.0f} rows",
            max(again) / limit,
            1.0,
        ),
    ]


def stage_once(here: Place, key: str, save_s: float, die_at: int | None = None) -> Outcome:
    """One attempt, in a process of its own; see ``stage``."""
    return child.run("pieces:stage", root=str(here.root), key=key, save_s=save_s, die_at=die_at)


def _killed(here: Place, key: str, rows: int) -> int:
    """Rows that were computed more than once, by a run that was killed and its retry."""
    first = stage_once(here, key, SAVE_S, int(KILLED_AT * rows))
    if first.result is not None:
        raise RuntimeError("The run that was to be killed came to its end.")
    if stage_once(here, key, SAVE_S)["rows"] != rows:
        raise RuntimeError(f"{rows} rows must be sealed.")
    calls = (here.root / f"{key}.log").read_text().split()
    if {*map(int, calls)} != set(range(rows)):
        raise RuntimeError("Every row must have been computed.")
    return len(calls) - rows


def stage(root: str, key: str, save_s: float, die_at: int | None) -> dict[str, Any]:
    """One attempt of a stage, in a process of its own.

    :param die_at: the process kills itself, and all that it started, once so many rows are computed.
    """
    here = Place(Path(root))
    log = here.root / f"{key}.log"
    log.touch()
    function = Map(partial(_half, str(log)), output={"id": int, "half": float})
    with session() as spark:
        if die_at is not None:
            threading.Thread(target=_die, args=(log, die_at), daemon=True).start()
        start = time.perf_counter()
        attempt = here.attempt(
            IdempotenceKey(key),
            Files(str(here.root / "in"), max_split_bytes=1),
            "made",
            transform=Transform(function),
            transform_version="1",
            save_every=SaveEvery(seconds=save_s),
        )
        seal = stage_on_spark(spark, attempt)
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "rows": 0 if seal is None else seal.rows}


def _half(log: str, id: int) -> dict[str, float]:  # noqa: A002 - a column
    """What is computed of a row; noted once it is done."""
    time.sleep(CALL_S)
    with open(log, "a") as file:
        file.write(f"{id}\n")
    return {"id": id, "half": id / 2}


def _die(log: Path, rows: int) -> None:
    while log.read_bytes().count(b"\n") < rows:
        time.sleep(0.01)
    for pid in reversed(tree(os.getpid())):
        os.kill(pid, signal.SIGKILL)
