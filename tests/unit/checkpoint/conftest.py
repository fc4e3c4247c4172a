"""A checkpoint of which nothing is staged yet, in a folder."""

from __future__ import annotations

import pytest
from support.samples import HEADER

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.store import CheckpointStore


@pytest.fixture
def store(tmp_path):
    return CheckpointStore.at(str(tmp_path))


@pytest.fixture
def checkpoint(store):
    return Checkpoint.create(store, HEADER)
