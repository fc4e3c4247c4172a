"""Where a stage runs, which pyspark it takes, and what its session leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from support.stages import prepare

from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session, target_of
from airflow_ckpt_provider.spark.visibility import require_shared_dataset, require_shared_store

if TYPE_CHECKING:
    from pathlib import Path

# -- the target -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "port", "master"),
    [("local[4]", None, "local[4]"), ("spark://host", 7077, "spark://host:7077"), ("yarn", None, "yarn")],
)
def test_a_spark_connection_is_a_master(host, port, master):
    assert target_of("spark", host, port, {}, {}).master == master


def test_settings_come_from_the_extra_and_those_of_the_operator_win():
    extra = {
        "queue": "night",
        "namespace": "etl",
        "spark.executor.memory": "1g",
        "spark.cores.max": 8,
        "spark-binary": "spark3-submit",
    }
    target = target_of("spark", "yarn", None, extra, {"spark.executor.memory": "2g"})
    assert target.conf == {
        "spark.yarn.queue": "night",
        "spark.kubernetes.namespace": "etl",
        "spark.executor.memory": "2g",
        "spark.cores.max": "8",
    }


@pytest.mark.parametrize("mode", ["client", "", None])
def test_client_mode_is_taken_however_it_is_written(mode):
    assert target_of("spark", "yarn", None, {"deploy-mode": mode}, {}).master == "yarn"


def test_cluster_mode_and_a_connection_without_a_master_are_refused_with_what_to_change():
    with pytest.raises(InvalidInputError, match=r"deploy-mode 'cluster'.*remove deploy-mode"):
        target_of("spark", "yarn", None, {"deploy-mode": "cluster"}, {})
    with pytest.raises(InvalidInputError, match="no host: put the Spark master there"):
        target_of("spark", "", None, {}, {})


def test_a_connect_url_and_settings_are_never_shown():
    target = SparkTarget(master="", remote="sc://host/;token=hidden", conf={"spark.hadoop.fs.s3a.secret.key": "hidden"})
    assert "hidden" not in f"{target!r}{target.name}"


HERE = ["local", "local[2]", "local[*]", "spark://127.0.0.1:7077", "spark://localhost:7077", "spark://127.0.0.1:1,localhost:2"]
ELSEWHERE = [
    "spark://host:7077",
    "spark://127.0.0.1:1,host:2",
    "spark://localhost.example:1",
    "yarn",
    "k8s://https://127.0.0.1:6443",
]


@pytest.mark.parametrize("master", HERE)
def test_a_local_store_is_fine_where_executors_are_on_this_machine(master, tmp_path):
    require_shared_store(CheckpointStore.at(str(tmp_path)), SparkTarget(master))


@pytest.mark.parametrize("master", [*ELSEWHERE, ""])
def test_a_local_store_is_refused_where_executors_may_be_elsewhere(master, tmp_path):
    target = SparkTarget(master) if master else SparkTarget("", remote="sc://127.0.0.1:15002")
    with pytest.raises(InvalidInputError, match=r"executors cannot see it.*Point the checkpoint connection at object storage"):
        require_shared_store(CheckpointStore.at(str(tmp_path)), target)


# -- the installed pyspark --------------------------------------------------------------------------------------------


def checked(folder: Path, versions: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The version check in a process that finds these distributions first."""
    for name, version in versions.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n" + textwrap.dedent("""
        from airflow_ckpt_provider.spark.session import require_equal_pyspark
        require_equal_pyspark()
    """)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_unequal_versions_of_the_two_pyspark_packages_are_refused_with_the_command_that_helps(tmp_path):
    found = checked(tmp_path, {"pyspark": "4.2.0", "pyspark-client": "4.3.0"})
    assert found.returncode == 1
    assert "PySparkVersionError: pyspark 4.2.0 and pyspark-client 4.3.0 are both installed" in found.stderr
    assert "pip install --force-reinstall --no-deps 'pyspark==4.3.0' 'pyspark-client==4.3.0'" in found.stderr


def test_equal_versions_of_the_two_pyspark_packages_pass(tmp_path):
    assert checked(tmp_path, {"pyspark": "4.9.0", "pyspark-client": "4.9.0"}).returncode == 0


# -- the session ------------------------------------------------------------------------------------------------------

LIFE = """
import os
import sys

