"""What a run imports, imported before: a process forks hundreds of runs, and each would import the same once more."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import warnings

from airflow_ckpt_provider.checkpoint.encoding import from_json, to_json

#: Packages of ours that take part in a write without Spark and Airflow, with all their modules.
_OURS = ("checkpoint", "scan", "sources", "tables", "write")

#: What third-party code imports when it first works, and not when it is imported.
_THEIRS = (
    "email.parser",
    "fastavro",
    "fsspec",
    "obstore.store",
    "pyarrow.acero",
    "pyarrow.json",
    "pyiceberg.avro.decoder_fast",
    "pyiceberg.catalog.sql",
    "pyiceberg.expressions.parser",
    "pyiceberg.io.pyarrow",
    "pyiceberg.table",
    "pyiceberg_core.datafusion",
    "pyiceberg_core.manifest",
    "pyiceberg_core.transform",
    "sqlalchemy.dialects.sqlite",
    "sqlite3",
)


def import_everything(*, lance: bool, glue: bool = False) -> None:
    """Import what a run would, and begin nothing: whatever has threads or files must be made by the run itself.

    :param lance: for runs into Lance datasets.
    :param glue: for runs on a Glue catalog.
    """
    for name in _THEIRS:
        importlib.import_module(name)
    for package in _OURS:
        found = importlib.import_module(f"airflow_ckpt_provider.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            importlib.import_module(module.name)
    if glue:
        importlib.import_module("pyiceberg.catalog.glue")
        from support.aws_models import read_glue

        read_glue()
    _read_documents()
    _ask_a_catalog()
    if lance:
        # It warns in a process that forks, which never uses it.
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        for name in ("lance.file", "support.columns", "support.lance_world"):
            importlib.import_module(name)


def _read_documents() -> None:
    """What msgspec works out when a process writes or reads the first document of its kind."""
    from support.samples import SAMPLES

    for name, document in SAMPLES.items():
        from_json(name, to_json(name, document), type(document))


def _ask_a_catalog() -> None:
    """What SQLAlchemy sets up with the first statement of a process; in memory, and without a thread."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError

    catalog = SqlCatalog("memory", uri="sqlite:///:memory:", warehouse="memory")
    with contextlib.suppress(NoSuchTableError):
        catalog.load_table("shop.orders")
    catalog.close()
