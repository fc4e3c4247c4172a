"""What an upsert is told, whatever the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import JsonObject

#: What may become of rows whose key the table has, and of the others; what does unless something else is asked for is first.
CHOICES = {"when_matched": ("update", "ignore"), "when_not_matched": ("insert", "ignore")}


class UpsertParameters:
    """The parameters of a mode that is an upsert."""

    parameters: JsonObject

    @property
    def _keys(self) -> list[str]:
        keys = self.parameters.get("upsert_keys")
        if not isinstance(keys, list) or not keys:
            raise InvalidInputError("mode='upsert' needs upsert_keys: the columns that identify a row.")
        return keys

    @property
    def _update(self) -> bool:
        return self.parameters.get("when_matched", "update") == "update"

    @property
    def _insert(self) -> bool:
        return self.parameters.get("when_not_matched", "insert") == "insert"
