"""Counting the rows of buckets in a session, before the plan is pinned, and cutting the largest; see ``sources.dealing``.

Up to three aggregations, each of few groups, so that next to nothing is shuffled: the rows of each bucket; if one has too many, its
shares by ids; if one of these has, its shares by rows. Spark reads only the columns that they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError, StageFailedError
from airflow_ckpt_provider.sources.dealing import MAX_BUCKETS, Cut, ShareRead
from airflow_ckpt_provider.spark.error_summary import error_summary, terminal_in
from airflow_ckpt_provider.spark.frame.buckets import bucket_sql, canonical, lookup_sql, share_hash_sql, stable_columns
from airflow_ckpt_provider.spark.frame.reproducible import require_reproducible
from airflow_ckpt_provider.spark.frame.run import built_frame
from airflow_ckpt_provider.spark.session import quiet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.sources.dataframe import SparkDataFrame

#: How many times the rows that a share is meant to have one by ids may have: a hash does not deal evenly.
_UNEVEN = 2


def counted_cut(spark: SparkSession, source: SparkDataFrame) -> Cut | None:
    """Which buckets of a DataFrame have more rows than they may have, and into which shares they are cut; None if none has.

    :raises InvalidInputError: if that would be too many splits, or the DataFrame is not the same each time.
    """
    most = source.bucket_rows
    if most is None:
        raise TypeError(f"{source!r} has no bucket_rows.")
    quiet()
    frame = built_frame(spark, source)
    kinds = canonical(frame.schema, source.id_column, source.name)
    if not source.reproducible:
        require_reproducible(spark, frame, source.id_column, source.name)
    bucket = bucket_sql(source.id_column, kinds, source.buckets)
    try:
        counted = frame.selectExpr(f"{bucket} AS bucket").groupBy("bucket").count().where(f"count > {most}").collect()
        sizes = {row["bucket"]: -(-row["count"] // most) for row in sorted(counted)}
        splits = source.buckets - len(sizes) + sum(sizes.values())
        if splits > MAX_BUCKETS:
            raise InvalidInputError(
                f"SparkDataFrame(bucket_rows={most}): the DataFrame of {source.name} would have {splits:,} splits, and at most "
                f"{MAX_BUCKETS:,} can be. Raise bucket_rows."
            )
        if not sizes:
            return None
        by_ids = Cut(sizes, tuple(source.id_column), _counted(frame, source, bucket, sizes, source.id_column))
        if source.assert_unique or all((share.rows or 0) <= _UNEVEN * most for share in by_ids.shares):
            return by_ids._replace(shares=[ShareRead(bucket=share.bucket, share=share.share) for share in by_ids.shares])
        stable = (name for name in stable_columns(frame.schema) if name not in source.id_column)
        by = (*source.id_column, *stable)
        return Cut(sizes, by, _counted(frame, source, bucket, sizes, by))
    except InvalidInputError:
        raise
    except Exception as error:
        said = f"The rows of the DataFrame of {source.name} could not be counted: {error_summary(error)}"
        raise terminal_in(error) or StageFailedError(said) from error


def _counted(frame: DataFrame, source: SparkDataFrame, bucket: str, sizes: Mapping[int, int], by: Sequence[str]) -> list[ShareRead]:
    """The shares of the buckets that are cut, with the rows of each, and the sum of their hashes."""
    from pyspark.sql import functions as f

    size = lookup_sql([sizes.get(number, 0) for number in range(source.buckets)], bucket)
    share_hash = share_hash_sql(frame.schema, by, source.name)
    rows = frame.selectExpr(f"{bucket} AS bucket", f"{size} AS size", f"{share_hash} AS hash").where("size > 0")
    shares = rows.selectExpr("bucket", "cast(pmod(hash, size) AS int) AS share", "cast(hash AS decimal(20, 0)) AS hash")
    found = {
        (row["bucket"], row["share"]): (row["rows"], str(row["sum"]))
        for row in shares.groupBy("bucket", "share").agg(f.count("*").alias("rows"), f.sum("hash").alias("sum")).collect()
    }
    units = [(number, share) for number, count in sizes.items() for share in range(count)]
    told = {unit: found.get(unit, (0, "0")) for unit in units}
    return [ShareRead(bucket=unit[0], share=unit[1], rows=told[unit][0], sum=told[unit][1]) for unit in units]
