"""A world on each catalog, and the process that racers are forked from."""

from __future__ import annotations

import pytest
from contract.catalog.backends import BACKENDS
from contract.catalog.modes import MODES, SWAPS
from protocol.crash.runs import Runs
from support.world import World

#: All modes on the cheapest catalog; on the others one for each way in which a commit is swapped in, which is all they see.
CASES = [(name, mode) for name in BACKENDS for mode in (MODES if name == "sqlite" else SWAPS)]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].name}")
def case(request):
    return request.param


@pytest.fixture
def backend(request, case, tmp_path):
    return BACKENDS[case[0]](request, tmp_path)


@pytest.fixture
def mode(case):
    return case[1]


@pytest.fixture
def world(backend, mode, tmp_path):
    """A world in which a write of this mode may begin."""
    world = World(tmp_path, backend.properties)
    mode.prepare(world)
    return world


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    started = Runs(tmp_path_factory.mktemp("runs"), "iceberg", "glue")
    yield started
    started.close()
