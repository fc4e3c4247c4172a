"""What Airflow says of the task instance that stages a checkpoint: no store knows whether somebody works on it just now."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

if TYPE_CHECKING:
    from airflow_ckpt_provider.ui.task_keys import Instance

_RUNNING = frozenset({"running", "restarting"})


class TaskState(NamedTuple):
    """State and try of a task instance, in Airflow's words; the state is empty before it is scheduled."""

    state: str
    try_number: int

    @property
    def is_running(self) -> bool:
        """Whether an attempt may be staging now."""
        return self.state in _RUNNING


def task_state(instance: Instance) -> TaskState | None:
    """The state of a task instance; None if Airflow knows no such one, as of a program, or of a run that was deleted."""
    query = select(TaskInstance.state, TaskInstance.try_number).where(
        TaskInstance.dag_id == instance.dag_id,
        TaskInstance.run_id == instance.run_id,
        TaskInstance.task_id == instance.task_id,
        TaskInstance.map_index == instance.map_index,
    )
    with create_session() as session:
        row = session.execute(query).one_or_none()
    return None if row is None else TaskState(str(row[0] or ""), int(row[1] or 0))
