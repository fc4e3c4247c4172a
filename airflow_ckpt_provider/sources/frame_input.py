"""What a DataFrame is made of that is made of a source: which there may be, what its columns are, and what a plan pins of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import (  # msgspec reads the annotations of its structs at run time
    JsonObject,  # noqa: TC001
    Pinned,
    Split,  # noqa: TC001
)
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources.protocol import SessionSource, Source, StoredSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from airflow_ckpt_provider.checkpoint.documents import Plan


class FrameInput(Pinned, frozen=True, kw_only=True, omit_defaults=True, tag="frame_transform"):
    """What is read, and how what is made of it is dealt into the splits of the plan.

    :param source: what the source that is read has pinned.
    :param splits: its splits; without any, there is nothing to make a DataFrame of.
    :param dealt: what decides which rows of the DataFrame are in which split: ``Buckets`` or ``Partitions``. None without splits.
    """

    source: JsonObject
    splits: tuple[Split, ...] = ()
    dealt: JsonObject | None = None


def require_frame_transform(source: object, dataframe: Callable[..., DataFrame] | str | None, recover: str | None) -> None:
    """Refuse what no DataFrame can be made of, if one is to be made of a source. References to XComs are known at run time only.

    :raises InvalidInputError: saying what there may be.
    """
    if source is None and dataframe is None:
        return
    if source is None or dataframe is None:
        raise InvalidInputError(
            f"SparkDataFrame(source={source!r}, dataframe={dataframe!r}): the function dataframe is given the rows of source, so "
            "that both are needed. A function of the session alone is build."
        )
    if isinstance(source, SessionSource):
        raise InvalidInputError(
            f"SparkDataFrame(source={source!r}): a DataFrame is made of what is read split by split. Make one function of both "
            "DataFrames; or stage the first with a CheckpointedTransformOperator and read its output with Staged."
        )
    if not isinstance(source, str | Source | StoredSource) and not hasattr(source, "resolve"):
        raise InvalidInputError(
            f"SparkDataFrame(source={source!r}): is neither a source, such as Files(...), nor a path or glob of Parquet files."
        )
    if recover == "rows":
        raise InvalidInputError(
            "SparkDataFrame(recover='rows') writes what arrives between two attempts, and source= is read as it was when it was "
            "planned. Use recover='buckets'."
        )


def columns_read(read: Source, planned: Plan, options: Mapping[str, str]) -> pa.Schema | None:
    """The columns of what a plan reads: those of the first rows, for formats that carry no types; None if there are no rows."""
    schema = read.schema(planned, options)
    if schema is not None:
        return schema
    reader = read.reader(options)
    return next((batch.schema for split in planned.splits for batch in reader.read(split, None)), None)
