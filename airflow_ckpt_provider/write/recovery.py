"""What earlier attempts have staged: which splits, which pieces of others, and whether all files of these are there still.

Each is checked once in an attempt, because a check of very many files takes long. What is lost later the commit finds out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.pieces import pieces_of
from airflow_ckpt_provider.write.pieces import require_owned_pieces
from airflow_ckpt_provider.write.staged_files import CheckCost

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from airflow_ckpt_provider.checkpoint.documents import Piece, Seal, StagedFile
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.write.looks import TableOfRound


class TakenUp(NamedTuple):
    """What an attempt did not have to do again: splits of the seal that earlier ones have staged.

    :param bytes: of their files.
    :param seconds: from the start of each earlier attempt to the last of these splits that it has staged, all together, by the
        clocks of the machines that have recorded it.
    """

    splits: int
    bytes: int
    seconds: float


class Recovery:
    """What one attempt takes up of the attempts before it.

    :param write: the write.
    :param table: where its files are.
    """

    def __init__(self, write: StagedWrite, table: TableOfRound) -> None:
        self._write = write
        self._table = table
        #: Ids of the splits that earlier attempts have staged.
        self.split_ids = write.staged_ids()
        #: What they have done of splits that are not staged, by ``input_id``; None before it was looked at.
        self.pieces: dict[str, list[Piece]] | None = None
        #: What the checks of files cost.
        self.check_costs: list[CheckCost] = []
        #: Whether all files of the newest seal are there; None if that was not looked at.
        self.is_whole: bool | None = None
        self._looked_at_splits = False
        self._sealed: SealedWrite | None = None

    @property
    def saved(self) -> tuple[int, int]:
        """Splits that are not staged and of which earlier attempts have done something: how many, and rows of the input done."""
        pieces = [of_split for of_split in (self.pieces or {}).values() if of_split]
        return len(pieces), sum(of_split[-1].end for of_split in pieces)

    def as_sealed(self, seal: Seal) -> SealedWrite:
        """The write as a seal has it, read once."""
        if self._sealed is None or self._sealed.seal != seal:
            self._sealed = self._write.sealed_as(seal)
        return self._sealed

    def taken_up(self, seal: Seal) -> TakenUp:
        """What of a seal earlier attempts have staged."""
        write = self.as_sealed(seal)
        records = write.records([split.id for split in write.plan.splits if split.id in self.split_ids])
        last: dict[str, datetime] = {}
        for record in records:
            attempt = record.writer.partition(".")[0]
            last[attempt] = max(record.published_at, last.get(attempt, record.published_at))
        begun = {attempt.id: attempt.started_at for attempt in write.checkpoint.attempts()} if records else {}
        seconds = sum(max(0.0, (moment - begun[attempt]).total_seconds()) for attempt, moment in last.items() if attempt in begun)
        return TakenUp(len(records), sum(record.bytes for record in records), seconds)

    def has_all_of(self, seal: Seal) -> bool:
        """Whether all files are there that a commit of this seal needs; looked at once."""
        if self.is_whole is None:
            write = self.as_sealed(seal)
            self.is_whole = not self._lost(lambda: self._table.storage.needed_to_commit(write))
        return self.is_whole

    def splits_with_lost_pieces(self) -> set[str]:
        """Read, once, what earlier attempts have done of splits that are not staged.

        :returns: ids of the splits of which a piece has lost a file.
        """
        if self.pieces is not None:
            return set()
        checkpoint = self._write.checkpoint
        unfinished = [split for split in self._write.source_splits if split.id not in self.split_ids]
        self.pieces = pieces_of(checkpoint.store, checkpoint.paths, unfinished)
        records = [piece for pieces in self.pieces.values() for piece in pieces]
        if not records:
            return set()
        writer = self._table.look(lambda state: state.mode(checkpoint.header).writer(self._write))
        require_owned_pieces(records, writer, checkpoint)
        files = {(record.split, file) for record in records for file in self._table.storage.named_in(record)}
        lost = self._lost(lambda: [file for _, file in files])
        splits = {split for split, file in files if file in lost}
        # Another attempt that has staged a split has removed its pieces.
        return splits - self._write.staged_ids() if splits else splits

    def lost_splits(self, seal: Seal | None) -> set[str] | None:
        """Look, once, at what earlier attempts have staged.

        :param seal: the newest one.
        :returns: ids of the splits that have lost a file; None if there is nothing to stage and to seal again.
        """
        if self._looked_at_splits:
            return None
        self._looked_at_splits = True
        write = self._write
        # The splits that the source reads are not among those of the later rounds of a write that computes from them.
        wanted = {split.id for plan in (write.plan, write.source_plan) for split in plan.splits}
        records = write.records(sorted(wanted & self.split_ids))
        files = [(record.split, file) for record in records for file in self._table.storage.named_in(record)]
        lost = self._lost(lambda: [file for _, file in files])
        splits = {split for split, file in files if file in lost}
        # What lists the files of a seal may be lost though no split lost one: it is sealed again.
        is_relisted = self.is_whole is False and seal is not None and seal.round == len(write.plans)
        return splits if splits or is_relisted else None

    def _lost(self, named: Callable[[], list[StagedFile]]) -> set[StagedFile]:
        """Those of the staged files that are lost or damaged."""
        start = time.monotonic()
        files = named()
        lost = set(self._table.storage.lost(files)) if files else set()
        self.check_costs.append(CheckCost(len(files), time.monotonic() - start))
        return lost
