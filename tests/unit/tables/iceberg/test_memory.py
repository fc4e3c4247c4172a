"""A writer's memory does not grow with what it writes (I11): measured as the peak of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform
from support.world import World

WRITER = """
import sys
import pyarrow as pa
from airflow_ckpt_provider.tables import fit
from airflow_ckpt_provider.tables.iceberg import gathering
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from support.appending import header_of, writer_of
from support.world import World

fit.CHUNK_BYTES = gathering.CHUNK_BYTES = 2 << 20
world = World(Path(sys.argv[1]))
target = world.as_table()
batches = int(sys.argv[2])


def rows():
    for number in range(batches):
        ids = range(number * 20_000, (number + 1) * 20_000)
        yield pa.record_batch(
            {
                "id": pa.array(ids, pa.int64()),
                "value": pa.array([n * 0.37 for n in ids], pa.float64()),
                "kind": [f"{n * 2654435761 % 2**32:032x}" for n in ids],
            }
        )


written = writer_of(target, header_of(target)).write(rows(), sys.argv[3])
# Not ru_maxrss: a child begins with its parent's.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(written.rows, written.bytes, len(written.files), peak)
"""


SPECS = [UNPARTITIONED_PARTITION_SPEC, PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("spec", SPECS, ids=["", "partitioned"])
def test_four_times_the_rows_take_no_more_memory(tmp_path, spec):
    """Neither of its own, nor as pages of a file that is mapped."""
    world = World(tmp_path)
    world.create_table(spec=spec, properties={"write.target-file-size-bytes": str(1 << 20)})
    found = {}
    for times in (1, 4):
        done = subprocess.run(
            [sys.executable, "-c", WRITER, str(tmp_path), str(20 * times), f"ckpt-{times}", sys.path[0]],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path), "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        found[times] = [int(number) for number in done.stdout.split()]
    (rows, _, files, peak), (more_rows, _, more_files, more_peak) = found[1], found[4]
    assert (rows, more_rows) == (400_000, 1_600_000)
    assert files > 1
    assert more_files > 2 * files
    assert more_peak <= 1.15 * peak, found
