"""The rows of a source that is read split by split, as a DataFrame: for a shuffle that brings groups together.

Every split is read by one Spark task, with the source's own reader, and only the columns that the function of the groups takes go
through the shuffle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.spark.code_shipping import dumps

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Plan
    from airflow_ckpt_provider.sources.grouped import GroupedRows


def grouped_frame(spark: SparkSession, source: GroupedRows, plan: Plan) -> DataFrame:
    """The rows that are read, with the columns that the groups need.

    :param plan: the pinned one, of buckets.
    :raises InputChangedError: if what is read is not what was planned.
    :raises InvalidInputError: for a column that Spark cannot hold.
    """
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    source.verify_read(plan)
    planned = source.plan_read(plan)
    schema = source.schema_read(planned, source.options)
    if schema is None:
        raise InvalidInputError(f"What {source.name} reads has no rows to tell its columns by.")
    names = source.aggregate.columns_of(schema.names)
    try:
        columns = from_arrow_schema(schema.empty_table().select(names).schema)
        wanted = to_arrow_schema(columns, timezone="UTC")
    except Exception as error:
        raise InvalidInputError(
            f"{source.aggregate.name} needs a column of {source.read!r} that Spark cannot hold: {error}. Leave it out of the "
            "function's parameters, or change its type in a stage before."
        ) from error
    payload = dumps((source.read.reader(source.options), planned.splits, names, wanted))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from airflow_ckpt_provider.spark.frame.grouped import read_splits

        return read_splits(payload, batches)

    count = len(planned.splits)
    return spark.range(0, count, 1, count).mapInArrow(read, columns)


def needed_columns(frame: DataFrame, source: GroupedRows) -> DataFrame:
    """The columns of a DataFrame that the groups need."""
    return frame.select(*(f"`{name.replace('`', '``')}`" for name in source.aggregate.columns_of(frame.columns)))


def read_splits(payload: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark runs on the executor: the rows of the splits with these numbers."""
    import pickle

    import pyarrow as pa

    unpickled: Any = pickle.loads(payload)  # noqa: S301 - from this attempt's driver, over Spark's own channel
    reader, splits, names, wanted = unpickled
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for rows in reader.read(splits[number], None):
                if rows.num_rows:
                    try:
                        table = pa.Table.from_batches([rows.select(names)]).cast(wanted)
                    except pa.ArrowInvalid as error:
                        raise InvalidInputError(
                            f"The rows have a value that Spark cannot hold, and rows are grouped by Spark: {error}. Change its "
                            "type in a stage before, or leave the column out of the function's parameters."
                        ) from error
                    yield from table.combine_chunks().to_batches()
