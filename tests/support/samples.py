"""One sample of every stored document, under the name it is stored by. Golden files hold exactly these."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import (
    Attempt,
    Code,
    Commit,
    Compact,
    Connections,
    Continue,
    Group,
    Header,
    Member,
    Members,
    Origin,
    Piece,
    Plan,
    ReadBy,
    RejectedFile,
    Seal,
    Split,
    Staged,
    StagedFile,
    TableBinding,
    Tombstone,
    contents_of,
)
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest
from airflow_ckpt_provider.tables.iceberg.manifest.staged import FieldSummary

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import Document

KEY = IdempotenceKey("shop/stage_orders/scheduled__2026-01-01T00:00:00+00:00/-1")
AT = datetime(2026, 1, 1, 12, 30, 15, 250000, tzinfo=UTC)

MANIFEST = StagedManifest(
    path="s3://warehouse/orders/metadata/ckpt-m.avro",
    length=4711,
    spec_id=0,
    files=1,
    rows=250,
    bytes=2048,
    summaries=(FieldSummary(contains_null=True, contains_nan=None, lower="AQ==", upper="/w=="),),
    partitions=("day=2026-01-01",),
)

#: As a store gives it back: lists, no tuples.
MANIFEST_JSON = msgspec.json.decode(msgspec.json.encode(MANIFEST))

HEADER = Header(
    key=KEY.value,
    generation=1,
    created_at=AT,
    table=TableBinding(
        format="iceberg",
        identifier="shop.orders",
        uuid="9c12d441-03fe-4693-9a96-a0705ddf69c1",
        branch="main",
        schema_id=0,
        spec_id=0,
        schema_fingerprint="5f" * 32,
    ),
    mode="append",
    parameters={},
    source={"files": "s3://landing/orders/*.parquet", "format": "parquet", "filter": [["day", "=", "2026-01-01"]]},
    source_fingerprint="a1" * 32,
    transform="shop.transforms:clean",
    transform_fingerprint="b2" * 32,
    connections=Connections(table="iceberg_default", spark="spark_default", checkpoint="checkpoint_default"),
    origin=Origin(dag_id="shop", task_id="stage_orders", run_id="scheduled__2026-01-01T00:00:00+00:00", map_index=-1),
    restart_token=None,
    transform_version="3",
    transform_kind="a function from batches to batches",
)

PLAN = Plan(
    created_at=AT,
    source={"kind": "files", "files": 1, "bytes": 4096},
    splits=(Split(id="000000", bytes=4096, read={"slices": [[["orders/1.parquet", 4096, '"etag"'], None, None]]}),),
    base=4711,
)

GROUP = Group(id="0f" * 16, members=(Member(key=KEY.value, generation=1),), stream="ab" * 8, bound_at=AT, horizon=7)

SAMPLES: dict[str, Document] = {
    "header.json": HEADER,
    "plan.json": PLAN,
    "attempt.json": Attempt(
        id="a1b2c3d4e5f6",
        started_at=AT,
        origin=HEADER.origin,
        try_number=2,
        host="worker-1",
        pid=4242,
        engine="spark 4.2.0 local[2]",
    ),
    "code.json": Code(transform="shop.transforms:clean", fingerprint="", version="4", accepted_at=AT, request=1),
    "continue.json": Continue(requested_at=AT, requested_by="ann"),
    "staged.json": Staged(
        split="000000",
        writer="a1b2c3d4e5f6.0",
        published_at=AT,
        rows=250,
        bytes=2048,
        files=(StagedFile("s3://warehouse/orders/data/ckpt-1.parquet", 2048),),
        manifest=MANIFEST_JSON,
        replaces=("s3://warehouse/orders/data/old.parquet",),
        counts={"inserted": 50, "updated": 200},
        intermediate={"kind": "iceberg_sidecar", "path": "s3://warehouse/orders/data/ckpt-2.parquet", "bytes": 640, "rows": 200},
        missing=("note", "place.zip"),
        computed_by=("0123456789abcdef", "fedcba9876543210"),
        input_rows=253,
        rejected=(RejectedFile("000000", "a1b2c3d4e5f6.0", 3, 4711, "c3" * 32),),
    ),
    "piece.json": Piece(
        split="000001",
        writer="a1b2c3d4e5f6.1p2",
        published_at=AT,
        rows=40,
        bytes=512,
        files=(StagedFile("s3://warehouse/orders/data/ckpt-3.parquet", 512),),
        manifest=MANIFEST_JSON,
        number=2,
        begin=80,
        end=100,
        last=True,
        ids="e5" * 32,
        input_rows=20,
        rejected=(RejectedFile("000001", "a1b2c3d4e5f6.1p2", 1, 900, "d4" * 32),),
    ),
    "seal.json": Seal(
        sealed_at=AT,
        contents=contents_of(PLAN, []),
        splits=1,
        rows=250,
        bytes=2048,
        files=1,
        manifests=(MANIFEST_JSON,),
        round=2,
        counts={"inserted": 50, "updated": 200},
        provisional=True,
        computed_by={"0123456789abcdef": 1, "fedcba9876543210": 1},
        rejected=(RejectedFile("000000", "a1b2c3d4e5f6.0", 3, 4711, "c3" * 32),),
    ),
    "compact.json": Compact(
        sealed_at=AT,
        contents=contents_of(PLAN, []),
        splits=1,
        rows=250,
        bytes=2048,
        files=1,
        manifests=(),
        round=2,
        counts={"inserted": 50, "updated": 200},
        provisional=True,
        computed_by={"0123456789abcdef": 1, "fedcba9876543210": 1},
        compacted_at=AT,
        sealed="5e" * 32,
        attempts=("a1b2c3d4e5f6",),
    ),
    "group.json": GROUP,
    "members.json": Members(members=(Member(key=KEY.value, generation=1), Member(key="shop/other", generation=2))),
    "commit.json": Commit(group=GROUP.id, commit_id=4611686018427387904, committed_at=AT, rows=250),
    "discard.json": Tombstone(discarded_at=AT, reason="restart was asked for"),
    "readby.json": ReadBy(reader=Member(key="shop/embed", generation=1), origin=HEADER.origin, begun_at=AT),
}
