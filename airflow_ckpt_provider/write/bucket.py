"""One bucket of a DataFrame that is published in pieces: as any split, but its rows are computed anew and come once only.

Pieces count for the rows of another attempt only where these are the same; see ``write.ordered``. If they are not, the bucket is
staged as one that has no pieces, of the rows that there are now.

Decision: that is no error. What arrives between two attempts lands if its bucket was not staged, and a bucket of which a piece was
saved is not staged. The pieces stay in the store, because nothing is changed that was put; this attempt saves none of the bucket.

If another task has published the piece of a number first, the task goes on behind what that one has done. It cannot if that is of
other rows, or so far back that it would have to read its own a second time. Then it goes on alone, and saves no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.write.pieces import SaveEvery, paced
from airflow_ckpt_provider.write.work import SplitInPieces

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import Piece, RejectedFile, Split, Staged
    from airflow_ckpt_provider.tables.writer import Written
    from airflow_ckpt_provider.write.ordered import OrderedRows
    from airflow_ckpt_provider.write.pieces import Input, WholeSplit
    from airflow_ckpt_provider.write.work import SplitWork


class BucketInPieces(SplitInPieces):
    """One bucket, on its way.

    :param rows: of the bucket; the work has a transform.
    """

    def __init__(self, work: SplitWork, split: Split, author: str, rows: OrderedRows) -> None:
        super().__init__(work, split, author)
        self._ordered = rows
        #: Pieces in the store that are no part of what this task publishes.
        self._unused: list[Piece] = []
        #: Pieces of this task that are not in the store: it publishes none any more.
        self._unpublished: list[Piece] = []
        self._alone = False

    @property
    def has_changed(self) -> bool:
        """Whether pieces that earlier attempts have left do not count, because the rows are others."""
        return bool(self._unused) and not self._unpublished

    def whole(self) -> WholeSplit | None:
        if self._pieces and not self._ordered.skip(0, self._pieces[-1]):
            self._unused, self._pieces, self._alone = self._pieces, [], True
        return super().whole()

    def remove(self) -> None:
        self._pieces += self._unused
        super().remove()

    @property
    def _save(self) -> SaveEvery:
        return SaveEvery(seconds=None) if self._alone else super()._save

    def _input(self, begin: int) -> Input:
        work, transform = self._work, self._work.transform
        rows = self._ordered.read(begin)
        # As large as without pieces, where none is saved any more, but for the first ones.
        batches = rows if transform is None else paced(rows, self._save, transform.first_rows)
        return work.input_of(self._split.id, work.steps(batches, begin), begin, may_end=self._ordered.is_between_ids)

    def _piece(self, record: Staged, number: int, begin: int, rows: Input) -> Piece:
        piece = super()._piece(record, number, begin, rows)
        return msgspec.structs.replace(piece, ids=self._ordered.digest(piece.end))

    def _rejected_by_pieces(self) -> tuple[RejectedFile, ...]:
        return tuple(file for piece in self._pieces if piece not in self._unpublished for file in piece.rejected)

    def _published(self, piece: Piece, written: Written) -> bool:
        if not self._alone:
            return super()._published(piece, written)
        self._pieces.append(piece)
        self._unpublished.append(piece)
        return not self._is_staged()

    def _join(self, piece: Piece, written: Written) -> None:
        known = self._pieces[: piece.number]
        # What was read ahead is given out again, if it is not left out.
        self._rows = None
        if self._ordered.skip(piece.end, self._pieces[-1]):
            super()._join(piece, written)
            return
        self._unused, self._alone = self._pieces[piece.number :], True
        self._pieces, self._unpublished = [*known, piece], [piece]
