"""A mapped stage whose instances would each make the one table: its commit could land none of them, after all of their work.

Decision: the table is looked for when an instance runs, not when the DAG is parsed. Most tables are there, and then
``create_if_missing`` costs a mapped stage nothing; no DAG opens a catalog while it is parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.exceptions import InvalidInputError, TableMissingError
from airflow_ckpt_provider.operators.identity import instances_of
from airflow_ckpt_provider.operators.uncommitted import commits_after

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.request import WriteRequest

#: How the operators of both formats name where rows land.
_TABLE_NAMES = ("table", "uri")


def require_made_once(context: Context, store: CheckpointStore, table: Table, request: WriteRequest) -> None:
    """Refuse to stage rows of a table that is missing, where several instances would each make it in one commit.

    :raises InvalidInputError: before anything is stored, and before Spark starts.
    """
    if not request.creates_if_missing or request.origin.map_index < 0:
        return
    stage = context["dag"].get_task(request.origin.task_id)
    if not (_has_one_table(stage) and _lands_together(stage)) or Checkpoint.latest(store, request.key) is not None:
        return
    try:
        table.binding()
    except TableMissingError:
        instances = instances_of(context)
        if instances is None or instances["total"] == 1:
            return
        raise InvalidInputError(
            f"The table {table.identifier} does not exist, and the {instances['total']} mapped instances of "
            f"{request.origin.task_id!r}, which land together, cannot each make it. Nothing was staged. Create the table first, or "
            "let a stage that is not mapped write the first rows with create_if_missing=True; then clear this task."
        ) from None


def _has_one_table(stage: Any) -> bool:  # noqa: ANN401 - an operator, mapped or not
    """Whether all instances of a stage write to one table, as far as its DAG tells."""
    given = stage.partial_kwargs if isinstance(stage, MappedOperator) else vars(stage)
    names = [given[name] for name in _TABLE_NAMES if given.get(name) is not None]
    return bool(names) and all(isinstance(name, str) and "{{" not in name for name in names)


def _lands_together(stage: BaseOperator | MappedOperator) -> bool:
    """Whether a task commits all instances of a mapped stage."""
    return any(
        not isinstance(commit, MappedOperator) and commit.get_closest_mapped_task_group() is None for commit in commits_after(stage)
    )
