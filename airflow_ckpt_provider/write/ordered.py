"""The rows of a bucket in the order of their ids: read once, and told apart from those that another attempt was given.

The number of a row says nothing of a DataFrame, whose rows every attempt computes and sorts anew. So a piece of a bucket ends
between two ids, and its record keeps a digest of the ids of all rows up to there. Whoever goes on behind the piece leaves out as
many rows, and compares: where the digest is the same, every id is done with all of its rows, or not at all.

Decision: the digest is one of ids, and not of rows. A bucket that is staged is taken for done by its ids too; a sum of floats that
comes out a little different each time is no reason to call a service again for a million rows.
"""

# mypy: disable-error-code="no-any-return"
# (pyarrow has no type hints, so that what it returns is Any)
from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections import deque
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from airflow_ckpt_provider.exceptions import no_room
from airflow_ckpt_provider.tables.keys.values import canonical, equal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Piece
    from airflow_ckpt_provider.exceptions import StageFailedError

#: Batches that are kept once they were given out: what one has become is known before the next but one is read.
_KEPT = 2


class _Given(NamedTuple):
    """A batch that was given out.

    :param begin: number of its first row.
    :param ids: see ``comparable``.
    """

    begin: int
    batch: pa.RecordBatch
    ids: list[pa.Array]

    @property
    def end(self) -> int:
        """The number behind that of its last row."""
        return self.begin + self.batch.num_rows


class OrderedRows:
    """The rows of a bucket, on their way through a task.

    :param batches: in which the rows of one id follow each other; they are read once.
    :param id_columns: there is at least one.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], id_columns: Sequence[str]) -> None:
        self._batches = iter(batches)
        self._id_columns = list(id_columns)
        self._next: pa.RecordBatch | None = None
        #: Number of the first row that was not given out.
        self._row = 0
        self._given: deque[_Given] = deque()
        #: Of the rows before the batches that are kept.
        self._digest = IdDigest(len(self._id_columns))
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(self, row: int) -> Iterator[pa.RecordBatch]:
        """The rows from a row on, which is the next one, or in one of the last two batches.

        :param row: counted from 0.
        """
        yield from self._kept(row)
        while (batch := self._take()) is not None:
            yield batch

    def is_between_ids(self, row: int) -> bool:
        """Whether the row before this one is known to be the last of its id."""
        before = next((given for given in self._given if given.begin < row <= given.end), None)
        if before is None:
            return False
        if row < before.end:
            return not _is_same(before.ids, row - before.begin - 1, before.ids, row - before.begin)
        behind = next((given.ids for given in self._given if given.begin == row), None)
        if behind is None:
            batch = self._peek()
            behind = None if batch is None else self._ids(batch)
        return behind is None or not _is_same(before.ids, len(before.ids[0]) - 1, behind, 0)

    def digest(self, row: int) -> str:
        """SHA-256 of the ids of all rows before this one, in their order."""
        return self._digest_until(row).hexdigest()

    def skip(self, row: int, piece: Piece) -> bool:
        """Leave out the rows of which a piece, and those before it, are made. If the rows here are others, nothing is left out.

        A piece that ends before rows that are done here counts as long as the rows behind it are kept: they can be read again.

        :param row: up to which the rows are done here.
        :returns: whether the piece counts for these rows.
        """
        if piece.end < row:
            is_kept = bool(self._given) and self._given[0].begin < piece.end
            return is_kept and self.digest(piece.end) == piece.ids and self._goes_on_like(piece)
        before, done = self._digest_until(row), row
        passed = self._opened.enter_context(contextlib.closing(_PassedRows()))
        for batch in self.read(row) if row < piece.end else ():
            passed.add(batch)
            done += batch.num_rows
            if done >= piece.end:
                break
        if done >= piece.end and self.digest(piece.end) == piece.ids and self._goes_on_like(piece):
            passed.close()
            return True
        later = [self._next] if self._next is not None else []
        # What was given out and is not done is among the rows that have passed.
        undone = list(self._kept(done))
        self._batches = chain(passed.taken(), undone, later, self._batches)
        self._next = None
        self._row, self._digest = row, before
        self._given.clear()
        return False

    def _kept(self, row: int) -> Iterator[pa.RecordBatch]:
        """Of the rows from a row on, those that were given out."""
        for given in tuple(self._given):
            if row < given.end:
                yield given.batch.slice(max(0, row - given.begin))

    def _goes_on_like(self, piece: Piece) -> bool:
        """Whether there are rows behind a piece only if it was not the last one, and none of its last id."""
        if piece.last:
            return self._row == piece.end and self._peek() is None
        return self.is_between_ids(piece.end)

    def _peek(self) -> pa.RecordBatch | None:
        """The batch that is given out next."""
        if self._next is None:
            self._next = next((batch for batch in self._batches if batch.num_rows), None)
        return self._next

    def _take(self) -> pa.RecordBatch | None:
        batch, self._next = self._peek(), None
        if batch is None:
            return None
        if len(self._given) == _KEPT:
            self._digest.add(self._given.popleft().ids)
        self._given.append(_Given(self._row, batch, self._ids(batch)))
        self._row += batch.num_rows
        return batch

    def _ids(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [comparable(batch.column(name)) for name in self._id_columns]

    def _digest_until(self, row: int) -> IdDigest:
        digest = self._digest.copy()
        for given in self._given:
            if given.begin < row:
                digest.add([column.slice(0, row - given.begin) for column in given.ids])
        return digest


class IdDigest:
    """A digest of ids in their order, whatever batches they come in.

    :param columns: of an id.
    """

    def __init__(self, columns: int) -> None:
        # Of each column, which values are null or how long they are, and the values.
        self._hashes = [(hashlib.sha256(), hashlib.sha256()) for _ in range(columns)]

    def add(self, ids: Sequence[pa.Array]) -> None:
        """Put ids behind those that there are.

        :param ids: their columns; see ``comparable``.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        for (sizes, values), column in zip(self._hashes, ids, strict=True):
            if not len(column):
                continue
            nulls = column.is_null().to_numpy(zero_copy_only=False)
            if pa.types.is_large_binary(column.type):
                filled = pc.fill_null(column, b"")
                lengths = pc.binary_length(filled).to_numpy(zero_copy_only=False)
                sizes.update(np.where(nulls, -1, lengths).astype(np.int64).tobytes())
                values.update(b"".join(filled.to_pylist()))
            else:
                filled = pc.fill_null(column, 0)
                sizes.update(nulls.astype(np.uint8).tobytes())
                values.update(filled.to_numpy(zero_copy_only=False).astype(np.int64).tobytes())

    def copy(self) -> IdDigest:
        """Another one of the same ids."""
        other = IdDigest(0)
        other._hashes = [(sizes.copy(), values.copy()) for sizes, values in self._hashes]
        return other

    def hexdigest(self) -> str:
        """SHA-256 of them."""
        return hashlib.sha256(b"".join(part.digest() for column in self._hashes for part in column)).hexdigest()


