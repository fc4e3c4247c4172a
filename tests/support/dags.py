"""Running DAGs in this process through ``dag.test()``: real retries, real XComs, real triggers, no scheduler."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from airflow_ckpt_provider.spark.session import SparkTarget, spark_session
from support.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

#: Two threads, little memory, and no ports.
SPARK_CONF = {"spark.driver.memory": "2g", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """Airflow's own tables, in the SQLite file of the tests' ``AIRFLOW_HOME``."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(scope="module")
def _started() -> Iterator[ExitStack]:
    """What ends with the tests of a module."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def own_sessions() -> None:
    """Each task starts and stops a Spark session of its own, as it does in Airflow: requested by tests that are about them."""


@pytest.fixture
def one_session(request: pytest.FixtureRequest, _started: ExitStack) -> None:
    """A Spark session that is there, which tasks use as it is: each would start one, and the Python workers of it."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if "own_sessions" in request.fixturenames:
        if active is not None:
            active.stop()
    elif active is None:
        _started.enter_context(spark_session(SparkTarget("local[2]", conf=SPARK_CONF), "tests"))


@pytest.fixture
def dag_world(airflow_database: None, one_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose catalog, store and Spark are set up as Airflow connections."""
    world = World(tmp_path)
    world.create_table()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    connections = {
        "ICEBERG_DEFAULT": {"conn_type": "iceberg", "extra": catalog},
        "CHECKPOINT_DEFAULT": {"conn_type": "checkpoint", "host": f"file://{tmp_path}/store"},
        "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[2]", "extra": SPARK_CONF},
    }
    for name, facts in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(facts))
    return world


@pytest.fixture
def run_dag(airflow_database: None, tmp_path: Path) -> Iterator[Callable[..., DagRun]]:
    """Register a DAG and run it to its end, retries included; ``run_dag.register`` makes one known to Airflow and no more."""

    def register(dag: DAG) -> None:
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        DagBundlesManager().sync_bundles_to_db()
        folder = tmp_path / "dags"
        folder.mkdir(exist_ok=True)
        bag = DagBag(dag_folder=str(folder))
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "dags-folder", None)

    def run(dag: DAG, *, when: datetime | None = None, **conf: Any) -> DagRun:
        register(dag)
        # The id of the run is made of the time: one that was run before is run again, as by a user who clears it.
        times = {} if when is None else {"run_after": when, "logical_date": when}
        return dag.test(run_conf=conf or None, **times)

    run.register = register  # type: ignore[attr-defined]
    yield run
    os.environ.pop("AIRFLOW_TEST_MODE", None)


def returned(run: DagRun, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
    """What a task of a finished run left in XCom."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(XComModel.value).where(
            XComModel.run_id == run.run_id,
            XComModel.dag_id == run.dag_id,
            XComModel.task_id == task_id,
            XComModel.map_index == map_index,
            XComModel.key == key,
        )
        text = session.scalars(query).one_or_none()
    return json.loads(text) if key == "return_value" and isinstance(text, str) else text


def task_states(run: DagRun) -> dict[str, str]:
    """State of every task instance of a finished run; mapped ones as ``task[index]``."""
    found = {}
    for ti in run.get_task_instances():
        name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"
        found[name] = str(ti.state)
    return found


def start() -> datetime:
    """A start date for any DAG."""
    return datetime(2026, 1, 1, tzinfo=UTC)
