"""What each kind of source pins in its plan, and in the splits of it, is stored as it always was."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import msgspec
import pytest

import airflow_ckpt_provider.sources
from airflow_ckpt_provider.checkpoint.documents import Pinned, Plan, Split
from airflow_ckpt_provider.scan.data_files import PinnedSnapshot
from airflow_ckpt_provider.sources.dealing import Cut, ShareRead
from airflow_ckpt_provider.sources.files.source import ListedFiles
from airflow_ckpt_provider.sources.frame_input import FrameInput
from airflow_ckpt_provider.sources.frame_plans import Buckets, Partitions, cut_of, plan_of_buckets
from airflow_ckpt_provider.sources.grouped import GroupedInput
from airflow_ckpt_provider.sources.lance import PinnedVersion
from airflow_ckpt_provider.sources.rejected.source import RejectedInput, RejectedWrite
from airflow_ckpt_provider.sources.saved import SavedBy, plan_of

GOLDEN = Path(__file__).parent / "golden"

AT = "2026-01-01T12:30:15.250000+00:00"

LISTED = ListedFiles(files=1, bytes=4096)

LISTED_SPLIT = Split(id="000000", bytes=4096, read={"slices": [[["orders/1.parquet", 4096, '"etag"'], None, None]]})

PINNED = {
    "files.json": LISTED,
    "iceberg.json": PinnedSnapshot(
        table="shop.orders", table_uuid="9c12d441-03fe-4693-9a96-a0705ddf69c1", snapshot_id=4611686018427387904, schema_id=2,
        files=3, rows=250, bytes=4096, filter="day = '2026-01-01'",
    ),
    "lance.json": PinnedVersion(
        dataset="s3://lake/vectors.lance", version=7, made_at=AT, fragments=4, bytes=4096, filter="label = 'cat'"
    ),
    "dataframe.json": Buckets(buckets=64, round=2, attempt="a1b2c3d4e5f6", recovered=17),
    "cut.json": Buckets(buckets=64, cut={"5": 3, "17": 2}, by=("shop", "day")),
    "partitions.json": Partitions(
        partitions=8, query="1a" * 32, inputs="2b" * 32, files=12, settings={"spark.sql.shuffle.partitions": "8"}, spark="4.2.0"
    ),
    "grouped.json": GroupedInput(buckets=16, source=LISTED.to_json(), splits=(LISTED_SPLIT,)),
    "frame_transform.json": FrameInput(source=LISTED.to_json(), splits=(LISTED_SPLIT,), dealt=Buckets(buckets=16).to_json()),
    "rejected.json": RejectedInput(
        writes=(RejectedWrite(key="shop/orders", generation=1, sealed="5e" * 32, rows=17),)
    ),
    "saved.json": SavedBy(execution="0f1e2d3c4b5a"),
}  # fmt: skip


@pytest.mark.parametrize("name", PINNED)
def test_what_a_source_pins_is_written_and_read_as_it_always_was(name):
    golden = (GOLDEN / name).read_bytes().strip()
    assert msgspec.json.encode(PINNED[name].to_json()) == golden
    plan = msgspec.convert({"created_at": AT, "source": msgspec.json.decode(golden), "splits": []}, Plan)
    assert plan.source_as(type(PINNED[name])) == PINNED[name]


def test_no_kind_of_source_is_forgotten_here():
    for module in pkgutil.walk_packages(airflow_ckpt_provider.sources.__path__, "airflow_ckpt_provider.sources."):
        importlib.import_module(module.name)
    kinds = [kind for kind in Pinned.__subclasses__() if kind.__module__.startswith("airflow_ckpt_provider.sources")]
    assert set(kinds) <= {type(pinned) for pinned in PINNED.values()}


def test_the_shares_of_a_bucket_are_splits_that_say_what_was_counted():
    shares = [ShareRead(bucket=1, share=0, rows=7, sum="-36893488147419103232"), ShareRead(bucket=1, share=1)]
    cut = Cut({1: 2}, ("shop", "day"), shares)
    plan = plan_of_buckets(3, cut)
    assert [(split.id, split.read) for split in plan.splits] == [
        ("000000", {"bucket": 0}),
        ("000001s000000", {"bucket": 1, "share": 0, "rows": 7, "sum": "-36893488147419103232"}),
        ("000001s000001", {"bucket": 1, "share": 1}),
        ("000002", {"bucket": 2}),
    ]
    assert cut_of(plan) == cut
    assert cut_of(plan_of_buckets(3)) is None


def test_the_splits_of_a_save_say_which_execution_has_staged_them():
    plan = plan_of("0f1e2d3c4b5a", ["x0f1e2d3c4b5ap000001t7_ab", "x0f1e2d3c4b5ap000000t6_cd"])
    assert plan.splits == tuple(
        Split(id=split_id, bytes=0, read={"execution": "0f1e2d3c4b5a"})
        for split_id in ("x0f1e2d3c4b5ap000000t6_cd", "x0f1e2d3c4b5ap000001t7_ab")
    )