def comparable(column: pa.Array) -> pa.Array:
    """An id column as whole numbers or bytes, which are the same for the same ids also where a column has become wider."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_floating(kind):
        return canonical(pc.cast(column, pa.float64()))
    if pa.types.is_decimal(kind):
        return pc.cast(pc.cast(pc.cast(column, pa.decimal128(38, kind.scale)), pa.string()), pa.large_binary())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return pc.cast(column, pa.int64())
    if pa.types.is_date32(kind):
        return pc.cast(column.view(pa.int32()), pa.int64())
    if pa.types.is_timestamp(kind):
        return column.view(pa.int64())
    return pc.cast(column, pa.large_binary())


def _is_same(left: Sequence[pa.Array], row: int, right: Sequence[pa.Array], other: int) -> bool:
    return bool(equal([column.slice(row, 1) for column in left], [column.slice(other, 1) for column in right])[0])


class _PassedRows:
    """Rows that are left out, on the local disk for as long as they may be needed after all (I11)."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep rows.

        :raises StageFailedError: if they cannot be written.
        """
        import pyarrow as pa

        try:
            if self._writer is None:
                self._file = tempfile.TemporaryFile(prefix="rows-")  # noqa: SIM115 - closed by close
                self._writer = pa.ipc.new_stream(self._file, batch.schema)
            self._writer.write_batch(batch)
        except OSError as error:
            raise _no_room(error) from error

    def taken(self) -> Iterator[pa.RecordBatch]:
        """All of them, which are gone then."""
        import pyarrow as pa

        if self._file is None:
            return
        try:
            self._writer.close()
            self._file.seek(0)
        except OSError as error:
            raise _no_room(error) from error
        yield from pa.ipc.open_stream(self._file)
        self.close()

    def close(self) -> None:
        """Let go of all of them."""
        if self._file is not None:
            # What is written last is not needed any more.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def _no_room(error: OSError) -> StageFailedError:
    return no_room(
        "Until it is known that they are the same, rows of a bucket that earlier attempts have done are kept",
        error,
        kept="What is saved of the bucket stays",
        instead="use more buckets",
    )
