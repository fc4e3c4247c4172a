"""What a table that does not exist yet is to be: as the mode ``create`` is told, and any other with ``create_if_missing``."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from airflow_ckpt_provider.tables.keys.parameters import UpsertParameters
from airflow_ckpt_provider.tables.parameters import ModeParameters, of_creation

PartitionBy: TypeAlias = Annotated[list[str] | None, Meta(description="terms such as day(ts), bucket(16, id), region")]
SortBy: TypeAlias = Annotated[list[str] | None, Meta(description="the sort order to record, such as id or ts desc")]
TableProperties: TypeAlias = Annotated[dict[str, str] | None, Meta(description="properties of the table")]
Location: TypeAlias = Annotated[str | None, Meta(description="where the table's files go")]
CreateIfMissing: TypeAlias = Annotated[bool | None, Meta(description="whether to create the table, if there is none")]

_NAMES = ("partition_by", "sort_by", "table_properties", "location")


class CreateParameters(ModeParameters, frozen=True, kw_only=True):
    """What the table is to be."""

    partition_by: PartitionBy = None
    sort_by: SortBy = None
    table_properties: TableProperties = None
    location: Location = None


class MayCreateParameters(CreateParameters, frozen=True, kw_only=True):
    """What the table is to be, if there is none."""

    create_if_missing: CreateIfMissing = None

    def problem(self) -> str | None:
        """What a table is to be that is not to be created."""
        return of_creation(self, _NAMES, is_asked=bool(self.create_if_missing))


class MayCreateUpsertParameters(UpsertParameters, frozen=True, kw_only=True):
    """Which rows are the same, and what the table is to be, if there is none."""

    partition_by: PartitionBy = None
    sort_by: SortBy = None
    table_properties: TableProperties = None
    location: Location = None
    create_if_missing: CreateIfMissing = None

    def problem(self) -> str | None:
        """What a table is to be that is not to be created."""
        return super().problem() or of_creation(self, _NAMES, is_asked=bool(self.create_if_missing))
