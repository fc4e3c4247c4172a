"""Rows at which the transform fails, against a model: whatever happens on the way, each row is written or rejected, once.

Attempts follow each other: each has its own function, which fails at some rows, and its own policy; it may be killed at a row,
and staged files may be lost before it. Once the write is sealed, what it has rejected is written by another one with the right
function.

``REJECTED_EXAMPLES`` says how many histories are tried.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from contract.table.both import Iceberg, Lance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.failing import Function, Killed, asked, batched, mapped, put, rejected, twice

from airflow_ckpt_provider.exceptions import RowsToRetryError, TooManyErrorsError, TransformError
from airflow_ckpt_provider.sources import Rejected

EXAMPLES = int(os.environ.get("REJECTED_EXAMPLES", "12"))

FILES = (range(25), range(25, 40))
IDS = [one for ids in FILES for one in ids]

#: Made of one row of the input.
TIMES = {mapped: 1, twice: 2, batched: 1}

IDS_OR_NONE = st.none() | st.sampled_from(IDS)
ATTEMPTS = st.fixed_dictionaries(
    {
        "fails_at": st.sets(st.sampled_from(IDS), max_size=12),
        "dies_at": IDS_OR_NONE,
        "policy": st.sampled_from(
            [("fail", None), ("skip", None), ("skip", 0), ("skip", 5), ("skip", 0.2), ("retry", None), ("retry", 3)]
        ),
        "lost": st.none() | st.integers(0, 9),
    }
)
MODES = [{}, {"mode": "upsert", "parameters": {"upsert_keys": ["id"]}}]


@pytest.mark.parametrize("kind", [Iceberg, Lance], ids=["iceberg", "lance"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    attempts=st.lists(ATTEMPTS, max_size=5),
    function=st.sampled_from([*TIMES]),
    mode=st.sampled_from(MODES),
    save=st.integers(3, 30),
)
def test_each_row_is_written_or_rejected_once(kind, attempts, function, mode, save):
    if mode and function is twice:
        mode = {}
    with tempfile.TemporaryDirectory() as folder:
        world = kind(Path(folder))
        world.make(())
        put(world, *FILES)
        how = {"kind": function, "save": save, **mode}
        sealed = None
        for one in attempts:
            if one["lost"] is not None:
                lose(world, one["lost"])
            with contextlib.suppress(Killed, TransformError, TooManyErrorsError, RowsToRetryError, ValueError):
                policy, most = one["policy"]
                sealed = world.stage(asked(world, Function(one["fails_at"], one["dies_at"]), policy, most, **how))
                assert len(rejected(sealed)) <= allowed(policy, most)
                break
        if sealed is None:
            sealed = world.stage(asked(world, Function(), "retry", **how))
            assert not rejected(sealed)
        world.commit(sealed)
        left = [row["id"] for row in rejected(sealed)]
        assert written(world, TIMES[function]) + Counter(left) == Counter(IDS)
        source = {"source": Rejected("orders").opened(world.store)}
        world.commit(world.stage(asked(world, Function(), "fail", key="again", **source, **how)))
        assert written(world, TIMES[function]) == Counter(IDS)


def allowed(policy, most):
    """How many rows an attempt may leave out."""
    if policy == "skip" and most is None:
        return len(IDS)
    return 0 if policy == "fail" or most is None else most if isinstance(most, int) else most * len(IDS)


def written(world, times):
    """How often each row of the input was written; what is made of it is there as a whole."""
    found = Counter(row["id"] for row in world.read())
    assert all(count % times == 0 for count in found.values())
    return Counter({one: count // times for one, count in found.items()})


def lose(world, number):
    """One staged file is gone."""
    files = sorted(path for path in world.files_on_disk() if path.endswith((".parquet", ".lance")))
    if files:
        Path(files[number % len(files)]).unlink()
