"""Which tasks of a DAG are still to read rows that another of its tasks has staged for them.

A reader need not follow what it reads: a reference may pass through tasks of other kinds, such as one that chooses between two
stages. So all that comes behind a stage is looked at, and whose output it is given.

Decision: what cannot be told keeps the rows. A task of another kind behind the stage may hand on the reference that it was given,
or one that it has pulled by itself; a stage or a commit hands on a reference of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskInstanceState, XComArg
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_ckpt_provider.checkpoint.restart import TEMPORARY_RUN
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.stage import CheckpointedWriteOperator
from airflow_ckpt_provider.operators.uncommitted import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Origin

#: States of task instances that have read what they read, or will not read anything.
_OVER = {TaskInstanceState.REMOVED, TaskInstanceState.SKIPPED, TaskInstanceState.SUCCESS}

#: Kinds of tasks whose output names no rows but their own.
_NAMES_ITS_OWN = (CheckpointedWriteOperator, CheckpointCommitOperator)


class ReadersToCome:
    """Tells of rows for other tasks which tasks of this DAG, in the run that has staged them, have not begun to read them.

    Of a run that Airflow does not keep, and of rows that another DAG has staged, it knows nothing.

    :param context: of the task that asks.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def __call__(self, checkpoint: Checkpoint) -> list[str]:
        """Ids of those tasks."""
        origin, dag = checkpoint.header.origin, self._context["dag"]
        if origin.dag_id != dag.dag_id or origin.run_id.startswith(TEMPORARY_RUN) or origin.task_id not in dag.task_ids:
            return []
        return [task_id for task_id in readers_behind(dag.get_task(origin.task_id)) if self._to_come(origin, task_id)]

    def _to_come(self, origin: Origin, task_id: str) -> bool:
        """Whether an instance of a task has not ended well. One that has, and has not said that it reads, does not read this."""
        states = ["null", *(state.value for state in TaskInstanceState if state not in _OVER)]
        ti, run = self._context["ti"], origin.run_id
        return bool(ti.get_ti_count(dag_id=origin.dag_id, task_ids=[task_id], run_ids=[run], states=states))


def readers_behind(stage: Any) -> list[str]:  # noqa: ANN401 - an operator, mapped or not
    """Ids of the stages that may read the rows of a stage: those next to it, and those that may be given its reference."""
    behind = {task.task_id: task for task in stage.get_flat_relatives(upstream=False)}
    naming = {stage.task_id, *(task_id for task_id, task in behind.items() if not issubclass(kind_of(task), _NAMES_ITS_OWN))}
    return sorted(
        task_id
        for task_id, task in behind.items()
        if issubclass(kind_of(task), CheckpointedWriteOperator)
        and (task_id in stage.downstream_task_ids or not naming.isdisjoint(_given_by(_arguments_of(task))))
    )


def _arguments_of(task: Any) -> list[Any]:  # noqa: ANN401 - an operator, mapped or not
    if not isinstance(task, MappedOperator):
        return [getattr(task, name, None) for name in task.template_fields]
    expanded = [getattr(task, name).value for name in ("expand_input", "op_kwargs_expand_input") if hasattr(task, name)]
    return [*task.partial_kwargs.values(), *expanded]


def _given_by(value: Any) -> Iterator[str]:  # noqa: ANN401 - any argument of a task
    """Ids of the tasks whose outputs an argument takes, also inside sources: Airflow itself does not look into those."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        for part in value:
            yield from _given_by(part)
    elif hasattr(value, "resolve"):
        yield from (operator.task_id for operator, _ in XComArg.iter_xcom_references(value))
    else:
        for name in getattr(value, "template_fields", ()):
            yield from _given_by(getattr(value, name, None))
