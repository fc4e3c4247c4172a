"""The rows of a source that is read split by split, as a DataFrame: for a shuffle that brings groups together.

Only the columns that the function of the groups takes go through the shuffle; see ``splits`` for how they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources.frame_input import columns_read
from airflow_ckpt_provider.spark.frame.splits import SplitRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Plan
    from airflow_ckpt_provider.sources.grouped import GroupedRows

_ADVICE = "Leave it out of the function's parameters, or change its type in a stage before."


def grouped_frame(spark: SparkSession, source: GroupedRows, plan: Plan) -> DataFrame:
    """The rows that are read, with the columns that the groups need.

    :param plan: the pinned one, of buckets.
    :raises InputChangedError: if what is read is not what was planned.
    :raises InvalidInputError: for a column that Spark cannot hold.
    """
    source.verify_read(plan)
    planned = source.plan_read(plan)
    schema = columns_read(source.read, planned, source.options)
    if schema is None:
        raise InvalidInputError(f"What {source.name} reads has no rows to tell its columns by.")
    rows = schema.empty_table().select(source.aggregate.columns_of(schema.names)).schema
    reader = source.read.reader(source.options)
    needed = SplitRows(reader, planned.splits, rows, _ADVICE, complete=False)
    return needed.frame(spark, f"{source.aggregate.name} needs of {source.read!r}")


def needed_columns(frame: DataFrame, source: GroupedRows) -> DataFrame:
    """The columns of a DataFrame that the groups need."""
    return frame.select(*(f"`{name.replace('`', '``')}`" for name in source.aggregate.columns_of(frame.columns)))
