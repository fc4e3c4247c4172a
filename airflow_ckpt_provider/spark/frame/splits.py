"""The rows of a source that is read split by split, as a DataFrame: for groups, and for what a function makes of it.

Every split is read by one Spark task, or some tiny ones that follow each other, with the source's own reader. The partitions of the
DataFrame follow from the pinned plan alone, in the order of its splits. Spark's plan, and what a partition recovery pins of it, has
their number, and a digest of them in the name of the function that reads.

Decision: the tasks are counted out of a range that is as large as the input, by a filter. Spark takes what a function makes for as
large as what goes into it, and it would send the whole input to every executor to join it, if that were a number for each task.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources.frame_input import columns_read
from airflow_ckpt_provider.spark.code_shipping import dumps
from airflow_ckpt_provider.spark.frame.buckets import require_one_of_each
from airflow_ckpt_provider.spark.session import quiet
from airflow_ckpt_provider.spark.stage import splits_of_tasks
from airflow_ckpt_provider.write.naming import in_input

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Plan, Split
    from airflow_ckpt_provider.sources.frame_transform import FrameTransform
    from airflow_ckpt_provider.sources.protocol import Reader

_BYTES_OF_A_NUMBER = 8

#: Numbers that Spark leaves out in some 50 ms.
_MOST_NUMBERS = 1 << 24

_SAME_COLUMNS = "Ask the source for columns that all of them have, or read those apart that have others."

_ADVICE = "Leave it out where the source is asked for columns, or change its type in a stage before."


class SplitRows(NamedTuple):
    """The rows of a plan's splits, as a DataFrame has them.

    :param rows: their columns.
    :param advice: what to do about a column that Spark cannot hold, for messages.
    :param complete: whether these are all columns that a split may have; then those that it lacks are null.
    """

    reader: Reader
    splits: tuple[Split, ...]
    rows: pa.Schema
    advice: str
    complete: bool

    def frame(self, spark: SparkSession, whose: str) -> DataFrame:
        """The DataFrame.

        :param whose: its rows are, to begin a message.
        :raises InvalidInputError: for a column that Spark cannot hold.
        """
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
        from pyspark.sql.types import StructType

        quiet()
        columns, wanted = StructType(), pa.schema([])
        for field in self.rows:
            try:
                # One file may well have a null where the first one, which the columns were told by, says that there is none.
                column = StructType().add(field.name, from_arrow_type(field.type))
                wanted = wanted.append(to_arrow_schema(column, timezone="UTC").field(0))
            except Exception as error:
                raise InvalidInputError(
                    f"{whose} a column that Spark cannot hold, {field.name}, of the type {field.type}: "
                    f"{str(error).rstrip('.')}. {self.advice}"
                ) from error
            columns.add(column[0])
        tasks = splits_of_tasks(list(self.splits))
        payload = dumps((self, tasks, wanted))

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from airflow_ckpt_provider.spark.frame.splits import read_splits

            return read_splits(payload, batches)

        digest = hashlib.sha256(msgspec.json.encode([[split.read for split in task] for task in tasks])).hexdigest()
        read.__name__ = f"read_{digest[:16]}"
        size = _numbers_of_a_task(sum(split.bytes for split in self.splits), len(tasks))
        numbers = spark.range(0, len(tasks) * size, 1, len(tasks)).where(f"id % {size} = 0").selectExpr(f"id div {size} AS task")
        return numbers.mapInArrow(read, columns)

    def as_wanted(self, split: Split, batch: pa.RecordBatch, wanted: pa.Schema) -> pa.Table:
        """A batch with just the columns of the DataFrame, in their types.

        :raises InvalidInputError: for a value or a column that the DataFrame cannot have.
        """
        import pyarrow as pa

        names = set(batch.schema.names)
        strange = sorted(names - set(wanted.names) if self.complete else set(wanted.names) - names)
        if strange:
            raise InvalidInputError(
                f"The rows have {'columns' if self.complete else 'no columns'} {', '.join(strange)}"
                f"{in_input(split, self.reader, 0)}, other than those of the first split. {_SAME_COLUMNS}"
            )
        arrays = [
            batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
            for field in wanted
        ]
        try:
            return pa.Table.from_arrays(arrays, names=wanted.names).cast(wanted)
        except (ValueError, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"The rows have a value that Spark cannot hold{in_input(split, self.reader, 0)}: {error}. {self.advice}"
            ) from error


def _numbers_of_a_task(size: int, tasks: int) -> int:
    """How many numbers a task is given, of which it needs one.

    :param size: of all splits, in bytes; 0 if it is not known.
    """
    return _MOST_NUMBERS if not size else min(_MOST_NUMBERS, -(-size // (tasks * _BYTES_OF_A_NUMBER)))


def rows_read(spark: SparkSession, source: FrameTransform, planned: Plan) -> DataFrame:
    """The rows that a frame transform is given.

    :param planned: the plan of what it reads, which has splits.
    :raises InvalidInputError: for a column that Spark cannot hold.
    """
    schema = columns_read(source.read, planned, source.options)
    if schema is None:
        raise InvalidInputError(f"What {source.name} is given, {source.read!r}, has no rows to tell its columns by.")
    require_one_of_each(schema.names, repr(source.read))
    rows = SplitRows(source.read.reader(source.options), planned.splits, schema, _ADVICE, complete=True)
    return rows.frame(spark, f"{source.name} is given the rows of {source.read!r}, which have")


def read_splits(payload: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark runs on the executor: the rows of the splits of the tasks with these numbers."""
    import pickle

    unpickled: Any = pickle.loads(payload)  # noqa: S301 - from this attempt's driver, over Spark's own channel
    rows, tasks, wanted = unpickled
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for split in tasks[number]:
                for read in rows.reader.read(split, rows.rows if rows.complete else None):
                    if read.num_rows:
                        yield from rows.as_wanted(split, read, wanted).combine_chunks().to_batches()
