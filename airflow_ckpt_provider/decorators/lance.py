"""``@task.checkpointed_lance``: a function as the stage of a write into a Lance dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import task_decorator_factory

from airflow_ckpt_provider.decorators.stage import DecoratedStage
from airflow_ckpt_provider.operators.lance import CheckpointedLanceWriteOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk.bases.decorator import TaskDecorator


class DecoratedLanceWriteOperator(DecoratedStage, CheckpointedLanceWriteOperator):
    """A stage into a Lance dataset whose transform, or DataFrame, is a decorated function."""

    template_fields: Sequence[str] = ("op_args", "op_kwargs", *CheckpointedLanceWriteOperator.template_fields)
    template_fields_renderers = {  # noqa: RUF012 - Airflow's own attribute
        **DecoratedStage.template_fields_renderers,
        **CheckpointedLanceWriteOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.checkpointed_lance"


def checkpointed_lance(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:  # noqa: ANN401 - the operator's
    """Make a function the stage of a write into a Lance dataset; the task returns the checkpoint reference::

        @task.checkpointed_lance(uri="s3://lake/orders.lance", source=Files("s3://landing/{{ ds }}/*.parquet"), retries=3)
        def clean(batch: pa.RecordBatch) -> pa.RecordBatch: ...

        @task.checkpointed_lance(uri="s3://lake/totals.lance", mode="overwrite", id_column="shop")
        def totals(spark: SparkSession, day: str) -> DataFrame: ...

        @task.checkpointed_lance(uri="s3://lake/orders.lance", mode="add_columns", read_columns=["text"])
        def embed(batch: pa.RecordBatch) -> pa.RecordBatch: ...

    With ``source``, or ``mode="add_columns"``, the function is the transform of a ``CheckpointedLanceWriteOperator``; without, it
    makes the DataFrame of a ``SparkDataFrame``. What the task is called with is given to it behind its first argument.

    :param python_callable: the function.
    :param kwargs: parameters of ``CheckpointedLanceWriteOperator``; without ``source`` also ``id_column``, ``buckets``,
        ``recover``, ``assert_unique``, ``reproducible`` and ``build_version`` of ``SparkDataFrame``.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=DecoratedLanceWriteOperator,
        **kwargs,
    )
