"""Held against pyiceberg: it reads the manifests that are written here, and would have written the same for the same files.

If one of these fails after an upgrade of pyiceberg, compare the two manifests by a reader that knows Avro alone (``header``), and
with the table spec. Where pyiceberg now writes what the spec asks for, write it too, in ``tables/iceberg/manifest``: ``staged.py``
for what executors write, ``merging.py`` and ``rewriting.py`` for the other two. Where it reads otherwise, so do others: ask there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType
from support.appending import append, arrow_schema
from support.world import World

from airflow_ckpt_provider.tables.iceberg.manifest import FACTS_ENTRY, merge, rewrite_manifest, to_manifest_file
from airflow_ckpt_provider.tables.iceberg.manifest import write_manifest as stage_manifest

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "value", DoubleType()),
    NestedField(3, "kind", StringType()),
    NestedField(4, "at", TimestampType()),
)

SPECS = {
    "unpartitioned": PartitionSpec(),
    "two fields": PartitionSpec(
        PartitionField(4, 1000, DayTransform(), "day"), PartitionField(3, 1001, IdentityTransform(), "kind")
    ),
    "bucket": PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "id_bucket")),
}

#: Fields of a data file that are different in two tables: where it is, and counts of NaN, which pyiceberg does not take.
ELSEWHERE, UNCOUNTED = "file_path", "nan_value_counts"


def rows(start: int = 0) -> pa.Table:
    """Rows with nulls in each column that may have some, and in both partition fields."""
    ids = range(start, start + 24)
    columns = {
        "id": list(ids),
        "value": [None if n % 5 == 0 else n / 4 for n in ids],
        "kind": [None if n % 7 == 3 else f"{n % 3} is a kind whose name is cut in the bounds of a manifest" for n in ids],
        "at": [None if n % 11 == 5 else datetime(2026, 1, 1 + n % 2, n % 24) for n in ids],  # noqa: DTZ001
    }
    return pa.table(columns, schema=arrow_schema(SCHEMA))


def header(path: str) -> tuple[dict, dict]:
    """Schema of a manifest's entries, and its metadata without the entry that is ours alone, by a reader that knows Avro alone."""
    with open(path.removeprefix("file://"), "rb") as file:
        reader = fastavro.reader(file)
        entries = sum(1 for _ in reader)
        assert entries
        meta = {name: text for name, text in reader.metadata.items() if name not in {"avro.schema", FACTS_ENTRY}}
        return json.loads(reader.metadata["avro.schema"]), meta


def files_of(manifests, io, *without: str) -> list[dict]:
    """The data files of manifests by pyiceberg's own reader, as the fields that they have."""
    names = [field.name for field in DATA_FILE_TYPE[2].fields]
    found = [
        {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in zip(names, entry.data_file._data, strict=True)
            if name not in without
        }
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
    ]
    return sorted(found, key=repr)


def listed(manifest, *without: str) -> dict:
    """What a manifest list says of a manifest."""
    names = [name for name in type(manifest).__dict__ if isinstance(type(manifest).__dict__[name], property)]
    facts = {name: getattr(manifest, name) for name in names if name not in {"manifest_path", "manifest_length", *without}}
    facts["partitions"] = [summary._data for summary in manifest.partitions or ()]
    return facts


@pytest.fixture(params=SPECS)
def tables(request, tmp_path):
    """The same rows in two tables: appended by us, as one split, and by pyiceberg."""
    world = World(tmp_path)
    for name in ("shop.ours", "shop.theirs"):
        world.create_table(name, SCHEMA, SPECS[request.param])
    ours = append(world, rows(), name="shop.ours")
    theirs = world.table("shop.theirs")
    theirs.append(rows())
    return ours, theirs


def test_a_staged_manifest_is_the_one_that_pyiceberg_writes_for_the_same_rows(tables):
    (mine,), (its,) = [table.current_snapshot().manifests(table.io) for table in tables]
    io = tables[0].io
    assert header(mine.manifest_path) == header(its.manifest_path)
    assert files_of([mine], io, ELSEWHERE, UNCOUNTED) == files_of([its], io, ELSEWHERE, UNCOUNTED)
    assert {key for file in files_of([mine], io) for key in file[UNCOUNTED]} == {2}
    assert listed(mine, "added_snapshot_id") == listed(its, "added_snapshot_id")
    for manifest, table in zip((mine, its), tables, strict=True):
        for entry in manifest.fetch_manifest_entry(io):
            head = table.current_snapshot()
            assert (entry.status, entry.snapshot_id) == (ManifestEntryStatus.ADDED, head.snapshot_id)
            assert (entry.sequence_number, entry.file_sequence_number) == (1, 1)


def test_a_merged_manifest_is_the_one_that_pyiceberg_writes_for_all_files_at_once(tables, tmp_path):
    ours, _ = tables
    (manifest,) = ours.current_snapshot().manifests(ours.io)
    files = [entry.data_file for entry in manifest.fetch_manifest_entry(ours.io)]
    staged = [
        stage_manifest(ours.io, f"{tmp_path}/{n}.avro", [copy_of(file, n)], SCHEMA, ours.spec(), "gzip")
        for n, file in enumerate(files * 3)
    ]
    (merged,) = merge(ours.io, staged, lambda _: f"{tmp_path}/merged.avro")
    with write_manifest(2, ours.spec(), SCHEMA, ours.io.new_output(f"{tmp_path}/its.avro"), 7, "gzip") as writer:
        for one in staged:
            for entry in to_manifest_file(one, 7).fetch_manifest_entry(ours.io):
                writer.add_entry(entry)
    mine, its = to_manifest_file(merged, 7), writer.to_manifest_file()
    assert header(merged.path) == header(its.manifest_path)
    assert files_of([mine], ours.io) == files_of([its], ours.io)
    assert listed(mine) == listed(its)


def test_a_rewritten_manifest_is_the_one_that_pyiceberg_writes_for_the_same_entries(tables, tmp_path):
    _, theirs = tables
    theirs.append(rows(24))
    source = max(theirs.current_snapshot().manifests(theirs.io), key=lambda manifest: manifest.sequence_number)
    entries = source.fetch_manifest_entry(theirs.io)
    marks = bytearray(n % 2 for n in range(len(entries)))
    took = []
    mine = rewrite_manifest(
        theirs.io, f"{tmp_path}/mine.avro", source, 7, marks, lambda entry, _: took.append(entry.file["file_path"])
    )
    with ManifestWriterV2(theirs.spec(), SCHEMA, theirs.io.new_output(f"{tmp_path}/its.avro"), 7, "gzip") as writer:
        for entry, goes in zip(entries, marks, strict=True):
            (writer.delete if goes else writer.existing)(entry)
    its = writer.to_manifest_file()
    assert took == [entry.data_file.file_path for entry, goes in zip(entries, marks, strict=True) if goes]
    assert header(mine.manifest_path) == header(its.manifest_path)
    assert files_of([mine], theirs.io) == files_of([its], theirs.io)
    assert heads(mine, theirs.io) == heads(its, theirs.io)
    assert listed(mine) == listed(its)


def heads(manifest, io) -> list[tuple]:
    return [
        (entry.status, entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
    ]


def copy_of(file: DataFile, number: int) -> DataFile:
    copied = DataFile(*file._data)
    copied._data[1] = f"{file.file_path}-{number}"
    copied.spec_id = file.spec_id
    return copied
