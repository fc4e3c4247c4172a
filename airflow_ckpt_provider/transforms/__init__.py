"""What stands between a source and a table: functions of rows, and the fingerprint of a user's function."""

from __future__ import annotations

from airflow_ckpt_provider.transforms.groups import Aggregate
from airflow_ckpt_provider.transforms.rows import FlatMap, Map

__all__ = ["Aggregate", "FlatMap", "Map"]
