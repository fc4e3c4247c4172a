"""Looking at staged files: all that a commit needs are there, in the size they had, or it is stopped (I5).

Nothing but a clean-up of orphans, or a hand, deletes what no table refers to yet. Iceberg's own clean-up spares files of the
last three days, and its Spark procedure refuses to spare fewer than the last 24 hours, because it cannot tell an orphan from a
write that is under way.

Decision: no file is taken to be there because it was seen before, however lately, and no clock of another machine is asked. The
look of a commit comes before its first swap. It is repeated where a later swap of the same call comes more than a minute after
it, by this process's own clock; not before each, because a look at very many files that is repeated for each swap could be slower
than the other writers which make the swaps fail.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from airflow_ckpt_provider.exceptions import StagedFileMissingError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Header, StagedFile
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.tables.protocol import Base, Table

#: What helps where a split cannot read what others have staged.
_WAY_ON = "Clear the stage: it stages anew what is missing, and what was computed from it, and nothing else."

#: What the libraries say of a file that is no file of its kind.
_DAMAGED = re.compile(r"magic|corrupt|deserialize|invalid user input", re.IGNORECASE)

#: Files that a message names.
_SHOWN = 5

#: Seconds from which on a look is long.
_LONG_S = 1.0

#: Seconds after which a look is repeated before the next swap, and how many times as long as it took that must be at least.
_AGAIN_S, _AGAIN_TIMES = 60.0, 10.0


class Look(NamedTuple):
    """What a look at files was, and what it cost.

    :param seconds: with the reading of the records that name the files.
    """

    files: int
    seconds: float

    @property
    def is_long(self) -> bool:
        """Whether it took so long that a log should say so."""
        return self.seconds > _LONG_S


#: Told of each look.
Told: TypeAlias = "Callable[[Look], None]"

#: Looks at files, by their paths; see ``gone_of``.
Sizes: TypeAlias = "Callable[[Sequence[str]], Sequence[int | None]]"


class Presence:
    """The looks of one commit.

    :param told: told what each look cost.
    """

    def __init__(self, sealed: Sequence[SealedWrite], table: Table, told: Told = lambda _: None) -> None:
        self._sealed = sealed
        self._table = table
        self._told = told
        self._repeat_at = 0.0

    def require(self, base: Base | None = None) -> None:
        """Look at every file that the commit needs.

        :param base: see ``Table.lost``.
        :raises StagedFileMissingError: naming what is gone.
        """
        start = time.monotonic()
        files = [(one.header, file) for one in self._sealed for file in self._table.needed_to_commit(one)]
        gone = set(self._table.lost(self._sealed[0].header.table, [file for _, file in files], base))
        end = time.monotonic()
        self._repeat_at = end + max(_AGAIN_S, _AGAIN_TIMES * (end - start))
        self._told(Look(len(files), end - start))
        if gone:
            raise missing_error([(header, file) for header, file in files if file in gone], len(files), self._table)

    def require_still(self) -> None:
        """The same again, if the last look was long ago."""
        if time.monotonic() > self._repeat_at:
            self.require()


def gone_of(files: Sequence[StagedFile], sizes: Sequence[int | None]) -> list[StagedFile]:
    """Those of these files that are gone, or have another size.

    :param sizes: of the files as they are now; None for one that is not there.
    """
    return [file for file, size in zip(files, sizes, strict=True) if size != file.bytes]


@contextlib.contextmanager
def reading_staged(files: Sequence[StagedFile], look: Sizes, table: str) -> Iterator[None]:
    """Say of an error of the block whether it comes of staged files that are gone or damaged.

    :param files: staged files that the block reads.
    :param look: their sizes now, by their paths.
    :param table: name, for messages.
    :raises StagedFileMissingError: if one is gone or has another size, or is no file of its kind.
    """
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        gone = gone_of(files, look([file.path for file in files]))
        if gone:
            raise StagedFileMissingError(
                f"{len(gone)} of {len(files)} staged files of {table}, which this split reads, are gone or damaged, for instance "
                f"{gone[0].path}. Nothing was committed. {_WAY_ON}"
            ) from error
        if files and (isinstance(error, pa.ArrowInvalid) or _DAMAGED.search(str(error))):
            raise StagedFileMissingError(
                f"A staged file of {table} that this split reads cannot be read ({first_line(error)}), though all have the size "
                f"they had; they are: {', '.join(file.path for file in files[:_SHOWN])}. Nothing was committed. Delete the one "
                f"that is damaged. {_WAY_ON}"
            ) from error
        raise


def missing_error(gone: Sequence[tuple[Header, StagedFile]], total: int, table: Table) -> StagedFileMissingError:
    """The error for files that are gone or damaged.

    :param gone: with the headers of those whose files they are.
    :param total: number of the files that were looked at.
    """
    tasks = sorted({header.origin.task_id for header, _ in gone})
    return StagedFileMissingError(
        f"{len(gone)} of {total} staged files of {table.identifier} are gone or damaged, for instance {gone[0][1].path}. Nothing "
        f"was committed. {table.what_deletes} Clear the stage ({', '.join(map(repr, tasks))}): it stages anew what is missing, and "
        "nothing else. Then clear the commit."
    )
