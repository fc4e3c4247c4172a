"""Where Spark finds the format ``checkpointed``: a process of its own imports every package whose name begins with ``pyspark_``.

So nothing is imported here but Spark's own class. What the format does is in ``airflow_ckpt_provider.spark.format``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """``df.write.format("checkpointed")``: rows are staged, and land once. Nothing can be read by it."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "checkpointed"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """What writes the rows of one save."""
        from airflow_ckpt_provider.spark.format import writer_of

        return writer_of(self.options, schema, overwrite=overwrite)
