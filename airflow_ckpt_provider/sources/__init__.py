"""What a write reads: sources plan deterministic splits and read one split again and again.

A source imports neither Airflow, nor Spark, nor a table format. It meets a table only through two small protocols.
"""

from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.files.source import Files
from airflow_ckpt_provider.sources.iceberg.source import IcebergTable
from airflow_ckpt_provider.sources.lance import LanceDataset
from airflow_ckpt_provider.sources.protocol import Reader, Source

__all__ = ["Files", "IcebergTable", "LanceDataset", "Reader", "Source", "SparkDataFrame"]
