"""Whether everything that a stage needs is there: one finding for each thing, with what to do where it is not.

No finding ends the others, whatever goes wrong: a doctor who runs away helps nobody.
"""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.trying_out import try_out
from airflow_ckpt_provider.exceptions import CheckpointError
from airflow_ckpt_provider.hooks.catalog import iceberg_catalog
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook, storage_options
from airflow_ckpt_provider.hooks.spark import spark_target
from airflow_ckpt_provider.overview.facts import Facts
from airflow_ckpt_provider.spark.java import OLDEST, require_java
from airflow_ckpt_provider.spark.session import require_equal_pyspark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PACKAGES = ("airflow-provider-ckpt", "apache-airflow", "pyspark", "pyspark-client", "pyiceberg", "pylance", "pyarrow", "obstore")


class Finding(Facts, frozen=True, kw_only=True):
    """One thing that was looked at.

    :param check: what.
    :param ok: whether it is as it has to be.
    :param detail: what was found; what to do, if it is not.
    """

    check: str
    ok: bool
    detail: str


def examine(checkpoint_conn_id: str, iceberg_conn_id: str, lance_conn_id: str | None, spark_conn_id: str) -> Iterator[Finding]:
    """Look at the versions and at these connections, one after the other.

    :param lance_conn_id: None for the credentials of the environment, which nothing can be told of.
    """
    yield _found("versions", _versions)
    yield _found(f"checkpoint connection {checkpoint_conn_id}", lambda: _store(checkpoint_conn_id))
    yield _found(f"iceberg connection {iceberg_conn_id}", lambda: _catalog(iceberg_conn_id))
    if lance_conn_id is not None:
        yield _found(f"storage connection {lance_conn_id} of Lance datasets", lambda: _options(lance_conn_id))
    yield _found("pyspark", _pyspark)
    yield _found(f"spark connection {spark_conn_id}", lambda: _spark(spark_conn_id))


def _found(check: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(check=check, ok=True, detail=look())
    except CheckpointError as error:
        return Finding(check=check, ok=False, detail=str(error))
    except Exception as error:  # noqa: BLE001 - of whatever library: it is what was found
        return Finding(check=check, ok=False, detail=f"{type(error).__name__}: {error}")


def _versions() -> str:
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {version}" for name, version in _installed())])


def _installed() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _store(conn_id: str) -> str:
    store = CheckpointHook(conn_id).get_conn()
    try_out(store)
    signed = "documents are signed" if store.signer is not None else "documents are not signed"
    return f"{store.uri} lists, reads, writes each object once, and removes; {signed}"


def _catalog(conn_id: str) -> str:
    catalog = iceberg_catalog(conn_id)
    namespaces = [".".join(name) for name in catalog.list_namespaces()]
    shown = ", ".join(sorted(namespaces)[:5]) or "none yet"
    return f"the catalog answers; {len(namespaces)} namespaces: {shown}{', …' if len(namespaces) > 5 else ''}"


def _options(conn_id: str) -> str:
    return f"has the options {', '.join(sorted(storage_options(conn_id))) or 'of the environment'}"


def _pyspark() -> str:
    require_equal_pyspark()
    return f"pyspark {metadata.version('pyspark')}, for {sys.executable}"


def _spark(conn_id: str) -> str:
    target = spark_target(conn_id, {})
    if target.remote:
        return f"{target.name}, through Spark Connect: no Java is needed here. It was not asked for a session"
    found = require_java()
    version = (
        f"Java {found.version}" if found.version is not None else f"a Java that does not say its version (Spark needs {OLDEST})"
    )
    return f"{target.name}, with {version} at {found.executable}. No session was started"
