"""The rows of a file of the table with the source's in place of those that differ from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.tables.iceberg.upsert.compare import differ, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from airflow_ckpt_provider.tables.iceberg.upsert.matched_rows import MatchedRows
    from airflow_ckpt_provider.tables.iceberg.upsert.matching import Matches
    from airflow_ckpt_provider.tables.keys.index import Positions

#: Bytes of source rows that are put into one batch of the rewritten file at a time.
_BYTES = 32 << 20


class _Piece(NamedTuple):
    rows: pa.RecordBatch
    matched: int
    changed: int


class Merge:
    """Merges one file of the table.

    :param batches: reads all columns of the file from its start.
    :param matches: for each row of the files of the split, the number of its source row in ``gathered``, counted from 1.
    :param start: number there of the first row of the file.
    :param schema: the table's columns under its own names.
    """

    def __init__(
        self,
        batches: Callable[[], Iterable[pa.RecordBatch]],
        matches: Matches,
        start: int,
        gathered: MatchedRows,
        schema: pa.Schema,
    ) -> None:
        self._batches = batches
        self._matches = matches
        self._start = start
        self._gathered = gathered
        self._schema = schema
        self.counts: dict[str, int] = {}

    def changes(self) -> bool:
        """Whether any row differs; reads the file as far as the first that does."""
        return any(piece.changed for piece in self._pieces())

    def rows(self) -> Iterator[pa.RecordBatch]:
        """All rows of the file, and in the end ``counts``."""
        matched = changed = 0
        for piece in self._pieces():
            matched += piece.matched
            changed += piece.changed
            yield piece.rows
        self.counts = {"updated": changed, "unchanged": matched - changed}

    def _pieces(self) -> Iterator[_Piece]:
        import numpy as np
        import pyarrow as pa

        # Source rows may be much wider than those of the file.
        most = max(1, _BYTES * max(self._gathered.rows, 1) // max(self._gathered.nbytes, 1))
        start = self._start
        for batch in self._batches():
            rows = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
            numbers = self._matches.get(start, rows.num_rows)
            start += rows.num_rows
            at = np.flatnonzero(numbers)
            done = 0
            while len(at) > most:
                stop = int(at[most])
                yield self._piece(rows.slice(done, stop - done), numbers[done:stop])
                done, at = stop, at[most:]
            yield self._piece(rows.slice(done), numbers[done:])

    def _piece(self, rows: pa.RecordBatch, numbers: Positions) -> _Piece:
        import numpy as np
        import pyarrow as pa

        at = np.flatnonzero(numbers)
        if not len(at):
            return _Piece(rows, 0, 0)
        new = self._gathered.take(numbers[at] - 1)
        changed = np.flatnonzero(differ(rows.take(pa.array(at)), new))
        if len(changed):
            rows = replaced(rows, at[changed], new.take(pa.array(changed)))
        return _Piece(rows, len(at), len(changed))
