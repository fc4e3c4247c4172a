"""One cluster for all tests that need one; sessions belong to their modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.standalone import Standalone, python_without_the_package
from support.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A table and four input files, one split each."""
    world = World(tmp_path)
    world.create_table()
    world.put_files()
    return world


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_without_the_package(tmp_path_factory.mktemp("bare"))
