"""(b) What it costs to checkpoint: staging with everything that is published, beside the same rows written without."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from pyiceberg.table.locations import load_location_provider

from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.iceberg.rolling import RollingFiles
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter
from benchmarks.lineitem import SCHEMA, rows_of
from benchmarks.report import Line, spread
from benchmarks.stage import place

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

    from airflow_ckpt_provider.tables.protocol import Writer

NOTE = (
    "(b) One process, no Spark, split by split, the side that goes first alternating. With: opening the checkpoint, header, pinned "
    "plan, attempt, and for each split the look into the store, the manifest and the published record, then the seal. Without: "
    "listing, reading and writing the same splits with the same reader and Parquet writer, and nothing else. CPU seconds of the "
    "process, of one warm-up and then alternating runs; the extra wall time is in brackets."
)

#: A fifth of the default split size, so that what a split costs, whatever its size, weighs more than it usually does.
SPLIT_BYTES = 24 << 20

#: The difference is small beside what a shared machine adds or takes in one run, so there are more of them.
_RUNS_PER_REPEAT = 3


class PlainWriter(IcebergWriter):
    """Writes the same data files and no manifest."""

    def write_files(self, batches: Iterable[pa.RecordBatch], stem: str) -> int:
        """Write the rows of one split; their number is returned."""
        facts = self.facts
        locations = load_location_provider(facts.location, facts.properties)
        files = RollingFiles(facts.io(), locations, facts.schema, facts.spec.spec_id, facts.properties, stem)
        for chunk in self.chunks(batches):
            files.write(None, chunk)
        return sum(file.record_count for file in files.close())


class _Clock:
    """CPU and wall time spent inside its ``with`` blocks."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> None:
        self.cpu -= time.process_time()
        self.wall -= time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time()
        self.wall += time.perf_counter()


def measure(cache: Path, data: Path, scale: float, repeats: int) -> list[Line]:
    """One line: the extra time of checkpointing."""
    source = Files(str(data), max_split_bytes=SPLIT_BYTES)
    with_, without, walls = [], [], []
    rows = rows_of(data)
    splits = 0
    with place(cache) as here:
        here.create_table("lineitem", SCHEMA)
        for number in range(_RUNS_PER_REPEAT * repeats + 1):
            ours, other = _Clock(), _Clock()
            with ours:
                attempt = here.attempt(here.key(), source, "lineitem")
                found = attempt.next_round()
                missing = found.missing if found else []
                work = attempt.begin("benchmark", 1)
            with other:
                source.plan({})
                reader = source.reader({})
            plain = _plain(work.writer)
            splits = len(missing)
            for turn, split in enumerate(missing):
                for is_ours in (True, False) if (turn + number) % 2 else (False, True):
                    if is_ours:
                        with ours:
                            work.run(split, "0")
                    else:
                        with other:
                            plain.write_files(reader.read(split, plain.schema), f"plain-{split.id}")
            with ours:
                seal = attempt.seal()
            if seal.rows != rows:
                raise RuntimeError(f"{seal.rows} rows were staged, not {rows}.")
            here.clear()
            if number:
                with_.append(ours.cpu)
                without.append(other.cpu)
                walls.append(ours.wall / other.wall - 1)
    extra = [mine / theirs - 1 for mine, theirs in zip(with_, without, strict=True)]
    return [
        Line(
            f"(b) extra CPU time of checkpointing, scale {scale:g}, {splits} splits",
            f"{statistics.median(with_):.2f} s with",
            f"{statistics.median(without):.2f} s without (wall: {spread([100 * w for w in walls], 1)} %)",
            statistics.median(extra),
            0.03,
            unit="%",
        )
    ]


def _plain(writer: Writer) -> PlainWriter:
    if not isinstance(writer, IcebergWriter):
        raise TypeError("An append has a plain writer.")
    return PlainWriter(writer.facts)
