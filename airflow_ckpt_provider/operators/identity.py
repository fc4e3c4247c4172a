"""Who is writing, in Airflow's words: the default key, and the restart that a run asks for.

A task's own XComs are deleted when its retry starts, so the key is never read back: every try derives it again, from what all
tries of a task have in common. Try number, task instance id and the run id of a temporary run are not.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

from airflow.sdk import TaskInstanceState

from airflow_ckpt_provider.checkpoint.documents import Origin
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.reference import Instances
from airflow_ckpt_provider.checkpoint.restart import CONTINUE, OVERRIDE, RESTART, TEMPORARY_RUN, default_key_of
from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context


def origin_of(context: Context) -> Origin:
    """The task instance, without its try."""
    ti = context["ti"]
    return Origin(dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=_map_index(context))


def instances_of(context: Context) -> Instances | None:
    """How many instances a mapped task has in its run; None if it is not mapped.

    Airflow makes all of them before the first one runs. Those that a shorter list has left over are no instances any more.
    """
    origin, ti = origin_of(context), context["ti"]
    if origin.map_index < 0:
        return None
    # Airflow's name for the state of an instance that was not scheduled yet is "null".
    states = ["null", *(state.value for state in TaskInstanceState if state is not TaskInstanceState.REMOVED)]
    total = ti.get_ti_count(dag_id=origin.dag_id, task_ids=[origin.task_id], run_ids=[origin.run_id], states=states)
    return Instances(dag_id=origin.dag_id, task_id=origin.task_id, run_id=origin.run_id, total=total)


def default_key(context: Context) -> IdempotenceKey:
    """``<dag_id>/<task_id>/<run_id>/<map_index>``; in a temporary run the logical date, or ``adhoc``, for the run id."""
    ti = context["ti"]
    run = ti.run_id
    if run.startswith(TEMPORARY_RUN):
        logical_date = context["dag_run"].logical_date
        run = logical_date.astimezone(UTC).isoformat() if logical_date else "adhoc"
    return IdempotenceKey(default_key_of(ti.dag_id, ti.task_id, run, _map_index(context)))


def restart_token(context: Context) -> str | None:
    """Identity of the restart that this run asks for, or None.

    It is the run's id: a retry, and a task of the run that was cleared, resume what the restart began instead of beginning again.

    :raises InvalidInputError: for a value that there is not.
    """
    return str(context["dag_run"].run_id) if _wish(context) == RESTART else None


def continues(context: Context) -> bool:
    """Whether this run asks to go on with what is staged, whatever the code of the transform is now.

    :raises InvalidInputError: as ``restart_token``.
    """
    return _wish(context) == CONTINUE


def _wish(context: Context) -> str | None:
    conf, params = context["dag_run"].conf or {}, context.get("params") or {}
    wish = conf.get(OVERRIDE, params.get(OVERRIDE))
    if wish not in {None, RESTART, CONTINUE}:
        raise InvalidInputError(f'The run asks for {{"{OVERRIDE}": {wish!r}}}; the values are {RESTART!r} and {CONTINUE!r}.')
    return wish


def _map_index(context: Context) -> int:
    index = getattr(context["ti"], "map_index", -1)
    return -1 if index is None else index
