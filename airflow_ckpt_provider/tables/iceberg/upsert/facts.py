"""What the store says of staged source files and sidecars, held against what the files say of themselves (I15).

Which files of the table are matched follows from the bounds of staged source files, and which rows are inserted from what
sidecars are about. A record that says less would let rows be inserted that are there. So each of these files has a digest of its
record in its own footer, which nobody can change who can only write to the store.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the types of members
from airflow_ckpt_provider.checkpoint.documents import Pinned, fingerprint
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, StagedFileMissingError, first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.io import FileIO

    from airflow_ckpt_provider.checkpoint.documents import Header

#: Name of the digest in a file's footer.
FACTS = b"airflow.checkpoint.facts"

#: Members of a record that the file cannot hold, or that are its name, or that say what kind of file it is.
_OUTSIDE = frozenset({"path", "bytes", "kind"})

#: Files that are looked into at the same time.
_READS = 16

#: Files that this process has looked into, which are never written twice under one name; and how many it remembers.
_known: set[tuple[str, bytes]] = set()
_MOST_KNOWN = 100_000


class IntermediateFile(Pinned, frozen=True, kw_only=True):
    """What the staged source files and the sidecars of an upsert have in common.

    :param path: where the file is.
    :param bytes: its size.
    """

    path: str
    bytes: Count


def facts_of(record: IntermediateFile) -> bytes:
    """The digest of what a record says of its file."""
    return fingerprint({name: value for name, value in record.to_json().items() if name not in _OUTSIDE}).encode()


def require_as_written(io: FileIO, records: Sequence[IntermediateFile], header: Header, *, must_exist: bool) -> None:
    """Refuse records that do not say of their files what those say themselves.

    :param must_exist: False leaves a file that is gone to the split that reads it.
    :raises CorruptObjectError: naming a file.
    :raises StagedFileMissingError: if one is gone or damaged.
    """
    new = [(record.path, facts_of(record)) for record in records]
    new = [file for file in new if file not in _known]
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    with ThreadPoolExecutor(_READS) as pool:
        errors = list(pool.map(lambda file: _look(io, *file), new))
    for file, error in zip(new, errors, strict=True):
        path = file[0]
        if error is None:
            _known.add(file)
        elif isinstance(error, CorruptObjectError):
            raise CorruptObjectError(
                f"The checkpoint store does not say of {path!r}, staged for {header.table.identifier} under the key "
                f"{header.key!r}, what that file itself says: its rows, the bounds of their keys, or which rows it is about. The "
                f"store was altered; nothing was changed. Redo the write: {how_to_restart(header)}."
            )
        elif must_exist:
            raise StagedFileMissingError(
                f"The staged file {path!r} of {header.table.identifier} is gone or damaged ({first_line(error)}). Nothing was "
                "committed. Clear the stage: it stages again what is missing, and nothing else. Then clear the commit."
            ) from error


def _look(io: FileIO, path: str, facts: bytes) -> Exception | None:
    """What is wrong with a file; None if it says of itself what its record says."""
    import pyarrow.parquet as pq

    try:
        with io.new_input(path).open() as stream:
            digest = (pq.ParquetFile(stream).metadata.metadata or {}).get(FACTS)
    except (OSError, ValueError) as error:
        return error
    return None if digest == facts else CorruptObjectError(path)
