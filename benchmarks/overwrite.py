"""(g) ``overwrite`` of a table of many files, beside pyiceberg's ``overwrite()`` that replaces the very same files."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write import groups
from benchmarks import child
from benchmarks.report import Line, spread
from benchmarks.stage import Place, place
from benchmarks.synthetic import SCHEMA, SPEC, WIDE, data_files, source

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

NOTE = (
    "(g) The table's files are entries of its manifests only, with statistics of 10 columns: neither side opens them. Ours: commit "
    "of a sealed checkpoint with mode='overwrite' and one staged file. pyiceberg: list the live files, "
    "`transaction.update_snapshot().overwrite()` with `delete_data_file` for each and `append_data_file` for a new one, commit. "
    "Each run in a process of its own, on the same metadata, alternating; memory is the highest resident size of that process, "
    "interpreter and libraries (160 MiB) included."
)

#: Files of the table, and of each of the commits that made it.
PARTITIONS, FILES_EACH = 100, 10_000


def measure(cache: Path, files: int, repeats: int) -> list[Line]:
    """Two lines: time and memory."""
    seconds: dict[str, list[float]] = {"ours": [], "pyiceberg": []}
    memory: dict[str, list[float]] = {"ours": [], "pyiceberg": []}
    with place(cache) as here:
        print(f"    making a table of {files:,} files ...", flush=True)
        metadata = table_of(here, "large", files, WIDE)
        inputs = source(here.root / "in", 1)
        for number in range(repeats):
            for side, name in (("ours", f"ours_{number}"), ("pyiceberg", f"pyiceberg_{number}")):
                # Our commits are found by their table: the same metadata is registered again for each.
                here.catalog.register_table(f"bench.{name}", metadata)
                key = here.key()
                if side == "ours":
                    attempt = here.attempt(key, inputs, name, "overwrite")
                    found = attempt.next_round()
                    work = attempt.begin("benchmark", 1)
                    for split in found.missing if found else []:
                        work.run(split, "0")
                    attempt.seal()
                outcome = child.run(f"overwrite:{side}", root=str(here.root), table=name, key=key.value)
                _require(here, name, files)
                here.catalog.drop_table(f"bench.{name}")
                seconds[side].append(outcome["seconds"])
                memory[side].append(outcome.own_mib)
                print(f"    {side}: {outcome['seconds']:.2f} s, {outcome.own_mib:.0f} MiB", flush=True)
    what = f"(g) overwrite of a table of {files:,} files"
    ratios = [mine / theirs for mine, theirs in zip(seconds["ours"], seconds["pyiceberg"], strict=True)]
    return [
        Line(
            f"{what}: time",
            f"{spread(seconds['ours'])} s",
            f"pyiceberg `overwrite()` {spread(seconds['pyiceberg'])} s",
            statistics.median(ratios),
            0.5,
        ),
        Line(
            f"{what}: peak memory",
            f"{spread(memory['ours'], 0)} MiB",
            f"pyiceberg `overwrite()` {spread(memory['pyiceberg'], 0)} MiB",
            statistics.median(memory["ours"]) / statistics.median(memory["pyiceberg"]),
            0.25,
        ),
    ]


def ours(root: str, table: str, key: str) -> dict[str, Any]:
    """The commit of what is sealed; in a process of its own."""
    here = Place(Path(root))
    target = CatalogTable(here.catalog, f"bench.{table}")
    start = time.perf_counter()
    groups.commit([Checkpoint.at(here.store, IdempotenceKey(key), 1)], target)
    return {"seconds": time.perf_counter() - start}


def pyiceberg(root: str, table: str, key: str) -> dict[str, Any]:
    """The same by pyiceberg; in a process of its own."""
    del key
    catalog = Place(Path(root)).catalog
    start = time.perf_counter()
    loaded = catalog.load_table(f"bench.{table}")
    snapshot = loaded.current_snapshot()
    manifests = snapshot.manifests(loaded.io) if snapshot else []
    (new,) = data_files([f"{loaded.location()}/data/new.parquet"], PARTITIONS, 1000, schema=WIDE)
    with loaded.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(loaded.io):
                overwrite.delete_data_file(entry.data_file)
        overwrite.append_data_file(new)
    return {"seconds": time.perf_counter() - start}


def table_of(here: Place, name: str, files: int, schema: Schema = SCHEMA) -> str:
    """Metadata location of a table of so many files, made by a few commits."""
    table = here.create_table(name, schema, SPEC)
    each = min(FILES_EACH, files)
    for first in range(0, files, each):
        paths = [
            f"{table.location()}/data/{number:07d}-00000-a-name-of-usual-length.parquet" for number in range(first, first + each)
        ]
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for file in data_files(paths, PARTITIONS, 1000, first, schema):
                append.append_data_file(file)
    return str(table.metadata_location)


def _require(here: Place, name: str, files: int) -> None:
    snapshot = here.catalog.load_table(f"bench.{name}").current_snapshot()
    summary = snapshot.summary if snapshot else None
    if summary is None or (summary["deleted-data-files"], summary["total-data-files"]) != (str(files), "1"):
        raise RuntimeError(f"All {files} files of {name} must have been replaced by one: {summary}.")
