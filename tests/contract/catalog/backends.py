"""The catalogs that the contract is checked on, each for real: what a world needs to know of one, and how it goes away."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.catalog import load_catalog
from support.glue import at_endpoint, glue_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pytest
    from pyiceberg.catalog import Catalog


class Backend(NamedTuple):
    """One catalog, without tables.

    :param properties: what it is opened with.
    :param away: a catalog that was opened before it went away, and is there again after the block.
    """

    properties: Mapping[str, str | int]
    away: Callable[[], AbstractContextManager[Catalog]]


def _sqlite(request: pytest.FixtureRequest, folder: Path) -> Backend:
    uri = f"sqlite:///{folder}/catalog.db"

    @contextlib.contextmanager
    def away() -> Iterator[Catalog]:
        catalog = load_catalog("iceberg_default", type="sql", uri=f"{uri}?timeout=0.1", warehouse=_local(folder))
        with contextlib.closing(sqlite3.connect(folder / "catalog.db")) as other:
            other.execute("begin exclusive")
            yield catalog

    return Backend({"type": "sql", "uri": uri, "warehouse": _local(folder)}, away)


def _postgresql(request: pytest.FixtureRequest, folder: Path) -> Backend:
    database = request.getfixturevalue("postgres_database")
    properties = {"type": "sql", "uri": database.uri, "warehouse": _local(folder)}

    @contextlib.contextmanager
    def away() -> Iterator[Catalog]:
        catalog = load_catalog("iceberg_default", **properties)
        with database.unreachable():
            yield catalog

    return Backend(properties, away)


def _rest(request: pytest.FixtureRequest, folder: Path) -> Backend:
    server = request.getfixturevalue("rest_server")
    properties = {"type": "rest", "uri": server.uri}

    @contextlib.contextmanager
    def away() -> Iterator[Catalog]:
        catalog = load_catalog("iceberg_default", **properties)
        with server.unreachable():
            yield catalog

    return Backend(properties, away)


def _glue(request: pytest.FixtureRequest, folder: Path) -> Backend:
    properties = glue_catalog(request.getfixturevalue("glue_endpoint"))

    @contextlib.contextmanager
    def away() -> Iterator[Catalog]:
        # Nobody listens on port 9, and nobody but root may.
        yield load_catalog("iceberg_default", **(properties | at_endpoint("http://127.0.0.1:9")))

    return Backend(properties, away)


def _local(folder: Path) -> str:
    return f"file://{folder}/warehouse"


BACKENDS: dict[str, Callable[[pytest.FixtureRequest, Path], Backend]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "rest": _rest,
    "glue": _glue,
}
