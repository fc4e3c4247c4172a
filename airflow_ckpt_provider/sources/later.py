"""Sources that are part of the design and not of this version. Using one fails when the DAG is parsed."""

from __future__ import annotations

from airflow_ckpt_provider.exceptions import NotSupportedYetError


class _Later:
    def __init__(self, *args: object, **kwargs: object) -> None:
        del args, kwargs
        raise NotSupportedYetError(
            f"The source {type(self).__name__} is not supported yet. This version reads Files: Parquet, CSV, JSON lines, ORC."
        )


class IcebergTable(_Later):
    """An Iceberg table at a pinned snapshot. Not supported yet."""


class LanceDataset(_Later):
    """A Lance dataset at a pinned version. Not supported yet."""


class SparkDataFrame(_Later):
    """Any Spark DataFrame, in hash buckets of an id column. Not supported yet."""
