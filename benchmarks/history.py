"""(i) A commit onto a table with a long history and many files, beside what its catalog alone takes for any commit."""

from __future__ import annotations

import gc
import json
import statistics
import time
import uuid
from typing import TYPE_CHECKING, Any

from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate

from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write import groups
from benchmarks.overwrite import table_of
from benchmarks.report import Line, spread
from benchmarks.stage import place
from benchmarks.synthetic import source

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from benchmarks.stage import Place

NOTE = (
    "(i) The catalog (SQLite) alone: load the table, and `catalog.commit_table` with one property; ours: the commit of a sealed "
    "checkpoint with one staged file, from opening the checkpoint. Both on the same table in one process, alternating, CPU seconds "
    "of the process; the ratio is that of the medians. In brackets how often the table's metadata was loaded, the catalog's own "
    "loads included, and what one load takes."
)

#: A commit may take so much longer than the catalog alone.
TARGET = 1.25


def measure(cache: Path, files: int, snapshots: int, repeats: int) -> list[Line]:
    """One line."""
    spent: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": [], "load": []}
    counts = (0, 0)
    with place(cache) as here:
        print(f"    making a table of {files:,} files and {snapshots:,} snapshots ...", flush=True)
        _table(here, files, snapshots)
        inputs = source(here.root / "in", 1)
        for number in range(2 * repeats + 1):
            attempt = here.attempt(here.key(), inputs, "long")
            found = attempt.next_round()
            work = attempt.begin("benchmark", 1)
            for split in found.missing if found else []:
                work.run(split, "0")
            attempt.seal()
            catalog, other = here.catalog, here.catalog
            counted, counted_other = _counting(catalog), _counting(other)
            for is_ours in (True, False) if number % 2 else (False, True):
                gc.collect()
                start = _clocks()
                if is_ours:
                    groups.commit([attempt.checkpoint], CatalogTable(catalog, "bench.long"))
                    spent["ours"].append(_since(start))
                else:
                    table = other.load_table("bench.long")
                    spent["load"].append(_since(start))
                    requirements = (AssertTableUUID(uuid=table.metadata.table_uuid),)
                    other.commit_table(table, requirements, (SetPropertiesUpdate(updates={"benchmark": str(number)}),))
                    spent["bare"].append(_since(start))
            counts = (len(counted), len(counted_other))
        shown = len(here.catalog.load_table("bench.long").metadata.snapshots)
        if shown != snapshots + 2 * repeats + 1:
            raise RuntimeError(f"The table has {shown} snapshots.")
    # The first of each was a warm-up.
    cpu = {part: [cpu for _, cpu in values[1:]] for part, values in spent.items()}
    wall = {part: spread([wall for wall, _ in values[1:]]) for part, values in spent.items()}
    return [
        Line(
            f"(i) commit onto {files:,} files and {snapshots:,} snapshots, CPU time",
            f"{spread(cpu['ours'])} s ({counts[0]} loads; wall {wall['ours']} s)",
            f"the catalog alone {spread(cpu['bare'])} s ({counts[1]} loads of {spread(cpu['load'])} s; wall {wall['bare']} s)",
            statistics.median(cpu["ours"]) / statistics.median(cpu["bare"]),
            TARGET,
        )
    ]


def _clocks() -> tuple[float, float]:
    """Wall and CPU time."""
    return time.perf_counter(), time.process_time()


def _since(start: tuple[float, float]) -> tuple[float, float]:
    return time.perf_counter() - start[0], time.process_time() - start[1]


def _counting(catalog: Catalog) -> list[Any]:
    """Gets an item for each time that the catalog loads a table."""
    loaded: list[Any] = []
    load = catalog.load_table

    def counted(identifier: Any) -> Table:
        loaded.append(identifier)
        return load(identifier)

    catalog.load_table = counted  # type: ignore[method-assign]
    return loaded


def _table(here: Place, files: int, snapshots: int) -> None:
    """A table whose last snapshot has all files, and whose earlier ones show the same manifests."""
    table_of(here, "made", files)
    table = here.catalog.load_table("bench.made")
    path = table.metadata_location.removeprefix("file://")
    with open(path) as stream:
        metadata = json.load(stream)
    while len(metadata["snapshots"]) < snapshots:
        last = metadata["snapshots"][-1]
        later = {
            "snapshot-id": last["snapshot-id"] - 1,
            "parent-snapshot-id": last["snapshot-id"],
            "sequence-number": last["sequence-number"] + 1,
            "timestamp-ms": last["timestamp-ms"] + 1,
        }
        metadata["snapshots"].append(last | later)
        entry = {"snapshot-id": later["snapshot-id"], "timestamp-ms": later["timestamp-ms"]}
        metadata["snapshot-log"].append(entry)
        metadata |= {
            "current-snapshot-id": later["snapshot-id"],
            "last-sequence-number": later["sequence-number"],
            "last-updated-ms": later["timestamp-ms"],
        }
        metadata["refs"]["main"]["snapshot-id"] = later["snapshot-id"]
    name = f"{path.rpartition('/')[0]}/99999-{uuid.uuid4()}.metadata.json"
    with open(name, "w") as stream:
        json.dump(metadata, stream)
    here.catalog.register_table("bench.long", f"file://{name}")
