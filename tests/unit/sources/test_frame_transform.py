"""What a frame transform says of itself, and what its plan pins of the source that it reads."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from support.world import rows

from airflow_ckpt_provider.checkpoint.documents import Plan, fingerprint, from_json, to_json
from airflow_ckpt_provider.exceptions import CorruptObjectError, InputChangedError, InvalidInputError
from airflow_ckpt_provider.sources import Files, IcebergTable, SparkDataFrame, Staged
from airflow_ckpt_provider.sources.frame_transform import opened
from airflow_ckpt_provider.sources.protocol import IncrementalSource, PinningSource, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def enriched(df: DataFrame, least: int = 0) -> DataFrame:
    return df.where(df["id"] >= least)


def other(df: DataFrame) -> DataFrame:
    return df


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        pq.write_table(rows(number * 10, 10), tmp_path / f"{number}.parquet")
    return tmp_path


def transform_of(folder, source=None, **changes):
    read = source or Files(f"{folder}/*.parquet", max_split_bytes=1)
    given = SparkDataFrame(**({"source": read, "dataframe": enriched, "id_column": "id", "buckets": 4} | changes))
    return opened(given, read, {})


def test_it_is_a_source_that_pins_what_it_reads(folder):
    transform = transform_of(folder)
    assert isinstance(transform, Source)
    assert isinstance(transform, PinningSource)
    assert not isinstance(transform, IncrementalSource)
    assert isinstance(transform_of(folder, IcebergTable("shop.orders", since="last_commit")), IncrementalSource)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dataframe": None}, "so that both are needed"),
        ({"source": None}, "so that both are needed"),
        ({"build": other}, "takes one of a function, a query and the name of a table; or a source, and the dataframe"),
        ({"sql": "SELECT 1"}, "takes one of a function"),
        ({"source": 3}, r"source=3\): is neither a source, such as Files"),
        ({"source": SparkDataFrame(other, "id")}, "stage the first with a CheckpointedTransformOperator and read its output"),
        ({"source": SparkDataFrame(source="/in/*.parquet", dataframe=other, id_column="id")}, "Make one function of both"),
        ({"recover": "rows"}, "read as it was when it was planned. Use recover='buckets'"),
        ({"dataframe": "shop.enriched"}, "must be a function or a name like"),
        ({"dataframe": 3}, "must be a function or a name like"),
        ({"build_version": " "}, "is not a text"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_read(folder, changes, said):
    with pytest.raises(InvalidInputError, match=said):
        SparkDataFrame(**({"source": f"{folder}/*.parquet", "dataframe": enriched, "id_column": "id"} | changes)).describe()


def test_what_is_read_the_code_and_the_parameters_are_bound_to_the_key(folder):
    def of(**changes):
        return fingerprint(transform_of(folder, **changes).describe())

    same = of()
    changes = (
        {"source": Files(f"{folder}/0.parquet")},
        {"source": IcebergTable("shop.orders")},
        {"source": IcebergTable("shop.orders", since="last_commit")},
        {"dataframe": other},
        {"build_version": "1"},
        {"parameters": {"least": 1}},
        {"buckets": 5},
        {"id_column": None},
    )
    assert same == of()
    assert len({same, *(of(**change) for change in changes)}) == len(changes) + 1


def test_a_function_by_name_is_imported_only_when_it_is_needed(folder):
    transform = transform_of(folder, dataframe="no_such_module:enriched")
    assert transform.name == "no_such_module:enriched"
    with pytest.raises(InvalidInputError, match="cannot be imported"):
        transform.describe()


def test_a_copy_has_a_source_of_its_own_to_render_templates_in():
    given = SparkDataFrame(source=Files("/in/{{ ds }}/*.parquet"), dataframe=other, id_column="id")
    copied = copy.copy(given)
    copied.source.uri = "/in/2026-01-01/*.parquet"
    assert given.source.uri == "/in/{{ ds }}/*.parquet"


def test_the_plan_has_what_is_read_beside_the_buckets_and_a_retry_is_given_that(folder):
    plan = transform_of(folder).plan({})
    stored = from_json("plan.json.zst", to_json("plan.json.zst", plan), Plan)
    pq.write_table(rows(100, 10), folder / "late.parquet")
    again = transform_of(folder)
    bound, dealt = again.reading(stored)
    assert [split.read for split in stored.splits] == [{"bucket": number} for number in range(4)]
    assert bound.planned.splits == Files(f"{folder}/[0-2].parquet", max_split_bytes=1).plan({}).splits
    assert dealt.source == {"kind": "dataframe", "buckets": 4}
    assert again.planned is None
    assert again.news(stored, {}) == "1 file matches now that was not read: late.parquet"


def test_input_that_was_changed_is_named_before_a_session_reads_it(folder):
    plan = transform_of(folder).plan({})
    pq.write_table(rows(100, 11), folder / "1.parquet")
    with pytest.raises(InputChangedError, match=r"1\.parquet"):
        transform_of(folder).reading(plan)


def test_a_plan_that_reads_or_computes_anything_twice_or_not_at_all_is_refused(folder):
    transform = transform_of(folder)
    plan = transform.plan({})
    transform.require_once(plan, {})
    doubled = {**plan.source, "splits": [plan.source["splits"][0]] * 2}
    for forged, said in (
        ({"splits": plan.splits[:3]}, "leaves out bucket 3"),
        ({"splits": plan.splits + plan.splits[:1]}, "reads bucket 0 of round 0"),
        ({"source": doubled}, r"0\.parquet.* twice"),
        ({"source": {**plan.source, "splits": []}}, "out of nothing that is read"),
        ({"source": {k: v for k, v in plan.source.items() if k != "dealt"}}, "does not say how the rows"),
    ):
        altered = Plan(**{"created_at": plan.created_at, "source": plan.source, "splits": plan.splits} | forged)
        with pytest.raises(CorruptObjectError, match=said):
            transform.require_once(altered, {})


def test_a_source_without_splits_has_nothing_to_transform(folder):
    plan = transform_of(folder, Files(f"{folder}/none-*.parquet")).plan({})
    assert plan.splits == ()
    transform_of(folder, Files(f"{folder}/none-*.parquet")).require_once(plan, {})
    assert list(transform_of(folder, Files(f"{folder}/none-*.parquet")).session_sample(None)) == []


def test_whose_rows_are_read_is_passed_on(folder):
    with pytest.raises(InvalidInputError, match="takes the output of a CheckpointedTransformOperator"):
        SparkDataFrame(source=Staged("a key"), dataframe=other, id_column="id")
