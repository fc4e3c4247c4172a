"""(f) An upsert into a table without order, beside ``pyiceberg.Table.upsert`` and beside a merge by dlt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from benchmarks import child
from benchmarks.environments import python_with
from benchmarks.report import Line
from benchmarks.stage import MASTER, place
from benchmarks.upsert_sides import versions
from benchmarks.wide_table import FILES, SOURCE_FILES, upsert

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.child import Outcome
    from benchmarks.stage import Place
    from benchmarks.wide_table import Upsert

NOTE = (
    f"(f) {FILES} data files of 10 columns, two of text; keys in no order, so that every file holds some. The source is "
    f"{SOURCE_FILES} Parquet files: half of its rows change rows of the table, half are new. Ours: {MASTER}, from opening the "
    "checkpoint to the end of the commit, the session being open. `Table.upsert`: load the table, read the source, upsert. dlt: "
    "`pipeline.run` with the filesystem destination, `table_format='iceberg'` and the merge strategy `upsert`, into a table that "
    "dlt made of the same rows. Each side in processes of its own, once for each size; the others are tried at growing sizes, each "
    "within the time limit, and compared at the largest that they finish; beyond it, the ratio is that of the time limit to "
    "ours, and the true one is larger. Memory: proportional set sizes of the process and all it started (ours: driver, JVM, Python "
    "daemon and two workers); on a cluster the workers are on other machines."
)

#: Rows of the table that the others are tried with, until they fail.
SIZES = (30_000, 100_000, 300_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000)

#: dlt is far from full size, so it is not given more than this, in seconds.
DLT_LIMIT_S = 300.0


class _Side(NamedTuple):
    seconds: float
    outcome: Outcome


def measure(cache: Path, rows: int, limit_s: float, address_space: int) -> list[Line]:
    """Lines for time and memory beside pyiceberg, for time beside dlt, and ours at full size.

    :param rows: of the largest table.
    :param limit_s: what each try of another side may take.
    :param address_space: bytes that another side may allocate.
    """
    done: dict[int, _Side] = {}

    def ours(size: int) -> _Side:
        if size not in done:
            done[size] = _ours(cache, upsert(cache, size))
        return done[size]

    size, other, ended, late = _largest(cache, rows, _pyiceberg, limit_s, address_space)
    lines = _beside_pyiceberg(size, ours(size), other, ended)
    if late:
        full = ours(rows)
        lines.append(
            Line(
                f"(f) upsert, {_sizes(rows)}: time, at least",
                f"{_time(full)}; {_memory(full.outcome)}",
                f"pyiceberg `Table.upsert` did not finish{ended}",
                limit_s / full.seconds,
                10.0,
                at_least=True,
            )
        )
    size, other, ended, _ = _largest(cache, rows, _dlt, min(limit_s, DLT_LIMIT_S), address_space)
    mine = ours(size)
    lines.append(
        Line(
            f"(f) upsert, {_sizes(size)}: time",
            _time(mine),
            f"dlt merge {other.seconds:.1f} s{ended}",
            other.seconds / mine.seconds,
            5.0,
            at_least=True,
        )
    )
    return lines


def _beside_pyiceberg(size: int, mine: _Side, other: _Side, ended: str) -> list[Line]:
    what = f"(f) upsert, {_sizes(size)}"
    own, theirs = mine.outcome.peak, other.outcome.peak
    return [
        Line(
            f"{what}: time",
            _time(mine),
            f"pyiceberg `Table.upsert` {other.seconds:.1f} s, {other.outcome['cpu']:.0f} CPU s{ended}",
            other.seconds / mine.seconds,
            10.0,
            at_least=True,
        ),
        Line(
            f"{what}: peak memory of the largest process",
            f"{own.largest:.0f} MiB",
            f"pyiceberg `Table.upsert` {theirs.largest:.0f} MiB",
            own.largest / theirs.largest,
            0.25,
        ),
        Line(
            f"{what}: peak memory of all processes",
            f"{_memory(mine.outcome)}; without the JVM {own.without_jvm / theirs.everything:.2f}x",
            f"pyiceberg `Table.upsert` {theirs.everything:.0f} MiB",
            own.everything / theirs.everything,
            0.25,
        ),
    ]


def _sizes(rows: int) -> str:
    return f"{rows // 20:,} changed and {rows // 20:,} new rows into {rows:,}"


def _time(side: _Side) -> str:
    rounds = ", ".join(f"{splits} splits in {seconds:.1f} s" for splits, seconds in side.outcome["rounds"])
    commit, session, cpu = (side.outcome[name] for name in ("commit", "session", "cpu"))
    return f"{side.seconds:.1f} s ({rounds}; commit {commit:.2f} s; session {session:.1f} s more), {cpu:.0f} CPU s"


def _memory(outcome: Outcome) -> str:
    return f"{outcome.peak.everything:.0f} MiB ({outcome.peak.without_jvm:.0f} MiB without the JVM)"


def _largest(cache: Path, rows: int, side: Any, limit_s: float, address_space: int) -> tuple[int, _Side, str, bool]:
    """The largest size that a side finishes, how it did, and how it failed at the next; True if its time was up there."""
    best: tuple[int, _Side] | None = None
    ended, late = "", False
    for size in [size for size in SIZES if size < rows] + [rows]:
        outcome = side(cache, upsert(cache, size), limit_s, address_space)
        if outcome.result is None:
            late = outcome.late
            ended = f"; at {size:,} rows: {outcome.problem}, with {outcome.peak.everything:.0f} MiB"
            print(f"    {side.__name__[1:]}{ended}", flush=True)
            break
        best = size, _Side(outcome["seconds"], outcome)
        print(
            f"    {side.__name__[1:]} at {size:,} rows: {outcome['seconds']:.1f} s, {outcome.peak.everything:.0f} MiB", flush=True
        )
    if best is None:
        raise RuntimeError(f"{side.__name__[1:]} did not finish the smallest size{ended}")
    return *best, ended, late


def _ours(cache: Path, data: Upsert) -> _Side:
    with place(cache) as here:
        _register(here, data)
        outcome = child.run("upsert_sides:ours", root=str(here.root), source=str(data.source))
        seconds = outcome["seconds"]
        _require(data, versions(here.catalog.load_table("bench.people")))
    data.clean()
    side = _Side(seconds, outcome)
    print(f"    ours at {data.rows:,} rows: {_time(side)}, {_memory(outcome)}", flush=True)
    return side


def _pyiceberg(cache: Path, data: Upsert, limit_s: float, address_space: int) -> Outcome:
    with place(cache) as here:
        _register(here, data)
        arguments: dict[str, Any] = {"root": str(here.root), "source": str(data.source)}
        outcome = child.run("upsert_sides:pyiceberg", limit_s=limit_s, address_space=address_space, **arguments)
        if outcome.result is not None:
            _require(data, versions(here.catalog.load_table("bench.people")))
    data.clean()
    return outcome


def _dlt(cache: Path, data: Upsert, limit_s: float, address_space: int) -> Outcome:
    python = python_with(cache, "dlt")
    with place(cache) as here:
        rows = here.root / "rows"
        rows.mkdir()
        for number, piece in enumerate(data.tables()):
            pq.write_table(piece, rows / f"{number:02d}.parquet")
        folder = str(here.root / "dlt")
        environment = {"DLT_DATA_DIR": folder, "RUNTIME__DLTHUB_TELEMETRY": "false", "HOME": str(here.root)}
        run: dict[str, Any] = {"python": python, "environment": environment, "address_space": address_space}
        loaded = child.run("dlt_merge:load", folder=folder, rows=str(rows), **run)
        if loaded["rows"] != data.rows:
            raise RuntimeError(f"dlt loaded {loaded['rows']} rows, not {data.rows}.")
        outcome = child.run("dlt_merge:merge", folder=folder, source=str(data.source), limit_s=limit_s, **run)
        if outcome.result is not None:
            _require(data, {int(version): count for version, count in outcome["versions"].items()})
    return outcome


def _register(here: Place, data: Upsert) -> None:
    catalog = here.catalog
    catalog.create_namespace("bench")
    catalog.register_table("bench.people", data.metadata)


def _require(data: Upsert, found: dict[int, int]) -> None:
    """Every side must have done what was asked for."""
    expected = {0: data.rows - data.changed, 1: data.changed, 2: data.changed}
    if found != expected:
        raise RuntimeError(f"There are rows of these versions: {found}; there must be {expected}.")
