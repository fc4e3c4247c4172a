"""(k)-(n) Lance: an append beside Lance's own writer, an upsert beside ``merge_insert``, the commit of many fragments, the cost."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks import checkpoint_cost, child
from benchmarks.lineitem import rows_of
from benchmarks.report import Line, spread
from benchmarks.stage import MASTER, place

if TYPE_CHECKING:
    from pathlib import Path

NOTES = {
    "k": (
        f"(k) The same Parquet file, read and written as Lance files. Ours: {MASTER}, from opening the checkpoint to its seal, CPU "
        "seconds of driver, JVM and Python workers, after a warm-up; `lance.write_dataset` of a stream of batches in one process."
    ),
    "l": (
        "(l) The source's rows are staged as fragments before. Ours: match every fragment of the target and commit, in one "
        "process, without Spark; Lance: `merge_insert` of the same staged rows, read as a dataset. Each in a process of its own; "
        "memory is its highest resident size, interpreter and libraries included."
    ),
    "m": (
        "(m) Copies of one small file, 100 in each split, committed; beside it `LanceDataset.commit` of an "
        "`Append` of the same fragments, whose descriptions were made before."
    ),
    "n": (
        "(n) As (b): one process, no Spark, split by split, the side that goes first alternating. Without: listing, reading and "
        "writing the same splits with the same reader and the same Lance file writer, and nothing that is remembered."
    ),
}


def append(cache: Path, data: Path, scale: float, repeats: int) -> list[Line]:
    """(k)"""
    rows = rows_of(data)
    with place(cache) as here:
        ours = child.run("lance_sides:append", root=str(here.root), data=str(data), repeats=repeats)["cpu"]
    theirs = []
    for _ in range(repeats):
        with place(cache) as here:
            theirs.append(child.run("lance_sides:write_dataset", root=str(here.root), data=str(data))["cpu"])
    mine = rows / statistics.median(ours)
    other = rows / statistics.median(theirs)
    return [
        Line(
            f"(k) Lance: rows per CPU-second of an append, scale {scale:g} ({rows:,} rows)",
            f"{mine:,.0f}; {spread(ours)} CPU s",
            f"`lance.write_dataset` {other:,.0f}; {spread(theirs)} CPU s",
            mine / other,
            0.8,
            at_least=True,
        )
    ]


def upsert(cache: Path, repeats: int) -> list[Line]:
    """(l)"""
    seconds: dict[str, list[float]] = {"ours": [], "merge_insert": []}
    memory: dict[str, list[float]] = {"ours": [], "merge_insert": []}
    for _ in range(repeats):
        with place(cache) as here:
            child.run("lance_sides:prepare_upsert", root=str(here.root))
            for side, found in seconds.items():
                outcome = child.run(f"lance_sides:{side}", root=str(here.root))
                found.append(outcome["seconds"])
                memory[side].append(outcome.own_mib)
    mine, other = statistics.median(memory["ours"]), statistics.median(memory["merge_insert"])
    what = "(l) Lance: upsert of 600,000 staged rows of 2 KB into 700,000"
    return [
        Line(
            f"{what}: time",
            f"{spread(seconds['ours'])} s",
            f"`merge_insert` {spread(seconds['merge_insert'])} s",
            statistics.median(seconds["merge_insert"]) / statistics.median(seconds["ours"]),
            5.0,
            at_least=True,
        ),
        Line(f"{what}: peak memory", f"{mine:.0f} MiB", f"`merge_insert` {other:.0f} MiB", mine / other, 0.5),
    ]


def commit(cache: Path, repeats: int) -> list[Line]:
    """(m)"""
    ours, looks, theirs = [], [], []
    for _ in range(repeats):
        with place(cache) as here:
            outcome = child.run("lance_sides:commit_many", root=str(here.root), splits=100, files=100)
            ours.append(outcome["ours"])
            looks.append(outcome["look"])
            theirs.append(outcome["append"])
    rest = [all_of - look for all_of, look in zip(ours, looks, strict=True)]
    return [
        Line(
            "(m) Lance: commit of 10,000 staged fragments in 100 splits, without the look at all files",
            f"{spread(rest, 3)} s; with it {spread(ours, 3)} s: look at all files {1000 * statistics.median(looks):.0f} ms",
            f"`LanceDataset.commit` of an `Append` {spread(theirs, 3)} s",
            statistics.median(rest),
            0.5,
            unit="s",
            ratio=statistics.median(ours) / statistics.median(theirs),
        )
    ]


def checkpointing(cache: Path, data: Path, scale: float, repeats: int) -> list[Line]:
    """(n)"""
    with place(cache) as here:
        outcome = child.run("lance_sides:checkpointed", root=str(here.root), data=str(data), repeats=repeats)
        found = checkpoint_cost.Paired(**{name: outcome[name] for name in checkpoint_cost.Paired._fields})
    return [checkpoint_cost.line(f"(n) Lance: extra CPU time of checkpointing, scale {scale:g}", found)]
