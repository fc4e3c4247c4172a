"""Rows of a DataFrame at which the transform fails: rejected bucket by bucket, and run again without computing the DataFrame."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.frames import orders

from airflow_ckpt_provider.exceptions import RowsToRetryError
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.spark.engine import SparkEngine
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from airflow_ckpt_provider.transforms import Map
from airflow_ckpt_provider.write.rejecting import OnError
from airflow_ckpt_provider.write.rounds import Rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BAD = {3, 57, 58, 199, 320}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkTarget("local[2]"), "rejecting frames") as spark:
        yield spark


def failing(id: int, fixed: str) -> str:  # noqa: A002 - the column
    if id in BAD and not Path(fixed).exists():
        raise ValueError(f"{id} is bad")
    return f"made of {id}"


def counted(spark: SparkSession, path: str, computed: str) -> DataFrame:
    """The world's input files; notes that they are asked for."""
    with Path(computed).open("a") as file:
        file.write("x")
    return orders(spark, path)


@pytest.mark.parametrize("recover", ["buckets", "rows"])
def test_rows_of_a_frame_that_fail_run_again_in_the_next_attempt_and_all_land_once(spark, world, tmp_path, recover):
    fixed, computed = tmp_path / "fixed", tmp_path / "computed"
    parameters = {"path": str(world.input), "computed": str(computed)}
    source = SparkDataFrame(counted, id_column="id", buckets=4, parameters=parameters, recover=recover)
    transform = Map(partial(failing, fixed=str(fixed)), output={"kind": str}, keep=["id", "value", "at"])
    engine = SparkEngine(SparkTarget("local[2]"), "a test", lambda _: None)
    engine._spark = spark

    def attempted():
        request = world.request(source=source, transform=transform, transform_version="1", on_error=OnError("retry"))
        attempt = world.attempt(request)
        Rounds(engine, 1).run(attempt, lambda _: None, lambda _: None)
        attempt.seal()
        return attempt

    with pytest.raises(RowsToRetryError, match="failed at 5 of 400 rows of the input"):
        attempted()
    times = computed.read_text()
    fixed.touch()
    attempt = attempted()
    assert computed.read_text() == times
    assert attempt.checkpoint.sealed().rejected == ()
    world.commit(attempt)
    assert world.ids() == list(range(400))
    made = world.table().scan().to_arrow().to_pylist()
    assert all(row["kind"] == f"made of {row['id']}" for row in made)
