"""How a user begins a write anew, in the words of error messages: what works depends on where its key comes from.

A run of the DAG with the configuration ``{"checkpoint": "restart"}`` opens a new generation of the key that it writes under. The
default key has the run's id in it, so that such a run writes under another key; there, the wish has to come from the task's own
``params``, and the task to be cleared in the run that it belongs to.
"""

from __future__ import annotations

import shlex
from typing import Protocol

#: Start of the run ids that ``airflow tasks test`` makes up anew each time.
TEMPORARY_RUN = "__airflow_temporary_run_"

#: Member of a run's configuration, or of params, and its values.
OVERRIDE, RESTART, CONTINUE = "checkpoint", "restart", "continue"

_ASKED = f'{{"{OVERRIDE}": "{RESTART}"}}'
_BY_RUN = f"run the DAG with the configuration {_ASKED}"
_LATEST = (
    "If its run is pinned to a version of the DAG bundle, clear it with the latest version, or set rerun_with_latest_version in "
    "the section core of Airflow's configuration: it has the old code otherwise"
)
_BY_PARAMS = f"set params={_ASKED} on the stage and clear it in the same run, then its commit"
_BY_PROGRAM = "call checkpointed_write with restart=, any text that was not used before"


class TaskInstance(Protocol):
    """Where a write comes from; see ``Origin``. A program of the user's own has an empty DAG id, and its name for a task."""

    @property
    def dag_id(self) -> str: ...
    @property
    def task_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def map_index(self) -> int: ...


class Keyed(Protocol):
    """What is written under a key, and where it comes from; see ``Header``."""

    @property
    def key(self) -> str: ...
    @property
    def origin(self) -> TaskInstance: ...


def default_key_of(dag_id: str, task_id: str, run: str, map_index: int) -> str:
    """The key of a task that was given none.

    :param run: id of the run, or what stands for it in a run that is deleted when it ends.
    """
    return f"{dag_id}/{task_id}/{run}/{map_index}"


def how_to_restart(header: Keyed | None = None) -> str:
    """What to do to begin a write anew, to follow ``Redo the write:``, without a full stop.

    :param header: of the checkpoint, which tells whether its key is the default one; without it, both ways are named.
    """
    if header is None:
        return f"{_BY_RUN} if the stage has an idempotence_key; if it has the default one, in which the run is, {_BY_PARAMS}"
    origin = header.origin
    if is_program(origin):
        return _BY_PROGRAM
    run = origin.run_id
    if run.startswith(TEMPORARY_RUN):
        # The default key of such a run has something else in its place.
        run = header.key.removeprefix(f"{origin.dag_id}/{origin.task_id}/").removesuffix(f"/{origin.map_index}")
    if header.key == default_key_of(origin.dag_id, origin.task_id, run, origin.map_index):
        return f"{_BY_PARAMS} (its key is the default one: another run of the DAG writes under another key)"
    return _BY_RUN


def is_program(origin: TaskInstance) -> bool:
    """Whether a write comes from a program of the user's own, which no DAG runs."""
    return not origin.dag_id


def run_again(header: Keyed) -> str:
    """What to do so that the splits that are missing are staged, to begin a sentence.

    :param header: of the checkpoint.
    """
    task = header.origin.task_id
    return f"Run the program {task!r} again" if is_program(header.origin) else f"Clear the task {task!r}"


def how_to_continue(header: Keyed) -> str:
    """What to do to keep what is staged and to go on with other code, as a sentence or two.

    :param header: of the checkpoint.
    """
    if is_program(header.origin):
        return 'To keep what is staged and go on with the code as it is now: call checkpointed_write with on_change="continue".'
    return (
        'To keep what is staged and go on with the code as it is now: set on_change="continue" on the stage, or run '
        f"airflow checkpoints continue {shlex.quote(header.key)} once, and clear the stage. {_LATEST}."
    )
