"""(b) What it costs to checkpoint: staging with everything that is published, beside the same rows written without."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter
from benchmarks.lineitem import SCHEMA, rows_of
from benchmarks.report import Line, spread
from benchmarks.stage import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pyarrow as pa

    from airflow_ckpt_provider.tables.table import Table as AnyTable
    from airflow_ckpt_provider.tables.writer import Writer
    from benchmarks.stage import Place

    #: Writes rows, to files whose names begin so.
    Plain: TypeAlias = Callable[[Iterable[pa.RecordBatch], str], object]

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

    def write_rows(self, batches: Iterable[pa.RecordBatch], stem: str) -> int:
        """Write the rows of one split; their number is returned."""
        return sum(file.record_count for file in self.write_files(self.chunks(batches), stem))


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


class Paired(NamedTuple):
    """CPU seconds with and without, and the extra wall time, of each run."""

    with_: list[float]
    without: list[float]
    wall: list[float]
    splits: int

    @property
    def extra(self) -> float:
        """The median share that is spent besides."""
        return statistics.median(mine / other - 1 for mine, other in zip(self.with_, self.without, strict=True))


def measure(cache: Path, data: Path, scale: float, repeats: int) -> list[Line]:
    """One line: the extra time of checkpointing."""
    with place(cache) as here:
        here.create_table("lineitem", SCHEMA)
        found = paired(here, lambda: here.as_table("lineitem"), data, _plain, repeats)
    return [line(f"(b) extra CPU time of checkpointing, scale {scale:g}", found)]


def line(what: str, found: Paired) -> Line:
    """What was found as a line of the report."""
    return Line(
        f"{what}, {found.splits} splits",
        f"{statistics.median(found.with_):.2f} s with",
        f"{statistics.median(found.without):.2f} s without (wall: {spread([100 * wall for wall in found.wall], 1)} %)",
        found.extra,
        0.03,
        unit="%",
    )


def paired(here: Place, target: Callable[[], AnyTable], data: Path, plain_of: Callable[[Writer], Plain], repeats: int) -> Paired:
    """Both sides, split by split, over and over.

    :param target: the table to write to, before each run.
    :param plain_of: writes the rows of a split, and nothing else, with what the checkpointed writer knows.
    """
    source = Files(str(data), max_split_bytes=SPLIT_BYTES)
    found, rows = Paired([], [], [], 0), rows_of(data)
    for number in range(_RUNS_PER_REPEAT * repeats + 1):
        table = target()
        ours, other = _Clock(), _Clock()
        with ours:
            attempt = here.attempt(here.key(), source, table)
            first = attempt.next_round()
            missing = first.missing if first else []
            work = attempt.begin("benchmark", 1)
        with other:
            source.plan({})
            reader = source.reader({})
        plain = plain_of(work.writer)
        found = found._replace(splits=len(missing))
        for turn, split in enumerate(missing):
            for is_ours in (True, False) if (turn + number) % 2 else (False, True):
                if is_ours:
                    with ours:
                        work.run(split, "0")
                else:
                    with other:
                        plain(reader.read(split, work.writer.schema), f"plain-{split.id}")
        with ours:
            seal = attempt.seal()
        if seal.rows != rows:
            raise RuntimeError(f"{seal.rows} rows were staged, not {rows}.")
        here.clear()
        if number:
            found.with_.append(ours.cpu)
            found.without.append(other.cpu)
            found.wall.append(ours.wall / other.wall - 1)
    return found


def _plain(writer: Writer) -> Plain:
    if not isinstance(writer, IcebergWriter):
        raise TypeError("An append has a plain writer.")
    return PlainWriter(writer.facts).write_rows
