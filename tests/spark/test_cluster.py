"""A stage on a standalone cluster whose Python does not have this package: what travels, and what survives a kill."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.stages import Gate, prepare
from support.standalone import children, wait_until

from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from support.stages import Stage
    from support.standalone import Standalone
    from support.world import World

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

CONF = {"spark.executor.memory": "512m", "spark.cores.max": "2", "spark.executor.cores": "1", "spark.network.timeout": "60s"}


@pytest.fixture(scope="module")
def spark(cluster: Standalone, bare_python: Path) -> Iterator[SparkSession]:
    conf = CONF | {"spark.pyspark.python": str(bare_python)}
    with spark_session(SparkTarget(cluster.url, conf=conf), "cluster stages") as spark:
        yield spark


def commit_and_check(world: World, stage: Stage) -> None:
    """Every row once in one snapshot, and every file that it does not reference known by its name."""
    world.commit(stage.attempt)
    assert world.ids() == list(range(400))
    assert len(world.table().snapshots()) == 1
    checkpoint = stage.attempt.checkpoint
    attempts = {attempt.id for attempt in checkpoint.attempts()}
    for left in world.files_on_disk() - world.referenced_files():
        key, generation, split, author = Path(left).name.removeprefix("ckpt-").split("-", 3)
        assert (key, generation) == (checkpoint.key.hash, "g1")
        assert split.removeprefix("s") in checkpoint.staged_ids()
        assert author.split(".")[0] in attempts


# -- what travels -----------------------------------------------------------------------------------------------------


def where(batch: pa.RecordBatch, folder: str) -> pa.RecordBatch:
    import airflow_ckpt_provider
    from airflow_ckpt_provider.spark import stage

    Path(folder, str(os.getpid())).write_text(f"{airflow_ckpt_provider.__file__}\n{stage.__file__}")
    return batch


def test_executors_run_the_package_that_the_driver_sent_and_need_none_installed(spark, world, tmp_path):
    (tmp_path / "found").mkdir()
    prepare(spark, world, world.request(transform=functools.partial(where, folder=str(tmp_path / "found")))).stage()
    found = {line for file in (tmp_path / "found").iterdir() for line in file.read_text().split()}
    assert found
    assert all(".zip/airflow_ckpt_provider/" in file for file in found)


def test_a_session_that_is_there_already_is_joined_and_has_the_package(spark, cluster, world):
    """As by the second task of a program, or in a process whose Airflow task runs two stages."""
    with spark_session(SparkTarget(cluster.url), "joins") as joined:
        assert joined is spark
        prepare(joined, world).stage()
    prepare(spark, world, world.request("again")).stage()


DAG = """
import functools
import prices_beside_the_dag as prices

FACTOR = 3

def by_global(batch):
    return prices.times(batch, FACTOR)

def scaled(batch, factor):
    return prices.times(batch, factor)

by_lambda = lambda batch: prices.times(batch, FACTOR)
by_partial = functools.partial(scaled, factor=3)

class Scaler:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, batch):
        return scaled(batch, self.factor)

by_object = Scaler(3)
"""

BESIDE = """
import pyarrow.compute as pc

def times(batch, factor):
    return batch.set_column(1, "value", pc.multiply(batch["value"], float(factor)))

def tripled(batch):
    return times(batch, 3)
"""


@pytest.fixture
def dag_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A DAG file and a module beside it, loaded as Airflow loads them: under a name that nobody can import."""
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "shop.py").write_text(DAG)
    (folder / "prices_beside_the_dag.py").write_text(BESIDE)
    monkeypatch.syspath_prepend(str(folder))
    name = "unusual_prefix_4fe0d6b1_shop"
    spec = importlib.util.spec_from_file_location(name, folder / "shop.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "prices_beside_the_dag", sys.modules["prices_beside_the_dag"])
    return module


@pytest.mark.parametrize("name", ["by_global", "by_lambda", "by_partial", "by_object", "prices_beside_the_dag:tripled"])
def test_code_of_a_dag_file_and_of_what_lies_beside_it_runs_on_executors(spark, world, dag_file, name):
    transform = name if ":" in name else getattr(dag_file, name)
    stage = prepare(spark, world, world.request(transform=transform))
    stage.stage()
    world.commit(stage.attempt)
    rows = world.table().scan().to_arrow().sort_by("id")
    assert rows["value"].to_pylist() == [n / 4 * 3 for n in range(400)]


# -- what survives ----------------------------------------------------------------------------------------------------


def kill_an_executor(cluster: Standalone, gate: Gate) -> None:
    victim = next(pid for pid in cluster.executors(0) if executor_of(pid, gate))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: victim not in cluster.executors(0), "the end of the executor")


def kill_a_python_worker(cluster: Standalone, gate: Gate) -> None:
    os.kill(gate.waiting()[0], signal.SIGKILL)


def kill_a_worker(cluster: Standalone, gate: Gate) -> None:
    cluster.kill_worker(0)
    cluster.start_worker(0)


def executor_of(pid: int, gate: Gate) -> bool:
    """True if a process at the gate descends from ``pid``."""
    below = children(pid)
    return bool(set(below) & set(gate.waiting())) or any(executor_of(child, gate) for child in below)


@pytest.mark.parametrize("kill", [kill_an_executor, kill_a_python_worker, kill_a_worker])
def test_a_kill_in_the_middle_of_a_split_costs_no_row_and_doubles_none(spark, world, tmp_path, cluster, kill):
    gate = Gate(tmp_path / "gate")
    stage = prepare(spark, world, world.request(transform=gate.transform))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stage.stage)
        before = gate.wait_for(2)
        kill(cluster, gate)
        gate.open()
        last = running.result(120)[-1]
    assert len(before) == 2
    assert (last.done, last.rows) == (4, 400)
    commit_and_check(world, stage)


def test_after_a_kill_of_the_driver_its_workers_end_and_a_retry_writes_only_the_rest(spark, world, tmp_path, cluster):
    gate = Gate(tmp_path / "gate", below=200)
    command = [sys.executable, "-m", "support.stages", str(world.root), cluster.url, str(gate.folder), "200", "cancel"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1]) as driver:
        gate.wait_for(2)
        driver.kill()
    gate.wait_until_gone()
    gate.open()
    stage = prepare(spark, world, world.request(transform=gate.transform))
    survived = stage.attempt.checkpoint.staged_ids()
    assert len(survived) == 2
    assert not set(stage.missing) & survived
    stage.stage()
    commit_and_check(world, stage)
