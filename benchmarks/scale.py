"""(h) The commit of very many staged files, and (i) what the driver needs to plan, seal and commit them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write import groups
from benchmarks import child, commit
from benchmarks.report import Line
from benchmarks.stage import Place, place
from benchmarks.synthetic import SCHEMA, SPEC, reopened, source, stage

if TYPE_CHECKING:
    from airflow_ckpt_provider.write.attempt import WriteAttempt

COMMIT_NOTE = (
    "(h) Copies of one small file, 100 in each split; sealed, with tiny manifests merged. Ours as in (e). pyiceberg's "
    "`add_files`, which reads every footer, is compared in (e)."
)
NOTE = (
    "(i) Planning, sealing and committing, each in a process of its own as the driver; memory is the highest resident size of that "
    "process, interpreter and libraries included. The splits are staged in between by another process."
)

#: Files of each split, and the largest memory a driver may need, in MiB.
FILES_EACH, LIMIT_MIB = 100, 1024

_KEY = IdempotenceKey("scale")


def measure(cache: Path, files: int, partitions: int, repeats: int, sections: str) -> list[Line]:
    """Lines of those of the sections ``h`` and ``i`` that are asked for."""
    lines: list[Line] = []
    splits = files // FILES_EACH
    with place(cache) as here:
        table = here.create_table("staged", SCHEMA, SPEC)
        empty = table.metadata_location
        source(here.root / "in", splits)
        outcomes = {"plan": child.run("scale:plan", root=str(here.root))}
        print(f"    staging {files:,} files in {splits:,} splits and {partitions:,} partitions ...", flush=True)
        child.run("scale:stage_all", root=str(here.root), partitions=partitions)["splits"]
        outcomes["seal"] = child.run("scale:seal", root=str(here.root))
        if "h" in sections:
            lines += _commits(here, empty, files, splits, repeats)
        if "i" in sections:
            outcomes["commit"] = child.run("scale:commit_all", root=str(here.root))
            lines += _drivers(outcomes, files, splits, partitions)
    return lines


def _commits(here: Place, empty: str, files: int, splits: int, repeats: int) -> list[Line]:
    ways = ("fast_append",)
    seconds = commit.rounds(here, _KEY, empty, files, repeats, ways)
    return commit.lines("(h)", f"{files:,} staged files in {splits:,} splits", seconds, ways, 0.1)


def _drivers(outcomes: dict[str, child.Outcome], files: int, splits: int, partitions: int) -> list[Line]:
    parts = "; ".join(f"{name} {outcome['seconds']:.2f} s, {outcome.own_mib:.0f} MiB" for name, outcome in outcomes.items())
    facts = f"{outcomes['seal']['before']:,} manifests merged to {outcomes['seal']['after']}"
    peak = max(outcome.own_mib for outcome in outcomes.values())
    return [
        Line(
            f"(i) driver of {files:,} files in {splits:,} splits and {partitions:,} partitions: peak memory",
            f"{parts}; {facts}",
            f"limit {LIMIT_MIB} MiB",
            peak,
            LIMIT_MIB,
            unit="MiB",
        )
    ]


def plan(root: str) -> dict[str, Any]:
    """What the driver does before the first task; in a process of its own."""
    here = Place(Path(root))
    start = time.perf_counter()
    found = _attempt(here).next_round()
    return {"seconds": time.perf_counter() - start, "splits": len(found.missing) if found else 0}


def stage_all(root: str, partitions: int) -> dict[str, Any]:
    """What executors do."""
    here = Place(Path(root))
    template = next((here.root / "in").glob("*.parquet"))
    attempt = _attempt(here)
    stage(attempt, FILES_EACH, partitions, template)
    return {"splits": len(attempt.checkpoint.staged_ids())}


def seal(root: str) -> dict[str, Any]:
    """What the driver does after the last task; in a process of its own."""
    here = Place(Path(root))
    start = time.perf_counter()
    attempt = _attempt(here)
    if attempt.next_round() is not None:
        raise RuntimeError("Everything must be staged.")
    sealed = attempt.seal()
    return {"seconds": time.perf_counter() - start, "before": sealed.splits, "after": len(sealed.manifests)}


def commit_all(root: str) -> dict[str, Any]:
    """What the commit operator does; in a process of its own."""
    here = Place(Path(root))
    target = CatalogTable(here.catalog, "bench.staged")
    start = time.perf_counter()
    groups.commit([Checkpoint.at(here.store, _KEY, 1)], target)
    return {"seconds": time.perf_counter() - start}


def _attempt(here: Place) -> WriteAttempt:
    return here.attempt(_KEY, reopened(here.root / "in"), "staged")
