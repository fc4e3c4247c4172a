"""DataFrames with other rows every time are refused with the operator named; all others are not. In a classic session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.frames import IRREPRODUCIBLE, REPRODUCIBLE, numbers

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.spark.frame.reproducible import require_reproducible
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkTarget("local[2]"), "reproducible") as spark:
        yield spark


@pytest.mark.parametrize("case", IRREPRODUCIBLE)
def test_a_frame_with_other_rows_every_time_is_refused_by_name(spark, case):
    said, build = IRREPRODUCIBLE[case]
    with pytest.raises(InvalidInputError, match=rf"of shop:orders is not reproducible[^\n]*\n(.*\n)*.*{said}"):
        require_reproducible(spark, build(numbers(spark)), ["id"], "shop:orders")


@pytest.mark.parametrize("case", REPRODUCIBLE)
def test_a_frame_with_the_same_rows_every_time_is_not_refused(spark, case):
    require_reproducible(spark, REPRODUCIBLE[case](numbers(spark)), ["id"], "shop:orders")


def test_a_text_that_looks_like_a_call_is_no_call(spark):
    require_reproducible(spark, numbers(spark).selectExpr("*", "'rand() and now()' AS s"), ["id"], "shop:orders")


def test_a_function_registered_as_not_deterministic_is_refused_by_its_name(spark):
    from pyspark.sql import functions as f

    spark.udf.register("lottery", f.udf(lambda value: value, "long", useArrow=False).asNondeterministic())
    frame = numbers(spark)
    with pytest.raises(InvalidInputError, match="non-deterministic function lottery"):
        require_reproducible(spark, frame.selectExpr("id", "lottery(k) AS k"), ["id"], "shop:orders")
