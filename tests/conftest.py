"""Isolation: no test sees the user's Airflow, Spark or cloud settings, and none starts a session it does not stop."""

from __future__ import annotations

import gc
import os
import sys
import tempfile

import pytest
from support.jvm import variables
from support.order import dealt
from support.tls import one_certificate

# Before anything imports Airflow: its home is fixed at import.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-ckpt-tests-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"
os.environ["PYSPARK_PYTHON"] = sys.executable
for name in [name for name in os.environ if name.startswith(("AWS_", "AIRFLOW_CONN_", "SPARK_", "SSL_"))]:
    del os.environ[name]
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ.update(variables())
os.environ["SSL_CERT_FILE"] = one_certificate(os.environ["AIRFLOW_HOME"])

# A million objects that stay are imported and collected: see below.
gc.disable()

pytest_plugins = ["support.dags", "support.glue", "support.pages", "support.postgres", "support.rest_catalog", "support.s3"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        items[:] = dealt(items, processes)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Look for garbage from now on, and only among what the tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()
