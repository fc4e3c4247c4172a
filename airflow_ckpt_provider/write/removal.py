"""What a sweep does with each generation, of whatever kind: list its records, find its files, remove both, and report that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.layout import in_order_of_removal, place_of
from airflow_ckpt_provider.write.cleanup import Listings

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import StagedFile
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.checkpoint.state import State
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.tables.table import Table


class SweptGeneration(NamedTuple):
    """What became of one generation.

    :param key: None if its header cannot be read.
    :param state: None if it cannot be told.
    :param objects: records that were removed, and their bytes.
    :param files: files that were removed from the table's storage, and their bytes.
    :param kept: why all of it was kept; empty if it was not.
    :param is_error: whether it was kept because of an error that somebody has to see to.
    """

    key: str | None
    folder: str
    generation: int
    state: State | None
    objects: int = 0
    object_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    kept: str = ""
    is_error: bool = False


class Removal:
    """Removing what a sweep may remove of a store and of its tables.

    :param dry_run: find everything, and change nothing.
    """

    def __init__(self, store: CheckpointStore, *, dry_run: bool) -> None:
        self._store = store
        self.dry_run = dry_run
        self._listings = Listings()

    def records_of(self, checkpoint: Checkpoint, before: datetime) -> dict[str, int] | None:
        """The records of a generation that there are now, and their bytes; None if any object of it is younger than it may be."""
        listed = list(self._store.listed(checkpoint.paths.root))
        if any(record.modified >= before for record in listed if record.name != checkpoint.paths.compact):
            return None
        return {record.name: record.bytes for record in listed if (place := place_of(record.name)) is not None and not place.stays}

    def orphans(self, write: StagedWrite, table: Table, landed: SealedWrite | None) -> list[StagedFile]:
        """Files of a write that no snapshot refers to; see ``Table.orphans``."""
        return table.orphans(write, landed, self._listings.of(table, write.header.table))

    def remove_files(self, table: Table, checkpoint: Checkpoint, files: list[StagedFile]) -> None:
        """Remove files from the table's storage."""
        if files:
            table.remove(checkpoint.header.table, files)

    def removed(self, checkpoint: Checkpoint, state: State, records: dict[str, int], files: list[StagedFile]) -> SweptGeneration:
        """Remove the records of a generation, and report that and the files that were removed from its table.

        :param records: names and bytes.
        """
        if not self.dry_run:
            for lot in in_order_of_removal(records):
                self._store.remove(lot)
        return SweptGeneration(
            checkpoint.key.value,
            checkpoint.paths.root.rstrip("/"),
            checkpoint.header.generation,
            state,
            objects=len(records),
            object_bytes=sum(records.values()),
            files=len(files),
            file_bytes=sum(file.bytes for file in files),
        )


def kept(checkpoint: Checkpoint, state: State, why: str) -> SweptGeneration:
    """The report of a generation that is kept."""
    return SweptGeneration(checkpoint.key.value, checkpoint.paths.root.rstrip("/"), checkpoint.header.generation, state, kept=why)
