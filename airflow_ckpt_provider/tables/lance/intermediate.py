"""What later rounds read of a split: the kinds that its record may have, each with the files that it names.

None of these files becomes part of the dataset, but for the column file of a fragment, which the commit gives to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the types of members
from airflow_ckpt_provider.checkpoint.documents import Pinned
from airflow_ckpt_provider.tables.lance.deletions import Deletions  # noqa: TC001 - as above
from airflow_ckpt_provider.tables.lance.upsert.sidecar import DatasetSidecar  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_ckpt_provider.checkpoint.documents import Staged


class Intermediate(Pinned, frozen=True, kw_only=True):
    """Base of these kinds."""

    @property
    def sidecars(self) -> tuple[DatasetSidecar, ...]:
        """The files that it names in the folder of the sidecars."""
        return ()


class KeysSize(Intermediate, frozen=True, kw_only=True, tag="lance_keys_size"):
    """Of a split of an upsert's source: how large the keys of its rows are in memory, in bytes."""

    key_bytes: Count


class Match(Intermediate, frozen=True, kw_only=True, tag="lance_match"):
    """Of a fragment that was matched.

    :param deletions: which of its rows the commit marks as deleted; None for none.
    :param sidecar: which rows of the source have a key of the fragment; None if none has.
    """

    deletions: Deletions | None = None
    sidecar: DatasetSidecar | None = None

    @property
    def sidecars(self) -> tuple[DatasetSidecar, ...]:
        """The sidecar, if there is one."""
        return () if self.sidecar is None else (self.sidecar,)


class RowIds(Intermediate, frozen=True, kw_only=True, tag="lance_row_ids"):
    """Of rows that keep their row ids.

    :param file: the ids, in the order of the rows.
    """

    file: DatasetSidecar

    @property
    def sidecars(self) -> tuple[DatasetSidecar, ...]:
        """That file."""
        return (self.file,)


class ColumnFile(Intermediate, frozen=True, kw_only=True, tag="lance_column_file"):
    """Of a fragment whose new columns were joined: name and bytes of the file that has them."""

    name: str
    bytes: Count


def intermediate_of(record: Staged) -> Intermediate | None:
    """What later rounds read of a split, of whatever kind; None if nothing.

    :raises CorruptObjectError: if it is of none of these kinds.
    """
    return record.intermediate_as(KeysSize, Match, RowIds, ColumnFile)


def deletions_in(record: Staged) -> Deletions | None:
    """Which rows of a fragment a split wants to be marked as deleted; None for none."""
    kept = intermediate_of(record)
    return kept.deletions if isinstance(kept, Match) else None


def sidecars_of(records: Iterable[Staged]) -> dict[str, DatasetSidecar]:
    """The sidecars that these match splits have written, by their ids."""
    kept = {record.split: intermediate_of(record) for record in records}
    return {split_id: match.sidecar for split_id, match in kept.items() if isinstance(match, Match) and match.sidecar is not None}
