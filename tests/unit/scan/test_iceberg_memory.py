"""Memory of reading does not grow with the file (I11): measured as the peak of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from support.world import World

READER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.world import World
from airflow_ckpt_provider.scan.iceberg import IcebergScan, scan_files

table = World(Path(sys.argv[1])).table()
(one,) = scan_files(table, table.current_snapshot().snapshot_id)
rows = sum(batch.num_rows for batch in IcebergScan(table).read(one.file))
# Not ru_maxrss: a child begins with its parent's.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(rows, peak)
"""


def big_file(table, times):
    """One file of ``times`` row groups of 200,000 rows."""
    schema = schema_to_pyarrow(table.schema())
    path = f"{table.location()}/big.parquet".removeprefix("file://")
    with pq.ParquetWriter(path, schema) as writer:
        for group in range(times):
            ids = range(group * 200_000, (group + 1) * 200_000)
            columns = {
                "id": pa.array(ids, pa.int64()),
                "value": pa.array([n * 0.37 for n in ids], pa.float64()),
                "kind": pa.array([f"{n * 2654435761 % 2**32:032x}" for n in ids]),
                "at": pa.nulls(len(ids), pa.timestamp("us")),
            }
            writer.write_table(pa.table(columns).cast(schema))
    table.add_files([f"file://{path}"])


@pytest.mark.timeout(120)
def test_a_file_of_four_times_the_rows_takes_no_more_memory(tmp_path):
    found = {}
    for times in (2, 8):
        world = World(tmp_path / str(times))
        big_file(world.create_table(), times)
        done = subprocess.run(
            [sys.executable, "-c", READER, str(world.root), sys.path[0]],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path), "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        found[times] = [int(number) for number in done.stdout.split()]
    (count, peak), (more, more_peak) = found[2], found[8]
    assert (count, more) == (400_000, 1_600_000)
    assert more_peak <= 1.15 * peak, found
