"""What a ``SparkDataFrame`` says of itself, and its plans: buckets that never change, and rounds that hold every id once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.documents import Plan, Split, fingerprint, from_json, to_json
from airflow_ckpt_provider.checkpoint.restaged import restaged
from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.dealing import Cut, ShareRead
from airflow_ckpt_provider.sources.frame_plans import plan_of_buckets, recovered_splits
from airflow_ckpt_provider.sources.protocol import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def build(spark: SparkSession, day: str = "2026-01-01") -> DataFrame:
    return spark.sql(f"SELECT '{day}' AS day")


def other(spark: SparkSession, day: str = "2026-01-01") -> DataFrame:
    return spark.sql(f"SELECT '{day}' AS today")


def test_it_is_a_source():
    assert isinstance(SparkDataFrame(build, "id"), Source)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"build": "shop.orders"}, r"'shop.orders'\): must be a function or a name like 'package.module:function'"),
        ({"build": 3}, r"SparkDataFrame\(3\)"),
        ({"id_column": []}, r"id_column=\[\]"),
        ({"id_column": ["a", "a"]}, "different column names"),
        ({"id_column": [3]}, "column names"),
        ({"buckets": 0}, r"buckets=0\): must be between 1 and 100000"),
        ({"buckets": 100_001}, "buckets=100001"),
        ({"bucket_rows": 5, "recover": "rows"}, r"bucket_rows=5, recover='rows'\): it cuts buckets"),
        ({"bucket_rows": 5, "id_column": None}, r"bucket_rows=5, recover='partitions'\): it cuts buckets"),
        ({"bucket_rows": 0}, r"bucket_rows=0\): must be a number of rows"),
        ({"bucket_rows": "5"}, r"bucket_rows='5'\): must be a number of rows"),
        ({"recover": "files"}, "the values are 'partitions', 'buckets' and 'rows'"),
        ({"parameters": {"day": object()}}, "must be JSON values by name"),
        ({"parameters": {1: "x"}}, "must be JSON values by name"),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(changes, said):
    with pytest.raises(InvalidInputError, match=said):
        SparkDataFrame(**({"build": build, "id_column": "id"} | changes))


def test_a_function_by_name_is_imported_only_when_it_is_needed():
    source = SparkDataFrame("no_such_module:build", "id")
    assert source.name == "no_such_module:build"
    with pytest.raises(InvalidInputError, match=r"'no_such_module:build'\) cannot be imported: No module named"):
        source.describe()
    with pytest.raises(InvalidInputError, match="cannot be imported"):
        SparkDataFrame("json:no_such_function", "id").describe()
    with pytest.raises(InvalidInputError, match="is not a function"):
        SparkDataFrame("json:__name__", "id").describe()


def test_the_code_the_parameters_and_how_it_is_cut_are_bound_to_the_key():
    def of(**changes):
        return fingerprint(SparkDataFrame(**({"build": build, "id_column": ["a", "b"]} | changes)).describe())

    same = of()
    assert same == of()
    assert same == of(buckets=64, recover="buckets", parameters={})
    changes = (
        {"build": other},
        {"build": functools.partial(build, day="x")},
        {"id_column": ["b", "a"]},
        {"id_column": ["a"]},
        {"buckets": 65},
        {"bucket_rows": 5},
        {"recover": "rows"},
        {"parameters": {"day": "2026-01-02"}},
        {"assert_unique": True},
    )
    assert len({same, *(of(**change) for change in changes)}) == len(changes) + 1


def test_a_promise_that_it_is_reproducible_changes_no_row_and_binds_nothing():
    assert SparkDataFrame(build, "id", reproducible=True).describe() == SparkDataFrame(build, "id").describe()


LIMIT = 1


def limited(spark: SparkSession) -> DataFrame:
    return spark.range(LIMIT)


def test_what_build_uses_is_bound_too_and_a_version_stands_for_it(monkeypatch, tmp_path):
    before = SparkDataFrame(limited, "id").describe()
    versions = [SparkDataFrame(limited, "id", build_version=version).describe() for version in "12"]
    monkeypatch.setattr(f"{__name__}.LIMIT", 2)
    assert SparkDataFrame(limited, "id").describe() != before
    assert [SparkDataFrame(limited, "id", build_version=version).describe() for version in "12"] == versions
    assert versions[0] != versions[1]
    with (tmp_path / "log").open("w") as handle:
        monkeypatch.setattr(f"{__name__}.LIMIT", handle)
        with pytest.raises(InvalidInputError, match=r'limited → LIMIT is a .*pass build_version="1"'):
            SparkDataFrame(limited, "id").describe()
    with pytest.raises(InvalidInputError, match="build_version=' '"):
        SparkDataFrame(limited, "id", build_version=" ").describe()


def test_a_plan_has_one_split_per_bucket_and_is_never_planned_anew():
    source = SparkDataFrame(build, "id", buckets=3)
    plan = source.plan({})
    assert [(split.id, split.read) for split in plan.splits] == [
        ("000000", {"bucket": 0}),
        ("000001", {"bucket": 1}),
        ("000002", {"bucket": 2}),
    ]
    assert source.replan([plan], {"000001"}) is None
    assert recovered_splits(plan) == []


# -- rounds -----------------------------------------------------------------------------------------------------------

ROWS = SparkDataFrame(build, "id", buckets=3, recover="rows")


def ids(plan: Plan) -> list[str]:
    return [split.id for split in plan.splits]


def test_a_round_lists_what_is_staged_of_the_round_before_and_fresh_splits_for_all_buckets():
    first = ROWS.plan({})
    assert ids(first) == ["r0001p000000", "r0001p000001", "r0001p000002"]
    second = ROWS.replan([first], {"r0001p000001"}, "an attempt")
    assert ids(second) == ["r0001p000001", "r0002p000000", "r0002p000001", "r0002p000002"]
    assert [split.id for split in recovered_splits(second)] == ["r0001p000001"]
    assert second.source["attempt"] == "an attempt"
    # Published late by the first attempt: in no later round.
    third = ROWS.replan([first, second], {"r0001p000000", "r0001p000001", "r0002p000002"})
    assert ids(third)[:2] == ["r0001p000001", "r0002p000002"]
    assert [split.id for split in recovered_splits(third)] == ids(third)[:2]


def test_a_round_that_is_staged_whole_is_sealed_and_not_followed_by_another():
    first = ROWS.plan({})
    assert ROWS.replan([first], set(ids(first))) is None


def test_a_round_after_lost_files_lists_fresh_splits_for_all_buckets_and_no_lost_one():
    first = ROWS.plan({})
    lost = restaged(first, {"r0001p000000"}, 2)
    again = ROWS.restaged(lost, {"r0001p000001", "r0001p000002"}, 2, "an attempt")
    assert ids(again) == ["r0001p000001", "r0001p000002", "r0002p000000", "r0002p000001", "r0002p000002"]
    assert [split.id for split in recovered_splits(again)] == ["r0001p000001", "r0001p000002"]
    buckets = SparkDataFrame(build, "id", buckets=3)
    renamed = restaged(buckets.plan({}), {"000001"}, 2)
    assert [(split.id, split.read) for split in renamed.splits][1] == ("000001z2", {"bucket": 1})


def test_two_attempts_that_race_for_a_round_can_tell_whose_it_is():
    first = ROWS.plan({})
    mine, theirs = ROWS.replan([first], set()), ROWS.replan([first], set())
    assert mine.source["attempt"] != theirs.source["attempt"]
    assert ROWS.plan({}).source["attempt"] != first.source["attempt"]
    assert from_json("plan.json.zst", to_json("plan.json.zst", mine), Plan) == mine


@given(st.data())
def test_whatever_is_staged_when_and_by_whom_a_sealed_round_holds_every_id_once(data):
    """A model of many attempts: rows arrive, attempts stage some of their splits or come back late; then one round is whole."""
    frame = set(range(6))
    plans: list[Plan] = []
    views: list[dict[str, frozenset[int]]] = []
    staged: dict[str, frozenset[int]] = {}
    while True:
        fresh = ROWS.replan(plans, set(staged)) if plans else ROWS.plan({})
        if fresh is not None:
            plans.append(fresh)
            done = {one for split in recovered_splits(fresh) for one in staged[split.id]}
            new = [split for split in fresh.splits if split not in recovered_splits(fresh)]
            views.append({split.id: frozenset(i for i in frame - done if i % 3 == split.read["bucket"]) for split in new})
        if fresh is None or len(plans) > 4:
            staged = views[-1] | staged
            break
        # Any attempt, old or new, publishes any of its own splits; the first publication wins.
        choices = sorted((number, split_id) for number, view in enumerate(views) for split_id in view)
        for number, split_id in data.draw(st.lists(st.sampled_from(choices), unique=True)):
            staged.setdefault(split_id, views[number][split_id])
        frame |= data.draw(st.sets(st.integers(6, 20), max_size=4))
    sealed = sorted(one for split_id in ids(plans[-1]) for one in staged[split_id])
    assert len(sealed) == len(set(sealed))
    assert set(range(6)) <= set(sealed) <= frame


SHARES = (ShareRead(bucket=1, share=0, rows=7, sum="1"), ShareRead(bucket=1, share=1, rows=8, sum="2"))


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda splits: splits[1:], "leaves out bucket 0"),
        (lambda splits: (*splits[:2], *splits[3:]), "leaves out share 1 of bucket 1"),
        (lambda splits: (*splits, msgspec.structs.replace(splits[1], id="x")), "reads share 0 of bucket 1 of .* twice"),
        (lambda splits: (*splits, msgspec.structs.replace(splits[0], id="x", read={"bucket": 1})), "reads bucket 1 of .* not list"),
        (
            lambda splits: (*splits, Split(id="x", bytes=0, read={"bucket": 1, "share": 2})),
            "reads share 2 of bucket 1 of .* not list",
        ),
    ],
)
def test_a_plan_in_which_a_share_is_computed_twice_or_not_at_all_is_refused(read, said):
    source = SparkDataFrame(build, "id", buckets=3, bucket_rows=9)
    plan = plan_of_buckets(3, Cut({1: 2}, ("id",), SHARES))
    source.require_once(plan, {})
    with pytest.raises(CorruptObjectError, match=said):
        source.require_once(msgspec.structs.replace(plan, splits=tuple(read(plan.splits))), {})
