"""What a split is cut into while it is staged: how large the pieces are, where the next one begins, and whose files it may name.

See ``checkpoint`` for the protocol, and ``write.work`` for who follows it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Staged
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, InputChangedError, RowCountError
from airflow_ckpt_provider.tables.ownership import OwnershipCheck, reading_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Piece, RejectedFile, Split
    from airflow_ckpt_provider.sources.rejected.file import RejectedRows
    from airflow_ckpt_provider.tables.writer import Writer, Written
    from airflow_ckpt_provider.transforms.steps import Step
    from airflow_ckpt_provider.write.rejecting import Rejecting


#: Rows that a function is given at most, and seconds that a batch is to take it.
_MOST_ROWS, _BATCH_S = 65_536, 1.0


@dataclass(frozen=True)
class SaveEvery:
    """When a piece is due: after so many rows of the input, or so many seconds, whichever comes first.

    :param rows: None for any number.
    :param seconds: None for any time.
    :param buckets: whether the rows of buckets are sorted so that there can be pieces of them, which costs each row something.
    """

    rows: int | None = None
    seconds: float | None = 30.0
    buckets: bool = False

    def is_due(self, rows: int, seconds: float) -> bool:
        """Whether a piece ends here.

        :param rows: of the input, since it began.
        :param seconds: since it began.
        """
        return (self.rows is not None and rows >= self.rows) or (self.seconds is not None and seconds >= self.seconds)


def require_owned_pieces(pieces: Iterable[Piece], writer: Writer, checkpoint: Checkpoint) -> None:
    """Refuse pieces that name other files than their writers have written for just these splits: they would land, or be removed.

    Two pieces that name one file are refused too: its rows would land twice (I2, I15).

    :param pieces: of a split all that are known.
    :raises CorruptObjectError: naming a file.
    """
    # Asked of the store each time: an attempt that has left a piece may have begun a moment ago.
    header, seen = checkpoint.header, set[str]()
    ownership = OwnershipCheck(writer.folders, checkpoint.owned_names(), header)
    for piece in pieces:
        with reading_records(header):
            paths = [file.path for file in writer.named_in(piece)]
        ownership.require(piece, paths)
        for path in paths:
            if path in seen:
                raise CorruptObjectError(
                    f"The checkpoint store names the same file twice in the pieces of the split {piece.split} of the key "
                    f"{header.key!r}, {path!r}: its rows would land twice in {header.table.identifier}. The store was altered; "
                    f"nothing was changed. Redo the write: {how_to_restart(header)}."
                )
            seen.add(path)


class Input:
    """What comes out of the input of a split, from a row on.

    :param row: the row of the input behind the last one that is done.
    :param ended: whether there is no more.
    :param rejecting: told of the rows of the input.
    :param one_each: whether each row of the input that is not rejected has to become one.
    :param may_end: whether a piece may end before a row of the input.
    """

    def __init__(
        self,
        steps: Iterator[Step],
        row: int,
        rejecting: Rejecting,
        *,
        one_each: bool,
        may_end: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._steps = steps
        self._rejecting = rejecting
        self._one_each = one_each
        self._may_end = may_end
        self.row = row
        self.ended = False

    def kept_by(self, writer: str) -> RejectedRows:
        """What keeps the rows that are rejected from now on; see ``Rejecting.kept_by``."""
        return self._rejecting.kept_by(writer)

    def until(self, save: SaveEvery, rejected: RejectedRows) -> Iterator[pa.RecordBatch]:
        """What comes out before the next piece is due.

        :param rejected: keeps the rows of the input of which nothing comes out because the transform failed at them.
        :raises RowCountError: if some rows have neither become one nor been rejected (I2).
        """
        begin, start, made, kept = self.row, time.monotonic(), 0, 0
        last = start
        for batch, done, failed in self._steps:
            if batch is not None:
                made += batch.num_rows
                yield batch
            if failed is not None:
                rejected.add(failed)
                kept += failed.rows.num_rows
            self._rejecting.done(done, failed)
            self.row += done
            now = time.monotonic()
            # Before it is too late: the next step takes about as long as this one did.
            if done and save.is_due(self.row - begin, 2 * now - start - last) and self._may_end(self.row):
                break
            last = now
        else:
            self.ended = True
        if self._one_each and made + kept != self.row - begin:
            raise RowCountError(
                f"Of {self.row - begin:,} rows of the input, {made:,} came out of the transform and {kept:,} were rejected (I2)."
            )


class WholeSplit(NamedTuple):
    """What a split became, and the record that is to say so.

    :param of_pieces: rejected rows that are named by its pieces too.
    """

    written: Written
    record: Staged
    of_pieces: tuple[RejectedFile, ...] = ()


def staged_record(
    split_id: str,
    author: str,
    written: Written,
    missing: Iterable[str] = (),
    computed_by: tuple[str, ...] = (),
    input_rows: int | None = None,
    rejected: tuple[RejectedFile, ...] = (),
) -> Staged:
    """The record of what a split became."""
    return Staged(
        split=split_id,
        writer=author,
        published_at=now(),
        rows=written.rows,
        bytes=written.bytes,
        files=written.files,
        manifest=written.manifest,
        replaces=written.replaces,
        counts=dict(written.counts),
        intermediate=None if written.intermediate is None else written.intermediate.to_json(),
        missing=tuple(sorted(missing)),
        computed_by=computed_by,
        input_rows=input_rows,
        rejected=rejected,
    )


def paced(batches: Iterable[pa.RecordBatch], save: SaveEvery, first_rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows, in batches that take a function about a second each, or just as many as make a piece.

    A piece ends with a batch: a function that takes a second for a row is not given thousands of them at a time.

    :param first_rows: rows of the first batch.
    """
    rows = first_rows if save.rows is None else save.rows
    for batch in batches:
        begin = 0
        while True:
            part, start = batch.slice(begin, rows), time.monotonic()
            yield part
            spent, begin = time.monotonic() - start, begin + part.num_rows
            if save.rows is None and spent > 2 * _BATCH_S:
                rows = max(1, rows // 2)
            elif save.rows is None and spent < _BATCH_S / 2 and part.num_rows == rows:
                rows = min(2 * rows, _MOST_ROWS)
            if begin >= batch.num_rows:
                break


def behind(batches: Iterable[pa.RecordBatch], row: int, split: Split) -> Iterator[pa.RecordBatch]:
    """The rows from a row on.

    :raises InputChangedError: if there are not that many (I6).
    """
    for batch in batches:
        if not row:
            yield batch
        elif row < batch.num_rows:
            yield batch.slice(row)
            row = 0
        else:
            row -= batch.num_rows
    if row:
        raise InputChangedError(
            f"The input of the split {split.id} has {row:,} rows less than an earlier attempt has read of it. It changed since "
            "it was planned; write what it is now under another idempotence key."
        )
