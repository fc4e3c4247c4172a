"""Whether the files that records in the store name are those of the generation, and lie where its table lies (I4, I15).

Who can write to the store can name any file there. So a name alone lands nothing: it has to be one that an attempt of this very
generation gives to its files, in a folder that the table itself, or the DAG, says.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.scan.places import is_below

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Header, Staged
    from airflow_ckpt_provider.checkpoint.layout import OwnedNames


@contextlib.contextmanager
def reading_records(header: Header) -> Iterator[None]:
    """Say of records that have not the shape of any that a task writes that they are damaged (I7).

    :raises CorruptObjectError: naming the key.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"A record of generation {header.generation} of the key {header.key!r} in the checkpoint store has not the shape of "
            f"any that a task writes ({type(error).__name__}: {error}). The store was altered; nothing was changed. Redo the "
            f"write: {how_to_restart(header)}."
        ) from error


def require_owned(paths: Iterable[str], folders: Collection[str], names: OwnedNames, header: Header) -> None:
    """Refuse files that this generation has not written, or that are elsewhere.

    :param folders: where its files may be.
    :raises CorruptObjectError: naming one.
    """
    for path in paths:
        if path.rpartition("/")[2] not in names or not is_below(path, folders):
            raise not_owned(path, folders, header)


class OwnershipCheck:
    """Tells files that a generation has written for its splits from all others.

    :param folders: where its files may be.
    """

    def __init__(self, folders: Collection[str], names: OwnedNames, header: Header) -> None:
        self._folders = folders
        self._names = names
        self._header = header
        #: Folders below those, as they were met. Very many files lie in few.
        self._met: set[str] = set()

    def require(self, record: Staged, paths: Sequence[str]) -> None:
        """Refuse files that the writer of a split's record has not written for this very split: rows of another would land twice.

        :param paths: what the record says that it has written.
        :raises CorruptObjectError: naming one.
        """
        beginnings = self._names.beginnings(record.split, record.writer)
        parts = [path.rpartition("/") for path in paths]
        if all(name.startswith(beginnings) for _, _, name in parts):
            text = "".join(paths)
            if "%" not in text and "\\" not in text:
                # A name that begins so, and hides no step upwards, is below the table if its folder is.
                new = {folder: f"{folder}/{name}" for folder, _, name in parts if folder not in self._met}
                self._require_below(new.values())
                self._met.update(new)
                return
        for path, (_, _, name) in zip(paths, parts, strict=True):
            if not self._names.of_split(name, record.split, record.writer):
                raise not_owned(path, self._folders, self._header)
        self._require_below(paths)

    def _require_below(self, paths: Iterable[str]) -> None:
        for path in paths:
            if not is_below(path, self._folders):
                raise not_owned(path, self._folders, self._header)


def require_work_once(work: Iterable[object], header: Header) -> None:
    """Refuse a plan with two splits that do the same: their rows would land twice.

    :param work: what each of the table splits does.
    :raises CorruptObjectError: naming the key.
    """
    seen: set[object] = set()
    for task in work:
        if task in seen:
            raise CorruptObjectError(
                f"The sealed plan of the key {header.key!r} in the checkpoint store lists one piece of work for "
                f"{header.table.identifier} twice. The store was altered; nothing was changed. Redo the write: "
                f"{how_to_restart(header)}."
            )
        seen.add(task)


def not_owned(path: str, folders: Collection[str], header: Header) -> CorruptObjectError:
    """The error for a file that is not one of this generation's."""
    return CorruptObjectError(
        f"The checkpoint store says that generation {header.generation} of the key {header.key!r} has written {path!r} for "
        f"{header.table.identifier}. No attempt of it that is recorded writes a file of that name below "
        f"{' or '.join(sorted(folders))}: the store was altered, or the table was moved since. Nothing was changed. "
        f"Redo the write: {how_to_restart(header)}."
    )
