"""A panic of native code is no ``Exception``: here it becomes an error like any other, wherever it happens."""

from __future__ import annotations

import asyncio
import logging

import obstore
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from support.panics import SAID, panic

from airflow_ckpt_provider.exceptions import RetryableError, StageFailedError, panics_as_errors
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.triggers.checkpoint import CheckpointTrigger

pytestmark = [
    pytest.mark.airflow,
    # Airflow's in-process API server, and what it is built on, warn about each other while connections are read.
    pytest.mark.filterwarnings("default"),
]


def test_the_library_raises_what_nobody_who_looks_after_errors_sees():
    with pytest.raises(BaseException, match=SAID) as caught:
        panic()
    assert not isinstance(caught.value, Exception)


def test_on_the_driver_it_fails_the_try_with_its_text_so_that_airflow_retries():
    with pytest.raises(AirflowException, match=rf"NativePanicError.*{SAID}.*a retry goes on") as caught, airflow_errors():
        panic()
    assert not isinstance(caught.value, AirflowFailException)
    assert str(caught.value).startswith("NativePanicError: ")


def test_an_error_is_shown_once_and_what_led_to_it_is_logged_for_those_who_ask(caplog):
    caplog.set_level(logging.DEBUG, logger="airflow_ckpt_provider")

    def fails():
        try:
            raise OSError("s3://key:hunter2secret@bucket/file cannot be read")
        except OSError as error:
            raise StageFailedError("it failed") from error

    with pytest.raises(AirflowException, match=r"^StageFailedError: it failed$") as caught, airflow_errors():
        fails()
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None
    assert "OSError: s3://" in caplog.text
    assert "hunter2secret" not in caplog.text


def test_what_ends_a_process_is_no_panic():
    for end in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(end), panics_as_errors("in a test"):
            raise end


def test_in_a_split_it_is_a_retryable_error_and_nothing_is_published(dag_world):
    dag_world.put_files(files=1)
    with pytest.raises(RetryableError, match=rf"while split 000000 was staged: .*{SAID}"):
        dag_world.stage(dag_world.request(transform=panic))
    assert dag_world.attempt(dag_world.request(transform=panic)).checkpoint.staged_ids() == set()


def test_in_a_trigger_it_is_looked_at_again(dag_world, monkeypatch):
    dag_world.put_files(files=1)
    dag_world.stage()
    trigger = CheckpointTrigger(checkpoints=["orders"], until="sealed", checkpoint_conn_id="checkpoint_default", poll_interval=0.05)
    seen = []

    def look(*args):
        seen.append(args)
        panic()

    async def scenario():
        with monkeypatch.context() as patch:
            patch.setattr(obstore, "get", look)
            event = asyncio.create_task(asyncio.wait_for(anext(trigger.run()), 30))
            while len(seen) < 2:
                assert not event.done()
                await asyncio.sleep(0.05)
        return await event

    assert asyncio.run(scenario()).payload == {"status": "success"}
