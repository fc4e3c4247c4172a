"""Which tasks of a DAG are still to read rows that another of its tasks has staged for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import TaskInstanceState

from airflow_ckpt_provider.checkpoint.restart import TEMPORARY_RUN
from airflow_ckpt_provider.operators.stage import CheckpointedWriteOperator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Origin, ReadBy

#: States of task instances that will not read anything.
_OVER = {TaskInstanceState.REMOVED, TaskInstanceState.SKIPPED}


class ReadersToCome:
    """Tells of rows for other tasks which tasks of this DAG, in the run that has staged them, have not begun to read them.

    Of a run that Airflow does not keep, and of rows that another DAG has staged, it knows nothing.

    :param context: of the task that asks.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def __call__(self, checkpoint: Checkpoint, readers: Sequence[ReadBy]) -> list[str]:
        origin, dag = checkpoint.header.origin, self._context["dag"]
        if origin.dag_id != dag.dag_id or origin.run_id.startswith(TEMPORARY_RUN) or origin.task_id not in dag.task_ids:
            return []
        following = [task.task_id for task in dag.get_task(origin.task_id).downstream_list if _may_read(task)]
        begun = {
            task_id: {
                reader.origin.map_index
                for reader in readers
                if (reader.origin.dag_id, reader.origin.task_id, reader.origin.run_id) == (dag.dag_id, task_id, origin.run_id)
            }
            for task_id in following
        }
        return [task_id for task_id, indexes in begun.items() if len(indexes) < self._instances(origin, task_id)]

    def _instances(self, origin: Origin, task_id: str) -> int:
        states = ["null", *(state.value for state in TaskInstanceState if state not in _OVER)]
        return int(
            self._context["ti"].get_ti_count(dag_id=origin.dag_id, task_ids=[task_id], run_ids=[origin.run_id], states=states)
        )


def _may_read(task: object) -> bool:
    """Whether a task is a stage, mapped or not."""
    kind = getattr(task, "operator_class", type(task))
    return isinstance(kind, type) and issubclass(kind, CheckpointedWriteOperator)
