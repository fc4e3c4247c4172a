"""What is stored of Lance writes, in records, plans and headers, is stored as it always was."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from airflow_ckpt_provider.checkpoint.documents import Pinned, TableBinding
from airflow_ckpt_provider.scan.lance_rows import Rows
from airflow_ckpt_provider.scan.row_lineage import MovedRows
from airflow_ckpt_provider.sources.lance import LanceSplit
from airflow_ckpt_provider.tables.lance.columns.writer import Join
from airflow_ckpt_provider.tables.lance.deletions import Deletions
from airflow_ckpt_provider.tables.lance.fragments import StagedFragment, StagedFragments
from airflow_ckpt_provider.tables.lance.intermediate import ColumnFile, KeysSize, Match, RowIds
from airflow_ckpt_provider.tables.lance.upsert.sidecar import DatasetSidecar
from airflow_ckpt_provider.tables.lance.upsert.source import StagedSource, StoredSource, UpsertPinned
from airflow_ckpt_provider.tables.lance.watermarks import Begun

GOLDEN = Path(__file__).parent / "golden"

BINDING = TableBinding(
    format="lance",
    identifier="s3://lake/vectors.lance",
    uuid="",
    branch="main",
    schema_id=0,
    spec_id=0,
    schema_fingerprint="ab" * 32,
    base={
        "version": 7,
        "committed_at": "2026-01-01T12:30:15.250000+00:00",
        "columns": [
            ["id", 0, "int64", False, []],
            ["tags", 1, "list<item: string>", True, [["item", 2, "string", True, []]]],
        ],
    },
)

STORED = {
    "lance_fragments.json": StagedFragments(
        fragments=(StagedFragment("ckpt-a-g1-s000000-b.0-00000.lance", 3, 512),), fields=(0, 2), storage_version="2.2"
    ),
    "lance_split.json": LanceSplit(7, "2026-01-01T12:30:15.250000+00:00", (0, 4)),
    "lance_source.json": StagedSource(("ckpt-a-g1-s000000-b.0-00000.lance",), 3, 24, (512,)).stored,
    "lance_upsert.json": UpsertPinned(
        keeps_row_ids=True,
        source=StoredSource(files=(), rows=0, key_bytes=0, sizes=()),
        sidecars=(DatasetSidecar(name="_checkpoints/a", bytes=1),),
    ),
    "lance_keys_size.json": KeysSize(key_bytes=24),
    "lance_match.json": Match(
        deletions=Deletions(fragment=3, read_version=7, id=4611686018427387904, num_deleted_rows=2),
        sidecar=DatasetSidecar(name="_checkpoints/a", bytes=1),
    ),
    "lance_row_ids.json": RowIds(file=DatasetSidecar(name="_checkpoints/ckpt-a-g1-sfilter0-b.0-rowids.arrow", bytes=512)),
    "lance_column_file.json": ColumnFile(name="ckpt-a-g1-sjoin_0-b.0-00000.lance", bytes=512),
    "lance_sidecar.json": DatasetSidecar(name="_checkpoints/ckpt-a-g1-smatch0-b.0-matched.arrow", bytes=512, sources=(0, 2)),
    "lance_rows.json": Rows(7, "2026-01-01T12:30:15.250000+00:00", 4, 65536, 131072, "ab" * 8),
    "lance_join.json": Join("ab" * 8, 131072, (("ckpt-a-g1-srows_0-b.0-00000.lance", 512),)),
    "lance_join_moved.json": Join("ab" * 8, 8, (("ckpt-a-g1-srows_0-b.0-00000.lance", 512),), (((0, 5, 0), (7, 10, 5)),)),
    "lance_binding.json": BINDING,
    "lance_moved_rows.json": MovedRows("rows_000000_00000000_abab", 10, 20),
    "lance_begun.json": Begun("ab" * 16, 7),
}

#: What is stored as msgspec has it.
PLAIN = TableBinding | StoredSource | Pinned | MovedRows | Begun | DatasetSidecar


def as_json(stored):
    return msgspec.to_builtins(stored) if isinstance(stored, PLAIN) else stored.to_json()


@pytest.mark.parametrize("name", STORED)
def test_it_is_written_and_read_as_it_always_was(name):
    golden = (GOLDEN / name).read_bytes().strip()
    stored = STORED[name]
    assert msgspec.json.encode(as_json(stored)) == golden
    found = json.loads(golden)
    read = msgspec.convert(found, type(stored)) if isinstance(stored, PLAIN) else type(stored).from_json(found)
    assert read == stored
