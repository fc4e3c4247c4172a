"""Whether staged files are still there, and when that is looked at (I5).

Nothing but a clean-up of orphans, or a hand, deletes what no table refers to yet. Iceberg's own clean-up spares files of the
last three days, and its Spark procedure refuses to spare fewer than the last 24 hours, because it cannot tell an orphan from a
write that is under way.

Decision: a file that was seen within the last ten minutes is taken to be there. It was seen when its storage acknowledged that
it is written, or when the checkpoint was sealed. So the usual commit, right after its stage, takes no longer for 100,000 files
than for one, where a look at each would be a request each to an object store; one that comes later looks at all of them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import StagedFileMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from airflow_ckpt_provider.checkpoint.documents import Staged, StagedFile, TableBinding
    from airflow_ckpt_provider.tables.protocol import Base, Sealed, Table

#: How long a file that was seen is taken to be there.
TRUSTED = timedelta(minutes=10)


def require_to_seal(staged: Iterable[Staged], table: Table, binding: TableBinding) -> None:
    """Before a seal: look at files that were not written just now, such as those of an earlier attempt.

    :raises StagedFileMissingError: naming what is gone.
    """
    files = _files(record for record in staged if not _lately(record.published_at))
    if files:
        table.require_files(binding, files)


def require_to_commit(sealed: Sequence[Sealed], table: Table, base: Base | None = None) -> None:
    """Before a commit: look at the files of what was not sealed just now, and at what lists the files, of all.

    :param base: see ``Table.require_files``.
    :raises StagedFileMissingError: naming what is gone.
    """
    _require(sealed, [one for one in sealed if not _lately(one.seal.sealed_at)], table, base)


def require_all(sealed: Sequence[Sealed], table: Table) -> None:
    """Look at all files, whenever they were seen.

    :raises StagedFileMissingError: naming what is gone.
    """
    _require(sealed, sealed, table)


def _require(sealed: Sequence[Sealed], looked_at: Sequence[Sealed], table: Table, base: Base | None = None) -> None:
    """Look at the files of some of these, and at what lists the files, of all."""
    files = _files(record for one in looked_at for record in one.staged)
    files += table.records([manifest for one in sealed for manifest in one.seal.manifests])
    table.require_files(sealed[0].header.table, files, base)


def require_found(files: Sequence[StagedFile], sizes: Sequence[int | None], table: str, hint: str) -> None:
    """Refuse to go on if staged files are gone, or have another size.

    :param sizes: of the files as they are now; None for one that is not there.
    :param table: name, for messages.
    :param hint: what deletes such files, and what helps.
    :raises StagedFileMissingError: naming what is gone.
    """
    bad = [file.path for file, found in zip(files, sizes, strict=True) if found != file.bytes]
    if bad:
        raise StagedFileMissingError(
            f"{len(bad)} of {len(files)} staged files of {table} are gone or damaged, for instance {bad[0]}. Nothing was "
            "committed. "
            f"{hint} redo the write: {how_to_restart()}."
        )


def _files(staged: Iterable[Staged]) -> list[StagedFile]:
    return [file for record in staged for file in record.files]


def _lately(moment: datetime) -> bool:
    """Whether that was just now. What lies ahead was written by another machine's clock and tells nothing."""
    return timedelta(0) <= now() - moment < TRUSTED
