"""The process that all runs of these tests are forked from."""

from __future__ import annotations

import pytest
from crash.runs import Runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    started = Runs(tmp_path_factory.mktemp("runs"))
    yield started
    started.close()
