"""The modes that add rows and touch none: ``append``, and ``create``, whose table begins with them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from airflow_ckpt_provider.tables.iceberg.modes.base import IcebergMode
from airflow_ckpt_provider.tables.parameters import ModeParameters


class Append(IcebergMode):
    """Rows are added."""


class CreateParameters(ModeParameters, frozen=True, kw_only=True):
    """What the table is to be."""

    partition_by: Annotated[list[str] | None, Meta(description="terms such as day(ts), bucket(16, id), region")] = None
    sort_by: Annotated[list[str] | None, Meta(description="the sort order to record, such as id or ts desc")] = None
    table_properties: Annotated[dict[str, str] | None, Meta(description="properties of the table")] = None
    location: Annotated[str | None, Meta(description="where the table's files go")] = None


class Create(IcebergMode):
    """The table comes into being with its rows."""

    Parameters = CreateParameters
    creates = True
