"""The processes that all runs of these tests are forked from."""

from __future__ import annotations

import pytest
from protocol.crash.runs import Runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    started = Runs(tmp_path_factory.mktemp("runs"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def lance_runs(tmp_path_factory):
    """Runs into Lance datasets."""
    started = Runs(tmp_path_factory.mktemp("lance-runs"), "lance")
    yield started
    started.close()
