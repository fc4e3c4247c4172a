"""Memory of reading a wide fragment does not grow with its rows (I11): measured as the peak of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import lance
import numpy as np
import pyarrow as pa
import pytest

COLUMNS = 400

READER = """
import sys
from airflow_ckpt_provider.sources import LanceDataset

source = LanceDataset(sys.argv[1], filter=sys.argv[2] or None)
plan, reader = source.plan({}), source.reader({})
(split,) = plan.splits
rows = sum(batch.num_rows for batch in reader.read(split, None))
# Not ru_maxrss: a child begins with its parent's.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(rows, peak)
"""


def wide_fragment(uri, rows):
    """One file of so many rows of 3,200 bytes."""

    def batches():
        for start in range(0, rows, 10_000):
            made = np.random.default_rng(start).random((COLUMNS, 10_000))
            yield pa.record_batch({f"c{number}": column for number, column in enumerate(made)})

    schema = pa.schema([(f"c{number}", pa.float64()) for number in range(COLUMNS)])
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), uri, data_cache_bytes=64 << 20)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("where", ["", "c7 < 0.5"])
def test_a_wide_fragment_of_four_times_the_rows_takes_no_more_memory(tmp_path, where):
    found = {}
    for rows in (50_000, 200_000):
        uri = str(tmp_path / f"{rows}.lance")
        wide_fragment(uri, rows)
        done = subprocess.run(
            [sys.executable, "-c", READER, uri, where],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path), "ARROW_DEFAULT_MEMORY_POOL": "system", "LANCE_CPU_THREADS": "2"},
        )
        found[rows] = [int(number) for number in done.stdout.split()]
    (count, peak), (more, more_peak) = found[50_000], found[200_000]
    share = 0.5 if where else 1
    assert count == pytest.approx(50_000 * share, rel=0.02)
    assert more == pytest.approx(200_000 * share, rel=0.02)
    assert more_peak <= 1.35 * peak, found
