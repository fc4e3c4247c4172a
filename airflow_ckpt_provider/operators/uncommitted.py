"""A stage whose commit was forgotten: it succeeds at each run, and its rows never land.

Decision: Airflow says when a DAG is whole to its tasks alone, by ``prepare_template``, and so the stage looks itself, when its DAG
is parsed. A policy or a listener would look at all DAGs of everybody. A mapped task is not told, and looks when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

#: Package of the operators that wait for a checkpoint, or clean up after it, and commit none.
_OURS = __name__.partition(".")[0]


def why_uncommitted(stage: BaseOperator | MappedOperator) -> str | None:
    """Why nothing will land what a stage stages, as far as its DAG tells; None if something may.

    A task of another kind that takes the stage's output may commit it.

    :param stage: without a key of its own, under which another DAG could commit.
    """
    following: list[Any] = list(stage.get_flat_relatives(upstream=False))
    if commits_after(stage):
        return None
    if any(_takes(task, stage) for task in following if kind_of(task).__module__.partition(".")[0] != _OURS):
        return None
    return (
        f"The task {stage.task_id!r} of the DAG {stage.dag_id!r} stages rows that nothing commits: no CheckpointCommitOperator "
        "runs after it, and no other task takes its output. Add CheckpointCommitOperator(task_id=..., checkpoint=<stage>.output). "
        "If another DAG commits them by their key, say that key with idempotence_key."
    )


def commits_after(stage: BaseOperator | MappedOperator) -> list[Any]:
    """The tasks of a DAG that run after a stage and commit."""
    following: list[Any] = list(stage.get_flat_relatives(upstream=False))
    return [task for task in following if issubclass(kind_of(task), CheckpointCommitOperator)]


def kind_of(task: Any) -> type:  # noqa: ANN401 - an operator, mapped or not
    """The class of a task."""
    kind = task.operator_class if isinstance(task, MappedOperator) else type(task)
    return kind if isinstance(kind, type) else type(task)


def _takes(task: Any, stage: BaseOperator | MappedOperator) -> bool:  # noqa: ANN401 - an operator, mapped or not
    """Whether a task takes the output of a stage; one that is mapped may."""
    if isinstance(task, MappedOperator):
        return True
    given = [getattr(task, field, None) for field in task.template_fields]
    return any(operator.task_id == stage.task_id for operator, _ in XComArg.iter_xcom_references(given))
