"""How far a generation is, told by what exists."""

from __future__ import annotations

from msgspec.structs import replace
from support.appending import seal as seal_of
from support.samples import GROUP, HEADER, SAMPLES
from unit.checkpoint.test_checkpoint import plan_of, staged

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.group import bind
from airflow_ckpt_provider.checkpoint.state import State, state_of

COMMIT = SAMPLES["commit.json"]


def test_the_state_follows_from_what_exists(checkpoint):
    states = [state_of(checkpoint)]
    checkpoint.pin(plan_of("000000"))
    states.append(state_of(checkpoint))
    checkpoint.publish(staged("000000"))
    states.append(state_of(checkpoint))
    seal_of(checkpoint, plan_of("000000"))
    states.append(state_of(checkpoint))
    bind(checkpoint, GROUP)
    states.append(state_of(checkpoint))
    checkpoint.record(COMMIT)
    states.append(state_of(checkpoint))
    assert states == [State.PLANNED, State.PLANNED, State.STAGING, State.SEALED, State.SEALED, State.COMMITTED]


def test_a_discarded_generation_is_discarded_whatever_was_reached(checkpoint):
    checkpoint.pin(plan_of())
    seal_of(checkpoint, plan_of())
    checkpoint.discard("restart")
    assert state_of(checkpoint) is State.DISCARDED


def test_the_state_of_one_generation_says_nothing_of_another(store, checkpoint):
    seal_of(checkpoint, plan_of())
    assert state_of(Checkpoint.create(store, replace(HEADER, generation=2))) is State.PLANNED
