"""The wait of a deferred sensor, on its own event loop, over a real store and table."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import DiscardedError
from airflow_ckpt_provider.hooks.lookup import OwnConnections, reached
from airflow_ckpt_provider.sensors.checkpoint import CheckpointSensor
from airflow_ckpt_provider.triggers.checkpoint import CheckpointTrigger, raise_event_error

pytestmark = [
    pytest.mark.airflow,
    # Airflow's in-process API server, and what it is built on, warn about each other while connections are read.
    pytest.mark.filterwarnings("default"),
]


def trigger(pointers, until="committed"):
    return CheckpointTrigger(checkpoints=pointers, until=until, checkpoint_conn_id="checkpoint_default", poll_interval=0.05)


def reference_to(attempt):
    checkpoint = attempt.checkpoint
    return reference(checkpoint, checkpoint.sealed(), State.SEALED, recovered=0, written=1)


async def first_event(one):
    return await asyncio.wait_for(anext(one.run()), 30)


def test_it_fires_once_the_commit_lands_and_not_before(dag_world):
    dag_world.put_files(files=1)
    attempt = dag_world.stage()

    async def scenario():
        event = asyncio.create_task(first_event(trigger([reference_to(attempt)])))
        await asyncio.sleep(0.5)
        assert not event.done()
        await asyncio.to_thread(dag_world.commit, attempt)
        return await event

    assert asyncio.run(scenario()).payload == {"status": "success"}


def test_it_waits_for_a_key_that_does_not_exist_yet(dag_world):
    dag_world.put_files(files=1)

    async def scenario():
        event = asyncio.create_task(first_event(trigger(["orders"], until="sealed")))
        await asyncio.sleep(0.3)
        assert not event.done()
        await asyncio.to_thread(dag_world.stage)
        return await event

    assert asyncio.run(scenario()).payload == {"status": "success"}


def test_a_commit_that_landed_and_was_not_recorded_counts_as_committed(dag_world):
    dag_world.put_files(files=1)
    attempt = dag_world.stage()
    dag_world.commit(attempt)
    (dag_world.root / "store" / attempt.checkpoint.paths.commit).unlink()
    assert reached(reference_to(attempt), State.COMMITTED, OwnConnections())


def test_a_discarded_checkpoint_is_an_error_and_not_an_endless_wait(dag_world):
    dag_world.put_files(files=1)
    attempt = dag_world.stage()
    pointer = reference_to(attempt)
    attempt.checkpoint.discard("for this test")
    event = asyncio.run(first_event(trigger([pointer])))
    assert event.payload["status"] == "error"
    with pytest.raises(DiscardedError, match="for this test"):
        raise_event_error(event.payload)


def test_what_is_serialized_starts_the_same_trigger():
    path, facts = trigger(["orders"]).serialize()
    assert path == "airflow_ckpt_provider.triggers.checkpoint.CheckpointTrigger"
    assert CheckpointTrigger(**facts).serialize() == (path, facts)


@pytest.mark.usefixtures("dag_world")
def test_a_deferrable_sensor_hands_over_to_the_trigger():
    sensor = CheckpointSensor(task_id="wait", checkpoint="orders", deferrable=True, poke_interval=7, timeout=60)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({"ti": SimpleNamespace(map_index=-1)})
    assert deferred.value.trigger.checkpoints == ["orders"]
    assert deferred.value.trigger.poll_interval == 7
    assert deferred.value.timeout.total_seconds() == 60
