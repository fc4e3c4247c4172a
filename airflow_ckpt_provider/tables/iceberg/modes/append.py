"""The modes that add rows and touch none: ``append``, and ``create``, whose table begins with them."""

from __future__ import annotations

from airflow_ckpt_provider.tables.iceberg.modes.base import IcebergMode
from airflow_ckpt_provider.tables.iceberg.modes.creating import CreateParameters, MayCreateParameters


class Append(IcebergMode):
    """Rows are added."""

    Parameters = MayCreateParameters


class Create(IcebergMode):
    """The table comes into being with its rows."""

    Parameters = CreateParameters
    creates = True