from pyspark.sql import SparkSession
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

def environment():
    # What PySpark itself sets for its workers stays.
    return {key: value for key, value in os.environ.items() if key not in {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}}

before = environment()
with spark_session(SparkTarget("local[2]"), "own") as spark:
    assert environment() == before
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.conf.get("spark.app.name") == "own"
    with spark_session(SparkTarget("local[1]"), "inner") as inner:
        assert inner is spark
    assert spark.range(3).count() == 3
assert SparkSession.getActiveSession() is None
with spark_session(SparkTarget("local[1]", conf={"spark.pyspark.python": "/opt/python"}), "python of the settings") as spark:
    assert spark.sparkContext.pythonExec == "/opt/python"
os.environ["PYSPARK_PYTHON"] = "/opt/other/python"
with spark_session(SparkTarget("local[1]"), "python of the variable") as spark:
    assert spark.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"] == "/opt/other/python"
del os.environ["PYSPARK_PYTHON"]
assert environment() == before
print("lived")
"""


def run_alone(code: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    command = [sys.executable, "-W", "default", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


@pytest.mark.spark
def test_an_own_session_is_stopped_and_one_that_was_there_is_used_and_left():
    found = run_alone(LIFE)
    assert found.stdout.strip() == "lived", found.stderr


QUIET = """
import logging
logging.basicConfig(level=logging.INFO)
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

with spark_session(SparkTarget("local[1]"), "quiet") as spark:
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
"""


@pytest.mark.spark
def test_a_local_session_writes_nothing_into_the_task_log():
    found = run_alone(QUIET)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


NOISY = """
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

with spark_session(SparkTarget("local[1]", conf=CONF), "noisy") as spark:
    # More than a pipe holds, so that this ends only if it is read.
    spark._jvm.java.lang.System.err.println("x" * 300_000)
    spark._jvm.java.lang.System.err.println("the end")
"""


@pytest.mark.spark
def test_what_else_the_jvm_says_is_passed_on_however_much_it_is():
    found = run_alone(NOISY.replace("CONF", "{}"))
    assert found.returncode == 0, found.stderr
    assert [line for line in found.stderr.splitlines() if line in {"x" * 300_000, "the end"}] == ["x" * 300_000, "the end"]


@pytest.mark.spark
def test_why_a_jvm_did_not_start_is_said_before_the_error():
    found = run_alone(NOISY.replace("CONF", "{'spark.driver.memory': 'much'}"))
    assert found.returncode == 1
    assert "JAVA_GATEWAY_EXITED" in found.stderr
    assert 0 < found.stderr.index("much") < found.stderr.index("Traceback")


@pytest.mark.spark
def test_a_foreign_session_runs_a_stage_and_goes_on(world):
    from pyspark.sql import SparkSession

    with spark_session(SparkTarget("local[2]"), "the user's"):
        users = SparkSession.getActiveSession()
        with spark_session(SparkTarget("local[2]"), "ours") as spark:
            prepare(spark, world).stage()
        assert users.range(3).count() == 3


def test_a_dataset_that_executors_cannot_see_is_refused():
    require_shared_dataset("file:///lake/x.lance", SparkTarget("local[2]"))
    require_shared_dataset("s3://lake/x.lance", SparkTarget("spark://elsewhere:7077"))
    with pytest.raises(
        InvalidInputError, match=r"file:///lake/x.lance is on this machine only, but the stage runs on Spark spark://elsewhere"
    ):
        require_shared_dataset("file:///lake/x.lance", SparkTarget("spark://elsewhere:7077"))
