"""Whether the rows of a write fit its table, and which of the table's columns they lack, as far as one attempt gets to know it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import part_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import SchemaMismatchError
from airflow_ckpt_provider.tables.missing import MissingColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Header, Staged
    from airflow_ckpt_provider.tables.missing import WhenMissing
    from airflow_ckpt_provider.write.looks import TableOfRound


class RowColumns:
    """The columns of the rows that one attempt stages.

    :param header: of the generation.
    :param table: where the rows go.
    :param when_missing: what becomes of columns that the rows lack.
    """

    def __init__(self, header: Header, table: TableOfRound, when_missing: WhenMissing) -> None:
        self._header = header
        self._table = table
        self._when_missing = when_missing
        #: Columns that are null in rows because those did not have them, as far as it is known.
        self.missing: set[str] = set()

    @cached_property
    def allowed(self) -> MissingColumns | None:
        """Which columns the rows may lack; None if the mode writes no whole rows."""
        header = self._header
        placing = self._table.look(lambda state: state.mode(header).placing(header))
        if placing is None:
            return None
        keys = part_of(header.parameters.get("upsert_keys", ()), tuple[str, ...])
        return MissingColumns(self._table.identifier, self._when_missing, keys, placing)

    def require_fit(self, rows: pa.Schema) -> None:
        """Refuse rows of this schema if they do not fit the table, and remember what they lack.

        :raises SchemaMismatchError: naming each column.
        """
        allowed = self.allowed
        columns = self._table.look(lambda state: state.columns)
        columns.require_fit(rows)
        if allowed is not None:
            missing = columns.lacking_in(rows)
            allowed.require(missing)
            self.missing.update(missing)

    def require_staged(self, records: Sequence[Staged]) -> None:
        """Note which columns the rows lack that are about to be sealed.

        :raises SchemaMismatchError: if splits were staged when they might lack what they may not any more.
        """
        missing = {name for record in records for name in record.missing}
        if self.allowed is not None:
            try:
                self.allowed.require(missing, "Rows that are staged")
            except SchemaMismatchError as error:
                raise SchemaMismatchError(
                    f"{error} These were staged with another value of missing_columns, so redo the write: "
                    f"{how_to_restart(self._header)}."
                ) from error
        self.missing.update(missing)
