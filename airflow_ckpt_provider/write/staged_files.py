"""The staged-file check: all files that a commit needs are there, in the size they had, or it is stopped (I5).

A lost file is one that is not, or has another size.

Nothing but a clean-up of orphans, or a hand, deletes what no table refers to yet. Iceberg's own clean-up spares files of the
last three days, and its Spark procedure refuses to spare fewer than the last 24 hours, because it cannot tell an orphan from a
write that is under way.

Decision: no file is taken to be there because it was seen before, however lately, and no clock of another machine is asked. The
check of a commit comes before its first swap. It is repeated where a later swap of the same call comes more than a minute after
it, by this process's own clock; not before each, because a check of very many files that is repeated for each swap could be slower
than the other writers which make the swaps fail.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from airflow_ckpt_provider.exceptions import StagedFileMissingError
from airflow_ckpt_provider.tables.format import format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Header, StagedFile
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.state import TableState
    from airflow_ckpt_provider.tables.table import Table

#: Seconds from which on a look is long.
_LONG_S = 1.0

#: Seconds after which a look is repeated before the next swap, and how many times as long as it took that must be at least.
_AGAIN_S, _AGAIN_TIMES = 60.0, 10.0


class CheckCost(NamedTuple):
    """What a check of files has cost.

    :param seconds: with the reading of the records that name the files.
    """

    files: int
    seconds: float

    @property
    def is_long(self) -> bool:
        """Whether it took so long that a log should say so."""
        return self.seconds > _LONG_S


#: TellCost of each look.
TellCost: TypeAlias = "Callable[[CheckCost], None]"


class StagedFileCheck:
    """The checks of one commit that all files are there which it needs.

    :param tell_cost: told what each of them has cost.
    """

    def __init__(self, writes: Sequence[SealedWrite], table: Table, tell_cost: TellCost = lambda _: None) -> None:
        self._writes = writes
        self._table = table
        self._tell_cost = tell_cost
        self._repeat_at = 0.0

    def require(self, state: TableState) -> None:
        """Look at every file that the commit needs.

        :param state: of the table, whose storage is looked at.
        :raises StagedFileMissingError: naming a lost file.
        """
        start = time.monotonic()
        files = [file for write in self._writes for file in state.storage.needed_to_commit(write)]
        lost = set(state.storage.lost(files))
        end = time.monotonic()
        self._repeat_at = end + max(_AGAIN_S, _AGAIN_TIMES * (end - start))
        self._tell_cost(CheckCost(len(files), end - start))
        if lost:
            named = ((write.header, file) for write in self._writes for file in state.storage.needed_to_commit(write))
            raise lost_files_error([(header, file) for header, file in named if file in lost], len(files), self._table)

    def require_still(self, state: TableState) -> None:
        """The same again, if the last look was long ago, or the state does not prove that it is the storage which was looked at."""
        if not state.is_recognised or time.monotonic() > self._repeat_at:
            self.require(state)


def lost_files_error(lost: Sequence[tuple[Header, StagedFile]], total: int, table: Table) -> StagedFileMissingError:
    """The error for lost files.

    :param lost: with the headers of those whose files they are.
    :param total: number of the files that were looked at.
    """
    advice = format_of(table.format).what_deletes
    tasks = sorted({header.origin.task_id for header, _ in lost})
    return StagedFileMissingError(
        f"{len(lost)} of {total} staged files of {table.identifier} are gone or damaged, for instance {lost[0][1].path}. Nothing "
        f"was committed. {advice} Clear the stage ({', '.join(map(repr, tasks))}): it stages again what is missing, and "
        "nothing else. Then clear the commit."
    )
