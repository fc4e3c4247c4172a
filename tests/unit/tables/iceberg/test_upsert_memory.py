"""What an upsert takes of a worker's memory does not grow with the source, nor with the file it is matched with (I11)."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from support.replacing import new_table
from support.upserting import add_rows

WORKER = """
import sys
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from airflow_ckpt_provider.scan.iceberg import scan_files
from airflow_ckpt_provider.tables import fit as chunks
from airflow_ckpt_provider.tables.iceberg.upsert import matched_rows, matching, merge, key_batches
from airflow_ckpt_provider.tables.keys import key_batches as generic
sys.path.insert(0, sys.argv[1])
from support.upserting import upsert_writer
from unit.tables.iceberg.test_upsert_memory import batch

chunks.CHUNK_BYTES = matched_rows.HELD_BYTES = matched_rows.KEPT_BYTES = merge._BYTES = 2 << 20
generic.PORTION_BYTES = 4 << 20
key_batches.KEPT.limit, matching._ROWS = 8 << 20, 1 << 15
root, source_rows, each, buckets = sys.argv[2], int(sys.argv[3]), 10_000, int(sys.argv[4])
table = load_catalog("tests", type="sql", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")
table = table.load_table("shop.orders")
writer = upsert_writer(table, ["id", "name"], buckets=buckets)
targets = [scanned.file for scanned in scan_files(table, table.current_snapshot().snapshot_id)]
assert len(targets) == int(sys.argv[5])
# Every second key of the source is in the table.
rows = (batch(range(start, start + each * 2, 2), "new") for start in range(0, source_rows * 2, each * 2))
source = writer.write_source(rows, "ckpt-s").intermediate
for bucket in range(buckets):
    writer.check_unique(bucket, [source])
matched = writer.match(targets, [source], "ckpt-m")
inserted = writer.insert(source, [matched.intermediate], "ckpt-i")
# Not ru_maxrss: a child begins with its parent's.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(matched.counts["updated"], inserted.rows, peak)
"""


class Peak(NamedTuple):
    updated: int
    inserted: int
    kilobytes: int


def batch(ids: range, value: str) -> pa.RecordBatch:
    """Rows whose key is a number and a text."""
    numbers = pa.array(ids, pa.int64())
    names = pc.utf8_lpad(pc.cast(pc.bit_wise_xor(pc.multiply(numbers, 40_503), 21_845), pa.string()), 32, "n")
    return pa.record_batch(
        {"id": numbers, "name": names, "value": pc.binary_join_element_wise(value, pc.utf8_lpad(names, 100), "-")}
    )


@pytest.fixture(scope="module")
def peak_of(tmp_path_factory):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()), NestedField(3, "value", StringType()))

    def measure(target_rows: int, source_rows: int, buckets: int, files: int = 1) -> Peak:
        root = tmp_path_factory.mktemp("upsert")
        each = target_rows // files
        starts = range(0, target_rows, each)
        of_files = ((batch(range(n, n + 10_000), "old") for n in range(start, start + each, 10_000)) for start in starts)
        add_rows(new_table(root, schema), *of_files)
        done = subprocess.run(
            [sys.executable, "-c", WORKER, sys.path[0], str(root), str(source_rows), str(buckets), str(files)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path), "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"},
        )
        return Peak(*map(int, done.stdout.split()))

    return measure


def test_four_times_the_source_takes_no_more_memory(peak_of):
    one, four = peak_of(200_000, 200_000, 8), peak_of(200_000, 800_000, 8)
    assert (one.updated, one.inserted) == (100_000, 100_000)
    assert (four.updated, four.inserted) == (100_000, 700_000)
    assert four.kilobytes <= 1.15 * one.kilobytes, (one, four)


def test_a_target_file_of_four_times_the_rows_takes_no_more_memory(peak_of):
    one, four = peak_of(200_000, 400_000, 8), peak_of(800_000, 400_000, 8)
    assert (one.updated, one.inserted) == (100_000, 300_000)
    assert (four.updated, four.inserted) == (400_000, 0)
    assert four.kilobytes <= 1.15 * one.kilobytes, (one, four)


def test_many_files_of_one_group_take_no_more_memory_than_one_file_of_their_rows(peak_of):
    one, many = peak_of(200_000, 200_000, 8), peak_of(200_000, 200_000, 8, files=20)
    assert (one.updated, one.inserted) == (many.updated, many.inserted) == (100_000, 100_000)
    assert many.kilobytes <= 1.15 * one.kilobytes, (one, many)
