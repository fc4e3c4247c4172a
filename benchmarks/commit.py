"""(e) The commit of many staged files, beside pyiceberg's ways to commit the very same files."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write import groups
from benchmarks.report import Line, spread
from benchmarks.stage import place
from benchmarks.synthetic import SCHEMA, SPEC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.write.staged_files import CheckCost
    from benchmarks.stage import Place

#: Seconds of one side, by part; what it took in all stands under no name.
Spent: TypeAlias = "dict[str, list[float]]"

NOTE = (
    "(e) Real files of one row each: every split has every partition. Ours, told by the reference of its stage, as in a DAG: open "
    "the checkpoint, bind it to its group, look whether every staged file is there in its size, write the manifest list, compare "
    "and swap, look at the result, record. The look at the files, with the reading of the records that name them and of their "
    "digest, is a part of its own; the target is for the rest. "
    "pyiceberg: load the table, add the same files, commit; it checks no file (`fast_append`) or reads every footer "
    "(`add_files`). Equal empty tables, one catalog (SQLite), opened before. One warm-up, then alternating."
)

#: What the time of the look at all files is counted under, and the name of our side.
LOOK, OURS = "look at all files", "ours"

WAYS = ("fast_append", "add_files")


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
        seconds = rounds(here, key, empty, files, repeats, WAYS)
    what = f"{files:,} staged files in {splits} splits"
    return lines("(e)", what, seconds, WAYS, 0.2)


def rounds(here: Place, key: IdempotenceKey, empty: str, files: int, repeats: int, ways: Sequence[str]) -> dict[str, Spent]:
    """Seconds of all sides, alternating; the first round is a warm-up.

    :param empty: location of the table's first metadata.
    """
    seconds: dict[str, Spent] = {side: defaultdict(list) for side in (OURS, *ways)}
    for number in range(repeats + 1):
        spent = {OURS: _ours(here, key, files)}
        added = _data_files(here.catalog.load_table("bench.staged"))
        _forget(here, key, empty)
        spent |= _theirs(here, added, number, ways)
        del added
        for side, parts in spent.items() if number else ():
            for part, value in parts.items():
                seconds[side][part].append(value)
    return seconds


def lines(section: str, what: str, seconds: Mapping[str, Spent], ways: Sequence[str], target: float) -> list[Line]:
    """A line for each of pyiceberg's ways.

    :param target: seconds, without the look at the files.
    """
    found = []
    ours = seconds[OURS]
    parts = "; ".join(f"{part} {1000 * statistics.median(values):.0f} ms" for part, values in ours.items() if part)
    rest = [all_of - look for all_of, look in zip(ours[""], ours[LOOK], strict=True)]
    for way in ways:
        theirs = seconds[way][""]
        found.append(
            Line(
                f"{section} commit of {what}, without the look at all files",
                f"{spread(rest, 3)} s; with it {spread(ours[''], 3)} s: {parts}",
                f"pyiceberg `{way}` {spread(theirs, 3)} s",
                statistics.median(rest),
                target,
                unit="s",
                ratio=statistics.median(mine / other for mine, other in zip(ours[""], theirs, strict=True)),
            )
        )
    return found


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


def _ours(here: Place, key: IdempotenceKey, files: int) -> dict[str, float]:
    """Seconds in all, and in each part."""
    target = CatalogTable(here.catalog, "bench.staged")
    spent: dict[str, float] = defaultdict(float)
    costs: list[CheckCost] = []
    seal = _checkpoint(here, key).sealed()
    sealed = None if seal is None else seal.digest
    with _timed(spent, ""):
        checkpoint = _checkpoint(here, key)
        # What the stage hands over in a DAG.
        checkpoint.vouched = sealed
        [settled] = groups.commit([checkpoint], target, tell_cost=costs.append)
    snapshot = target.load().current_snapshot()
    if not settled.landed_now or snapshot is None or snapshot.summary is None or snapshot.summary["added-data-files"] != str(files):
        raise RuntimeError(f"{files} files must have landed now.")
    spent[LOOK] = sum(cost.seconds for cost in costs)
    return spent


def _theirs(here: Place, added: Sequence[DataFile], number: int, ways: Sequence[str]) -> dict[str, dict[str, float]]:
    """Seconds of each of pyiceberg's ways, on a new table each."""
    spent: dict[str, dict[str, float]] = {way: defaultdict(float) for way in ways}
    catalog = here.catalog
    for way in ways:
        name = here.create_table(f"{way}_{number}", SCHEMA, SPEC).name()
        with _timed(spent[way], ""):
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


def _data_files(table: Table) -> list[DataFile]:
    """All live files of a table."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return [entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]


def _forget(here: Place, key: IdempotenceKey, metadata: str) -> None:
    """Undo the commit: the catalog points to the table's first metadata again, the store does not know of the commit."""
    catalog = here.catalog
    catalog.drop_table("bench.staged")
    catalog.register_table("bench.staged", metadata)
    paths = _checkpoint(here, key).paths
    for name in (paths.group, paths.commit):
        (here.root / "store" / name).unlink()


def _checkpoint(here: Place, key: IdempotenceKey) -> Checkpoint:
    return Checkpoint.at(here.store, key, 1)
