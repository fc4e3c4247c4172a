"""A whole write as one task group: stage, approval, commit with its checks, clean-up.

It is made of the operators that a user would write down, so that what it does can be seen in the graph, and taken apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup, XComArg

from airflow_ckpt_provider.operators.cleanup import CheckpointCleanupOperator
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import BaseOperator
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_ckpt_provider.spark.checks.check import CheckSpec

#: What whoever approves reads: what each stage has staged. Its output is a list where it is mapped.
_STAGED = (
    "{{% set staged = task_instance.xcom_pull(task_ids={task_id!r}) %}}"
    "{{% for one in ([staged] if staged is mapping else staged) %}}"
    "- **{{{{ one.table }}}}**: {{{{ one.rows }}}} rows in {{{{ one.files }}}} files, mode `{{{{ one.mode }}}}`, "
    "key `{{{{ one.idempotence_key }}}}`\n"
    "{{% endfor %}}"
)


def checkpointed_write_group(
    group_id: str,
    stage: Callable[[], BaseOperator | MappedOperator | XComArg],
    *,
    checks: Sequence[CheckSpec] | None = None,
    approval: str | Mapping[str, Any] | None = None,
    cleanup: bool = False,
    **commit: Any,  # noqa: ANN401 - the operator's
) -> TaskGroup:
    """Make the tasks of a write: what ``stage`` makes, then ``approval``, ``commit``, and ``clean_up``::

        checkpointed_write_group("orders", clean, checks=["SELECT count(*) > 0 FROM staged"], approval="Publish the orders?")

    A write that is not approved is not committed: ``commit`` and what follows are skipped, and the rows stay staged. Clear
    ``approval`` to be asked once more.

    :param group_id: id of the group, and the prefix of its tasks' ids
    :param stage: called without arguments inside the group, makes the stage and returns it, or its output: a function that is
        decorated with ``@task.checkpointed_iceberg`` or ``@task.checkpointed_lance``, or
        ``lambda: CheckpointedIcebergWriteOperator(task_id="stage", …)``; mapped ones, too
    :param checks: of the staged rows; see ``CheckpointCommitOperator``, which runs them just before it commits
    :param approval: the question to ask before the commit, or parameters of Airflow's ``ApprovalOperator``, such as ``subject``,
        ``assigned_users`` and ``response_timeout``; None to ask nobody (templated)
    :param cleanup: whether to remove, after the commit, what killed attempts have left; see ``CheckpointCleanupOperator``
    :param commit: further parameters of the ``CheckpointCommitOperator``, such as ``outlets``
    :returns: the group
    """
    with TaskGroup(group_id) as group:
        made = stage()
        staged = made if isinstance(made, XComArg) else XComArg(made)
        committed = CheckpointCommitOperator(task_id="commit", checkpoint=staged, checks=checks, **commit)
        if approval is not None:
            _approval(approval, staged) >> committed
        if cleanup:
            CheckpointCleanupOperator(task_id="clean_up", checkpoint=committed.output)
    return group


def _approval(asked: str | Mapping[str, Any], staged: XComArg) -> BaseOperator:
    """The task that waits for somebody to approve of what is staged."""
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    ((stage, _),) = staged.iter_references()
    facts = {"subject": asked} if isinstance(asked, str) else dict(asked)
    approval: BaseOperator = ApprovalOperator(**{"task_id": "approval", "body": _STAGED.format(task_id=stage.task_id), **facts})
    approval.set_upstream(stage)
    return approval
