"""(j) An append of more data than the process may have memory, beside pyiceberg's append of a stream under the same limit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.write import groups
from benchmarks import child
from benchmarks.lineitem import SCHEMA, rows_of
from benchmarks.report import Line
from benchmarks.stage import Place, place

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTE = (
    "(j) The address space of the whole process (as by `ulimit -v`), interpreter and libraries included, is limited to a "
    "quarter of what the rows take in Arrow. Ours: plan, stage the file as one split in this one process, as a worker does, seal "
    "and commit. pyiceberg: `append` of a RecordBatchReader that reads the same file batch by batch. Memory: highest resident size."
)

#: The rows have to be so many times larger than the limit.
TIMES = 4.0

#: glibc gives each thread an arena of address space of its own; the default would reserve more than is ever used.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}


def measure(cache: Path, data: Path, scale: float) -> list[Line]:
    """One line: how many times the limit the rows are, if the append finishes."""
    size = child.run("bounded:arrow_bytes", data=str(data))["bytes"]
    limit = int(size / TIMES)
    said = {}
    finished = {}
    for side in ("ours", "pyiceberg"):
        with place(cache) as here:
            here.create_table("lineitem", SCHEMA)
            arguments: dict[str, Any] = {"root": str(here.root), "data": str(data)}
            outcome = child.run(f"bounded:{side}", address_space=limit, environment=_ENVIRONMENT, **arguments)
            finished[side] = outcome.result is not None
            if finished[side]:
                rows = here.catalog.load_table("bench.lineitem").scan().count()
                if rows != rows_of(data):
                    raise RuntimeError(f"{rows} rows were appended, not {rows_of(data)}.")
                said[side] = f"finished in {outcome['seconds']:.1f} s, peak {outcome.own_mib:.0f} MiB"
            else:
                said[side] = f"did not finish, peak {outcome.peak.everything:.0f} MiB: {outcome.problem}"
    return [
        Line(
            f"(j) append of {size / 2**20:,.0f} MiB of rows (scale {scale:g}) under a limit of {limit / 2**20:,.0f} MiB",
            said["ours"],
            f"pyiceberg `append(RecordBatchReader)` {said['pyiceberg']}",
            TIMES if finished["ours"] else 0.0,
            TIMES,
            at_least=True,
        )
    ]


def arrow_bytes(data: str) -> dict[str, Any]:
    """Bytes of all rows in Arrow's memory."""
    with pq.ParquetFile(data) as file:
        return {"bytes": sum(batch.nbytes for batch in file.iter_batches())}


def ours(root: str, data: str) -> dict[str, Any]:
    """Append by a checkpoint of one split."""
    start = time.perf_counter()
    here = Place(Path(root))
    attempt = here.attempt(here.key(), Files(data, max_split_bytes=1 << 50), "lineitem")
    found = attempt.next_round()
    work = attempt.begin("benchmark", 1)
    for split in found.missing if found else []:
        work.run(split, "0")
    attempt.seal()
    groups.commit([attempt.checkpoint], CatalogTable(here.catalog, "bench.lineitem"))
    return {"seconds": time.perf_counter() - start}


def pyiceberg(root: str, data: str) -> dict[str, Any]:
    """Append by pyiceberg, batch by batch."""
    start = time.perf_counter()
    table = Place(Path(root)).catalog.load_table("bench.lineitem")
    schema = table.schema().as_arrow()

    def batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        for batch in file.iter_batches():
            yield pa.Table.from_batches([batch]).cast(schema).combine_chunks().to_batches()[0]

    with pq.ParquetFile(data) as file:
        table.append(pa.RecordBatchReader.from_batches(schema, batches(file)))
    return {"seconds": time.perf_counter() - start}
