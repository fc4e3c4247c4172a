"""What an upsert is told, whatever the table."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from airflow_ckpt_provider.tables.parameters import ModeParameters


class UpsertParameters(ModeParameters, frozen=True, kw_only=True):
    """Which rows are the same, and what becomes of them."""

    upsert_keys: Annotated[list[str], Meta(description="the columns that identify a row")]
    when_matched: Annotated[Literal["update", "ignore"], Meta(description="what becomes of rows whose key is there")] = "update"
    when_not_matched: Annotated[Literal["insert", "ignore"], Meta(description="what becomes of the other rows")] = "insert"

    @property
    def updates(self) -> bool:
        """Whether rows whose key is there are written."""
        return self.when_matched == "update"

    @property
    def inserts(self) -> bool:
        """Whether rows whose key is not there are written."""
        return self.when_not_matched == "insert"

    def problem(self) -> str | None:
        """An upsert that neither updates nor inserts."""
        if self.updates or self.inserts:
            return None
        return "when_matched='ignore' with when_not_matched='ignore' writes nothing at all."
