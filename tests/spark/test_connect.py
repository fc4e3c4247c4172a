"""A stage through Spark Connect: the same code, another kind of session, and a server whose Python lacks this package."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.stages import Gate, prepare
from support.standalone import connect_server

from airflow_ckpt_provider.exceptions import InvalidInputError, RetryableError, StageFailedError
from airflow_ckpt_provider.spark import connect
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory, bare_python: Path) -> Iterator[SparkTarget]:
    with connect_server(tmp_path_factory.mktemp("connect"), bare_python) as url:
        yield SparkTarget(master="", remote=url)


@pytest.fixture(scope="module")
def spark(remote: SparkTarget) -> Iterator[SparkSession]:
    with spark_session(remote, "connect stages") as spark:
        yield spark


def where(batch: pa.RecordBatch, folder: str) -> pa.RecordBatch:
    import airflow_ckpt_provider

    Path(folder, f"{batch['id'][0]}").write_text(airflow_ckpt_provider.__file__)
    return batch


def test_a_stage_on_a_connect_server_runs_the_package_that_the_client_sent_in_one_task_per_split(spark, world, tmp_path):
    found = tmp_path / "found"
    found.mkdir()
    request = world.request(transform=partial(where, folder=str(found)))
    world.stage(request, splits=1)
    (found / "0").unlink()
    stage = prepare(spark, world, request)
    last = stage.stage()[-1]
    assert (last.done, last.recovered, last.rows) == (4, 1, 300)
    assert len({staged.writer for staged in stage.attempt.checkpoint.staged(stage.missing)}) == 3
    assert {file.name for file in found.iterdir()} == {"100", "200", "300"}
    assert all(".zip/airflow_ckpt_provider/" in file.read_text() for file in found.iterdir())
    world.commit(stage.attempt)
    assert world.ids() == list(range(400))


def test_a_cancel_stops_the_job_on_the_server_and_a_retry_completes(spark, world, tmp_path):
    gate = Gate(tmp_path / "gate", below=200)
    stage = prepare(spark, world, world.request(transform=gate.transform))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stage.stage)
        gate.wait_for(2)
        stage.run.cancel()
        with pytest.raises(StageFailedError, match=r"was stopped\. At least 2 of 4 splits are staged"):
            running.result(15)
    gate.wait_until_gone()
    gate.open()
    retry = prepare(spark, world, world.request(transform=gate.transform))
    assert len(retry.missing) == 2
    retry.stage()
    world.commit(retry.attempt)
    assert world.ids() == list(range(400))


def no_price(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError(f"no price in {batch.num_rows} rows")


def test_an_error_of_the_users_transform_names_the_users_own_line(spark, world):
    line = no_price.__code__.co_firstlineno + 1
    where = rf"\(in split \d+: .*\) \(\S*test_connect.py, line {line}, in no_price\)"
    expected = rf"'orders': ValueError: no price in 100 rows {where}"
    with pytest.raises(StageFailedError, match=expected):
        prepare(spark, world, world.request(transform=no_price)).stage()


def test_a_connect_session_is_an_own_one_and_leaves_the_process_as_it_was(remote, spark, world):
    assert "SPARK_CONNECT_MODE_ENABLED" in os.environ
    with spark_session(remote, "another") as other:
        assert other.session_id != spark.session_id
        prepare(other, world).stage()
    assert other.is_stopped
    assert not spark.is_stopped
    assert spark.range(3).count() == 3


@pytest.mark.parametrize("port", ["closed", "silent"])
def test_a_server_that_cannot_be_reached_is_an_error_that_names_the_connection_in_bounded_time(monkeypatch, port):
    monkeypatch.setattr(connect, "PATIENCE_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        if port == "closed":
            server.close()
        target = SparkTarget(
            "", remote=f"sc://127.0.0.1:{number}/;token=d0ntSh0wMe", conn_id="lake_spark", conf={"spark.sql.ansi.enabled": "true"}
        )
        began = time.monotonic()
        with pytest.raises(RetryableError, match=rf"127\.0\.0\.1:{number} cannot be reached.*'lake_spark'") as caught:
            spark_session(target, "nowhere").__enter__()
    assert time.monotonic() - began < 10
    assert "d0ntSh0wMe" not in str(caught.value)
    assert connect.PATIENCE_S < 60


@pytest.mark.parametrize("remote", ["sc://host:15002/path;token=d0ntSh0wMe", "http://d0ntSh0wMe@host", "sc://host:d0ntSh0wMe"])
def test_a_url_that_is_none_is_refused_without_repeating_it(remote):
    with pytest.raises(InvalidInputError, match="'lake_spark' cannot be read") as caught:
        spark_session(SparkTarget("", remote=remote, conn_id="lake_spark"), "nowhere").__enter__()
    assert "d0ntSh0wMe" not in str(caught.value)
