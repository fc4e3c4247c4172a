"""What error messages advise to begin a write anew has to work with the key that the write has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.samples import HEADER

import airflow_ckpt_provider
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Origin
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import BindingMismatchError

ORIGIN = Origin(dag_id="orders", task_id="stage", run_id="scheduled__2026", map_index=-1)
TEMPORARY = msgspec.structs.replace(ORIGIN, run_id="__airflow_temporary_run_2026__")


@pytest.mark.parametrize(
    ("key", "origin"),
    [
        ("orders/stage/scheduled__2026/-1", ORIGIN),
        ("orders/stage/scheduled__2026/3", msgspec.structs.replace(ORIGIN, map_index=3)),
        ("orders/stage/2026-01-01T00:00:00+00:00/-1", TEMPORARY),
        ("orders/stage/adhoc/-1", TEMPORARY),
    ],
)
def test_a_write_under_the_default_key_is_begun_anew_by_its_own_params_and_not_by_another_run(key, origin):
    advice = how_to_restart(msgspec.structs.replace(HEADER, key=key, origin=origin))
    assert "set params=" in advice
    assert "run the DAG with" not in advice


@pytest.mark.parametrize("origin", [ORIGIN, TEMPORARY])
def test_a_write_under_a_key_of_the_users_own_is_begun_anew_by_a_run_that_asks_for_it(origin):
    advice = how_to_restart(msgspec.structs.replace(HEADER, key="orders/2026-01-01", origin=origin))
    assert advice == 'run the DAG with the configuration {"checkpoint": "restart"}'


def test_where_the_key_is_not_known_both_ways_are_named():
    advice = how_to_restart()
    assert "run the DAG with the configuration" in advice
    assert "set params=" in advice


def test_another_write_under_a_default_key_is_told_what_works_for_it(tmp_path):
    store = CheckpointStore.at(str(tmp_path))
    header = msgspec.structs.replace(HEADER, key="orders/stage/scheduled__2026/-1", origin=ORIGIN)
    first = Checkpoint.create(store, header)
    with pytest.raises(BindingMismatchError) as refused:
        first.require_binding(msgspec.structs.replace(header, mode="overwrite"))
    assert 'on_change="restart"' in str(refused.value)
    assert "set params=" in str(refused.value)
    assert "run the DAG with" not in str(refused.value)


def test_no_message_gives_this_advice_in_words_of_its_own():
    package = Path(airflow_ckpt_provider.__file__).parent
    own = [file.name for file in package.rglob("*.py") if '"checkpoint": "restart"' in file.read_text()]
    assert own == ["restart.py"]
