"""Sources that are part of the design and not of this version. Using one fails when the DAG is parsed."""

from __future__ import annotations

from airflow_ckpt_provider.exceptions import NotSupportedYetError


class _Later:
    def __init__(self, *args: object, **kwargs: object) -> None:
        del args, kwargs
        raise NotSupportedYetError(
            f"The source {type(self).__name__} is not supported yet. This version reads Files, IcebergTable and SparkDataFrame."
        )


class LanceDataset(_Later):
    """A Lance dataset at a pinned version. Not supported yet."""
