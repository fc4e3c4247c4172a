"""What a write reads: a source plans deterministic splits, and its reader reads one split, again and again, on an executor.

No source knows the table that is written to. A plan, splits and Arrow batches are all that goes from one to the other. A source
imports neither Airflow nor Spark, and the libraries of Iceberg and Lance only where it reads them. ``SparkDataFrame`` reads nothing
itself: its rows are computed by the session that the stage hands to it.
"""

from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.files.source import Files
from airflow_ckpt_provider.sources.iceberg.source import IcebergTable
from airflow_ckpt_provider.sources.lance import LanceDataset
from airflow_ckpt_provider.sources.protocol import Reader, Source
from airflow_ckpt_provider.sources.rejected.source import Rejected
from airflow_ckpt_provider.sources.staged import Staged

__all__ = ["Files", "IcebergTable", "LanceDataset", "Reader", "Rejected", "Source", "SparkDataFrame", "Staged"]
