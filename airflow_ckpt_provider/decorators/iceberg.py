"""``@task.checkpointed_iceberg``: a function as the stage of a write into an Iceberg table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import task_decorator_factory

from airflow_ckpt_provider.decorators.stage import DecoratedStage
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk.bases.decorator import TaskDecorator


class DecoratedIcebergWriteOperator(DecoratedStage, CheckpointedIcebergWriteOperator):
    """A stage into an Iceberg table whose transform, or DataFrame, is a decorated function."""

    template_fields: Sequence[str] = ("op_args", "op_kwargs", *CheckpointedIcebergWriteOperator.template_fields)
    template_fields_renderers = {  # noqa: RUF012 - Airflow's own attribute
        **DecoratedStage.template_fields_renderers,
        **CheckpointedIcebergWriteOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.checkpointed_iceberg"


def checkpointed_iceberg(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:  # noqa: ANN401 - the operator's
    """Make a function the stage of a write into an Iceberg table; the task returns the checkpoint reference::

        @task.checkpointed_iceberg(table="shop.orders", source=Files("s3://landing/{{ ds }}/*.parquet"), retries=3)
        def clean(batch: pa.RecordBatch) -> pa.RecordBatch: ...

        @task.checkpointed_iceberg(table="shop.totals", mode="overwrite", id_column="shop")
        def totals(spark: SparkSession, day: str) -> DataFrame: ...

    With ``source``, the function is the transform of a ``CheckpointedIcebergWriteOperator``; without, it makes the DataFrame of a
    ``SparkDataFrame``. What the task is called with is given to it behind its first argument.

    :param python_callable: the function.
    :param kwargs: parameters of ``CheckpointedIcebergWriteOperator``; without ``source`` also ``id_column``, ``buckets``,
        ``recover``, ``assert_unique``, ``reproducible`` and ``build_version`` of ``SparkDataFrame``.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=DecoratedIcebergWriteOperator,
        **kwargs,
    )
