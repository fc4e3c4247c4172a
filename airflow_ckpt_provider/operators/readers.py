"""Which tasks of a DAG are still to read rows that another of its tasks has staged for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import TaskInstanceState

from airflow_ckpt_provider.checkpoint.restart import TEMPORARY_RUN
from airflow_ckpt_provider.operators.stage import CheckpointedWriteOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Origin

#: States of task instances that have read what they read, or will not read anything.
_OVER = {TaskInstanceState.REMOVED, TaskInstanceState.SKIPPED, TaskInstanceState.SUCCESS}


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
        following = [task.task_id for task in dag.get_task(origin.task_id).downstream_list if _may_read(task)]
        return [task_id for task_id in following if self._to_come(origin, task_id)]

    def _to_come(self, origin: Origin, task_id: str) -> bool:
        """Whether an instance of a task has not ended well. One that has, and has not said that it reads, does not read this."""
        states = ["null", *(state.value for state in TaskInstanceState if state not in _OVER)]
        ti, run = self._context["ti"], origin.run_id
        return bool(ti.get_ti_count(dag_id=origin.dag_id, task_ids=[task_id], run_ids=[run], states=states))


def _may_read(task: object) -> bool:
    """Whether a task is a stage, mapped or not."""
    kind = getattr(task, "operator_class", type(task))
    return isinstance(kind, type) and issubclass(kind, CheckpointedWriteOperator)
