"""A stage through Spark Connect: the same code, another kind of session, and a server whose Python lacks this package."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from airflow_ckpt_provider.exceptions import NullInRequiredColumnError, StageFailedError
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from spark.transforms import fail_at, null_at, where
from support.stages import Gate, prepare
from support.standalone import connect_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
