"""Merging staged manifests: the same entries in fewer files, with summaries that hide none of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import pytest
from pyiceberg.expressions import EqualTo, IsNaN, IsNull
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from support.replacing import commit_manifests, new_table

from airflow_ckpt_provider.exceptions import RowCountError
from airflow_ckpt_provider.tables.iceberg.manifest import merge, to_manifest_file, worth_merging, write_manifest
from airflow_ckpt_provider.tables.iceberg.manifest.avro import Container, ContainerWriter
from airflow_ckpt_provider.tables.iceberg.manifest.merging import FEWEST
from airflow_ckpt_provider.tables.iceberg.manifest.staged import FACTS_ENTRY

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest

SCHEMA = Schema(NestedField(1, "n", LongType()), NestedField(2, "x", DoubleType()), NestedField(3, "s", StringType()))
SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "n_p"), PartitionField(2, 1001, IdentityTransform(), "x_p"))
WIDER = Schema(*SCHEMA.fields, NestedField(4, "more", LongType()), schema_id=1)
IO = PyArrowFileIO()


def file_of(name: str, partition: Record, rows: int = 3) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=name,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows,
        file_size_in_bytes=100 + rows,
        lower_bounds={3: b"a"},
        split_offsets=[4],
    )


def stage(
    root: Path, partitions: list[Record], schema: Schema = SCHEMA, spec: PartitionSpec = SPEC, name: str = "m"
) -> list[StagedManifest]:
    """A manifest for each partition, of two files."""
    root.mkdir(parents=True, exist_ok=True)
    found = []
    for at, partition in enumerate(partitions):
        files = [file_of(f"{name}-{at}-{part}", partition, at + 1) for part in "ab"]
        found.append(write_manifest(IO, f"{root}/{name}-{at}.avro", files, schema, spec, "gzip"))
    return found


def entries(manifests: list[StagedManifest]) -> list[list]:
    return [
        [entry.status, entry.snapshot_id, entry.sequence_number, *entry.data_file._data]
        for manifest in manifests
        for entry in to_manifest_file(manifest, 9).fetch_manifest_entry(IO)
    ]


def test_merged_manifests_hold_the_entries_of_all_in_their_order(tmp_path):
    staged = stage(tmp_path, [Record(n, n / 2) for n in range(40)])
    (merged,) = merge(IO, staged, lambda number: f"{tmp_path}/new-{number}.avro")
    assert entries([merged]) == entries(staged)
    assert (merged.files, merged.rows, merged.bytes) == tuple(
        sum(getattr(one, name) for one in staged) for name in ("files", "rows", "bytes")
    )
    assert merged.partitions == tuple(sorted({path for one in staged for path in one.partitions}))
    assert merged.length == (tmp_path / "new-0.avro").stat().st_size


def test_summaries_are_those_that_one_manifest_would_have_had(tmp_path):
    partitions = [Record(-5, 1.5), Record(300, -2.5), Record(None, math.nan), Record(2, None)]
    (merged,) = merge(IO, stage(tmp_path, partitions), lambda _: f"{tmp_path}/new.avro")
    files = [file_of("x", partition) for partition in partitions]
    assert merged.summaries == write_manifest(IO, f"{tmp_path}/at-once.avro", files, SCHEMA, SPEC, "gzip").summaries


def saying(manifest, **facts):
    """The manifest, written by somebody who says something else of its files."""
    changed = msgspec.structs.replace(manifest, **facts)
    with Container(IO, manifest.path) as container:
        blocks = list(container.blocks())
    with ContainerWriter(IO, manifest.path, container.meta | {FACTS_ENTRY: changed.facts.encode()}, b"x" * 16) as writer:
        for count, data in blocks:
            writer.add(data, count)
    return msgspec.structs.replace(changed, length=writer.length)


def test_what_is_not_known_of_nan_stays_unknown(tmp_path):
    first, second = stage(tmp_path, [Record(1, 1.0), Record(2, 2.0)])
    n, x = first.summaries
    first = saying(first, summaries=(n, msgspec.structs.replace(x, contains_nan=None)))
    (merged,) = merge(IO, [first, second], lambda _: f"{tmp_path}/new.avro")
    assert [summary.contains_nan for summary in merged.summaries] == [False, None]


def test_a_table_with_merged_manifests_prunes_none_of_their_files(tmp_path):
    values = [Record(n, x) for n, x in ((-1, 0.5), (None, 1.0), (700, math.nan), (3, None))]
    table = new_table(tmp_path / "table", SCHEMA, SPEC)
    (merged,) = merge(table.io, stage(tmp_path / "staged", values), lambda _: f"{tmp_path}/new.avro")
    commit_manifests(table, [to_manifest_file(merged, 9)], Operation.APPEND, 9)
    for expression in (EqualTo("n", -1), EqualTo("n", 700), IsNull("n"), IsNaN("x"), IsNull("x")):
        assert len(list(table.scan(expression).plan_files())) == 2, expression


def test_the_same_manifests_make_the_same_bytes(tmp_path):
    staged = stage(tmp_path, [Record(n, 0.0) for n in range(30)])
    for name in ("one", "two"):
        merge(IO, staged, lambda number, name=name: f"{tmp_path}/{name}-{number}.avro")
    assert (tmp_path / "one-0.avro").read_bytes() == (tmp_path / "two-0.avro").read_bytes()


def test_manifests_of_other_specs_or_schemas_are_not_mixed(tmp_path):
    other = PartitionSpec(PartitionField(3, 1002, IdentityTransform(), "s_p"), spec_id=1)
    staged = [
        *stage(tmp_path, [Record(n, 0.0) for n in range(3)], name="a"),
        *stage(tmp_path, [Record(str(n)) for n in range(3)], spec=other, name="b"),
        *stage(tmp_path, [Record(n, 0.0) for n in range(3)], schema=WIDER, name="c"),
    ]
    merged = merge(IO, staged, lambda number: f"{tmp_path}/new-{number}.avro")
    assert [(one.spec_id, one.files) for one in merged] == [(0, 6), (1, 6), (0, 6)]
    assert entries(merged) == entries(staged)


def test_a_merged_manifest_is_closed_at_the_target_and_large_ones_are_left_alone(tmp_path, monkeypatch):
    large = write_manifest(
        IO, f"{tmp_path}/large.avro", [file_of(f"large-{n}", Record(n, 0.0)) for n in range(200)], SCHEMA, SPEC, "gzip"
    )
    staged = stage(tmp_path, [Record(n, float(n)) for n in range(200)])
    target = 7_000
    assert large.length > target > staged[0].length
    monkeypatch.setattr("airflow_ckpt_provider.tables.iceberg.manifest.merging.TARGET_BYTES", target)
    merged = merge(IO, [large, *staged], lambda number: f"{tmp_path}/new-{number}.avro")
    assert large in merged
    assert 1 < len(merged) < 100
    assert sorted(map(repr, entries(merged))) == sorted(map(repr, entries([large, *staged])))


def test_few_manifests_are_not_worth_merging(tmp_path):
    (one,) = stage(tmp_path, [Record(1, 1.0)])
    assert not worth_merging([one] * (FEWEST - 1))
    assert worth_merging([one] * FEWEST)


def test_a_manifest_that_lost_entries_is_refused(tmp_path):
    first, second = stage(tmp_path, [Record(1, 1.0), Record(2, 2.0)])
    (tmp_path / "m-1.avro").write_bytes((tmp_path / "m-0.avro").read_bytes())
    with pytest.raises(RowCountError, match="lists 2 files; it was staged with 3"):
        merge(IO, [first, msgspec.structs.replace(second, files=3)], lambda _: f"{tmp_path}/new.avro")
