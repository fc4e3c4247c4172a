"""Looks at a table as it is now, repeated where what was loaded went while it was looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from airflow_ckpt_provider.exceptions import StaleStateError
from airflow_ckpt_provider.scan.looks import LOOKS, wait_for_look

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_ckpt_provider.checkpoint.documents import TableBinding
    from airflow_ckpt_provider.tables.state import TableState
    from airflow_ckpt_provider.tables.storage import StagedStorage
    from airflow_ckpt_provider.tables.table import Table

T = TypeVar("T")


def look_at(table: Table, binding: TableBinding | None, look: Callable[[TableState], T], state: TableState | None = None) -> T:
    """What ``look`` finds in the table as it is now.

    :param binding: which table it must be; whichever has the name, if None.
    :param look: asks a state; it may change the table only after all that could raise ``StaleStateError``.
    :param state: of the table, for the first look, if it was loaded a moment ago.
    :raises StaleStateError: if the table was changed at each look.
    """
    for number in range(1, LOOKS + 1):
        try:
            return look(table.state(binding) if state is None else state)
        except StaleStateError as error:
            last, state = error, None
        wait_for_look(number)
    raise last


class TableOfRound:
    """The table as it was when a round began: what was pinned is asked of it, and nothing of what may have changed.

    :param table: as it is now.
    :param binding: which table it must be.
    """

    def __init__(self, table: Table, binding: TableBinding) -> None:
        self.table = table
        self._binding = binding
        self._state: TableState | None = None

    @property
    def identifier(self) -> str:
        """Its name."""
        return self.table.identifier

    def renew(self) -> None:
        """Load the table once more, at the next look: another round begins."""
        self._state = None

    def look(self, look: Callable[[TableState], T]) -> T:
        """What ``look`` finds in the table as it was when this round began; see ``look_at``."""
        if self._state is None:
            self._state = look_at(self.table, self._binding, lambda state: state)
        return look_at(self.table, self._binding, look, self._state)

    @property
    def storage(self) -> StagedStorage:
        """Where the files of the write are staged."""
        return self.look(lambda state: state.storage)
