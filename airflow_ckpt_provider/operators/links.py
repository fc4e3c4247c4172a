"""Links beside a task instance: to the page of its checkpoint, and to Spark's own page while its driver runs.

A stage says what a link leads to as soon as it knows it, by XCom, so that the link is there while the stage runs. When a task has
ended, however it has, Airflow asks each link, in the same process, and keeps the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow.sdk import BaseOperatorLink, conf

from airflow_ckpt_provider.hooks.page_urls import checkpoint_url, instance_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey


class LinkedCheckpoint(NamedTuple):
    """A checkpoint that a task works on.

    :param conn_id: connection of its store.
    :param generation: None before it is known.
    """

    key: str
    conn_id: str
    generation: int | None = None


class CheckpointLink(BaseOperatorLink):
    """To the page of the checkpoint that a task stages or commits; to the list of them if there are several."""

    name = "Checkpoint"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Address of the page; empty, which is no link, if the task has not come to a checkpoint."""
        linked: Sequence[LinkedCheckpoint] = getattr(operator, "linked_checkpoints", ())
        base_url = conf.get("api", "base_url", fallback="") or ""
        if len(linked) == 1:
            return checkpoint_url(base_url, *linked[0])
        if not linked:
            return ""
        return instance_url(base_url, ti_key.dag_id, ti_key.run_id, ti_key.task_id, ti_key.map_index)


class SparkUiLink(BaseOperatorLink):
    """To the web page of the Spark driver in the task's process, for as long as the driver runs."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Nothing: when Airflow asks, the task has ended, and its driver with it. See ``show_spark_ui``."""
        del operator, ti_key
        return ""


def show_checkpoint(context: Context, operator: BaseOperator) -> None:
    """Make the link to a task's checkpoint now, and not only when the task has ended."""
    link, ti = CheckpointLink(), context["ti"]
    ti.xcom_push(key=link.xcom_key, value=link.get_link(operator, ti_key=ti))  # type: ignore[arg-type]  # as Airflow itself does


def show_spark_ui(context: Context, address: str | None) -> None:
    """Make the link to the page of a Spark driver that runs in the task's process.

    :param address: as Spark says it; None if there is no page.
    """
    if address:
        context["ti"].xcom_push(key=SparkUiLink().xcom_key, value=address)
