"""Staged files that a table split reads: what is said if one of them is lost (I5)."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, TypeAlias

from airflow_ckpt_provider.exceptions import StagedFileMissingError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_ckpt_provider.checkpoint.documents import StagedFile

#: What helps where a split cannot read what others have staged.
_WAY_ON = "Clear the stage: it stages again what is missing, and what was computed from it, and nothing else."

#: What the libraries say of a file that is no file of its kind.
_DAMAGED = re.compile(r"magic|corrupt|deserialize|invalid user input", re.IGNORECASE)

#: Files that a message names.
_SHOWN = 5

#: Looks at files, by their paths; see ``lost_of``.
Sizes: TypeAlias = "Callable[[Sequence[str]], Sequence[int | None]]"


def lost_of(files: Sequence[StagedFile], sizes: Sequence[int | None]) -> list[StagedFile]:
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
        lost = lost_of(files, look([file.path for file in files]))
        if lost:
            raise StagedFileMissingError(
                f"{len(lost)} of {len(files)} staged files of {table}, which this split reads, are gone or damaged, for instance "
                f"{lost[0].path}. Nothing was committed. {_WAY_ON}"
            ) from error
        if files and (isinstance(error, pa.ArrowInvalid) or _DAMAGED.search(str(error))):
            raise StagedFileMissingError(
                f"A staged file of {table} that this split reads cannot be read ({first_line(error)}), though all have the size "
                f"they had; they are: {', '.join(file.path for file in files[:_SHOWN])}. Nothing was committed. Delete the one "
                f"that is damaged. {_WAY_ON}"
            ) from error
        raise
