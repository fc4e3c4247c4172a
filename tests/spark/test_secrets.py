"""Secrets of a Spark connection: they reach Spark, and nobody else who uses the machine or looks at Spark's pages."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from airflow_ckpt_provider.spark.session import SparkTarget

SECRET = "d0ntSh0wMe"

SETTINGS = {
    "spark.hadoop.fs.s3a.secret.key": f"{SECRET}-s3",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": f"{SECRET}-azure",
    "spark.hadoop.fs.gs.auth.service.account.private.key": f"{SECRET}-gcs",
    "spark.sql.catalog.lake.uri": f"jdbc:postgresql://user:{SECRET}-jdbc@host/db",
    "spark.sql.catalog.lake.credential": f"id:{SECRET}-rest",
    "spark.jars.repositories": f"https://user:{SECRET}-jars@repository.invalid/maven",
    "spark.executor.memory": "600m",
}

ALONE = """
import json, os, pathlib, sys, urllib.request
from support.standalone import children
from airflow_ckpt_provider.spark.session import SparkTarget, spark_session

settings = json.loads(sys.argv[1])
with spark_session(SparkTarget("local[1]", conf=settings | {"spark.ui.enabled": "true", "spark.ui.port": "0"}), "secrets") as spark:
    for name, value in settings.items():
        assert spark.sparkContext.getConf().get(name) == value, name
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    assert hadoop.get("fs.s3a.secret.key") == settings["spark.hadoop.fs.s3a.secret.key"]
    lines = [pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(os.getpid())]
    assert any(b"java" in line for line in lines)
    print(*lines)
    page = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}/environment"
    print(urllib.request.urlopen(page).read().decode())
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ
"""


@pytest.mark.spark
def test_secret_settings_reach_spark_and_stand_neither_on_a_command_line_nor_on_its_pages_nor_in_a_file(tmp_path):
    import json

    command = [sys.executable, "-c", ALONE, json.dumps(SETTINGS)]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": "tests", "SPARK_PRINT_LAUNCH_COMMAND": "1"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert found.returncode == 0, found.stderr
    assert "spark.executor.memory=600m" in found.stdout
    assert '"spark.executor.memory","600m"' in found.stdout.replace(" ", "")
    assert SECRET not in found.stdout
    # Ivy greets its repositories by their URL, on the standard error output, where Airflow masks what the hook has told it.
    assert SECRET not in found.stderr.replace(f"{SECRET}-jars", "")
    assert list(tmp_path.glob("*.conf")) == []


def test_a_master_with_a_password_is_shown_without_it():
    target = SparkTarget(f"spark://user:{SECRET}@host:7077")
    assert SECRET not in f"{target!r}{target.name}{target}"
    assert "host:7077" in target.name
    assert target.master == f"spark://user:{SECRET}@host:7077"
