"""(e) The commit of many staged files, beside pyiceberg's ways to commit the very same files."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables import groups
from airflow_ckpt_provider.tables.iceberg.table import IcebergTarget
from benchmarks.report import Line, spread
from benchmarks.stage import place
from benchmarks.synthetic import SCHEMA, SPEC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from benchmarks.stage import Place

NOTE = (
    "(e) Real files of one row each: every split has every partition. Ours: open the checkpoint, bind it to its group, check "
    "that every staged file exists in its size, write the manifest list, compare and swap, look at the result, record. "
    "pyiceberg: load the table, add the same files, commit; it checks no file (`fast_append`) or reads every footer "
    "(`add_files`). Equal empty tables, one catalog (SQLite), opened before. One warm-up, then alternating."
)

#: What the time of the existence checks is counted under.
CHECKS = "existence checks"

WAYS = ("fast_append", "add_files")


class _TimedTarget(IcebergTarget):
    """Says where the time of a commit goes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.spent: dict[str, float] = defaultdict(float)

    def require_files(self, *args: Any) -> None:
        with _timed(self.spent, CHECKS):
            super().require_files(*args)

    def commit(self, *args: Any) -> Any:
        with _timed(self.spent, "manifest list, swap and look"):
            return super().commit(*args)


@contextmanager
def _timed(spent: dict[str, float], part: str) -> Iterator[None]:
    """Add the wall time of the block to ``part``."""
    start = time.perf_counter()
    yield
    spent[part] += time.perf_counter() - start


def measure(cache: Path, splits: int, partitions: int, repeats: int) -> list[Line]:
    """One line for each of pyiceberg's ways."""
    files = splits * partitions
    with place(cache) as here:
        print(f"Staging {files:,} small files ...", flush=True)
        table = here.create_table("staged", SCHEMA, SPEC)
        key = _stage(here, splits, partitions)
        empty = table.metadata_location
        seconds: dict[str, list[float]] = defaultdict(list)
        for number in range(repeats + 1):
            spent = ours(here, key, files)
            added = data_files(here.catalog.load_table("bench.staged"))
            forget(here, key, empty)
            spent |= theirs(here, added, number, WAYS)
            if number:
                for part, value in spent.items():
                    seconds[part].append(value)
    return lines("(e)", f"{files:,} staged files in {splits} splits", seconds, WAYS, 0.2)


def lines(section: str, what: str, seconds: Mapping[str, Sequence[float]], ways: Sequence[str], target: float) -> list[Line]:
    """One line for each of pyiceberg's ways, of the seconds that ``ours`` and ``theirs`` have counted."""
    parts = "; ".join(f"{part} {1000 * statistics.median(values):.0f} ms" for part, values in seconds.items() if part[0] != "=")
    return [
        Line(
            f"{section} commit of {what}",
            f"{spread(seconds['=ours'], 3)} s: {parts}",
            f"pyiceberg `{way}` {spread(seconds[f'={way}'], 3)} s",
            statistics.median(seconds["=ours"]),
            target,
            unit="s",
            ratio=statistics.median(mine / theirs for mine, theirs in zip(seconds["=ours"], seconds[f"={way}"], strict=True)),
        )
        for way in ways
    ]


def _stage(here: Place, splits: int, partitions: int) -> IdempotenceKey:
    folder = here.root / "in"
    folder.mkdir()
    for number in range(splits):
        ids = range(number * partitions, (number + 1) * partitions)
        rows = {
            "part": pa.array(range(partitions), pa.int32()),
            "id": pa.array(ids, pa.int64()),
            "value": [n / 4 for n in ids],
            "name": [f"name {n}" for n in ids],
        }
        pq.write_table(pa.table(rows), folder / f"{number:05d}.parquet")
    key = here.key()
    attempt = here.attempt(key, Files(str(folder), max_split_bytes=1), "staged")
    found = attempt.next_round()
    work = attempt.begin("benchmark", 1)
    for split in found.missing if found else []:
        work.run(split, "0")
    attempt.seal()
    return key


def ours(here: Place, key: IdempotenceKey, files: int) -> dict[str, float]:
    """Seconds in all, and in each part."""
    target = _TimedTarget(here.catalog, "bench.staged")
    spent: dict[str, float] = defaultdict(float)
    with _timed(spent, "=ours"):
        [settled] = groups.commit([_checkpoint(here, key)], target)
    snapshot = target.load().current_snapshot()
    if not settled.landed_now or snapshot is None or snapshot.summary is None or snapshot.summary["added-data-files"] != str(files):
        raise RuntimeError(f"{files} files must have landed now.")
    spent["store (open, seal, group, staged records, commit record)"] = spent["=ours"] - sum(target.spent.values())
    return spent | target.spent


def theirs(here: Place, added: Sequence[DataFile], number: int, ways: Sequence[str]) -> dict[str, float]:
    """Seconds of each of pyiceberg's ways, on a new table each."""
    spent: dict[str, float] = defaultdict(float)
    catalog = here.catalog
    for way in ways:
        name = here.create_table(f"{way}_{number}", SCHEMA, SPEC).name()
        with _timed(spent, f"={way}"):
            table = catalog.load_table(name)
            if way == "add_files":
                table.add_files([file.file_path for file in added], check_duplicate_files=False)
            else:
                with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
                    for file in added:
                        append.append_data_file(file)
        snapshot = catalog.load_table(name).current_snapshot()
        if snapshot is None or snapshot.summary is None or snapshot.summary["added-data-files"] != str(len(added)):
            raise RuntimeError(f"{len(added)} files must have landed by {way}.")
    return spent


def data_files(table: Table) -> list[DataFile]:
    """All live files of a table."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return [entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]


def forget(here: Place, key: IdempotenceKey, metadata: str) -> None:
    """Undo the commit: the catalog points to the table's first metadata again, the store does not know of the commit."""
    catalog = here.catalog
    catalog.drop_table("bench.staged")
    catalog.register_table("bench.staged", metadata)
    paths = _checkpoint(here, key).paths
    for name in (paths.group, paths.commit):
        (here.root / "store" / name).unlink()


def _checkpoint(here: Place, key: IdempotenceKey) -> Checkpoint:
    return Checkpoint.at(here.store, key, 1)
