"""The source rows that one file of the table needs, fetched in one pass over the staged source files and then found by number.

What does not fit in memory goes to a local temporary file that is mapped, not read: a file of the table may match far more source
rows than a worker can hold.
"""

from __future__ import annotations

import bisect
import os
import tempfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Self

from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFileReader

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa
    from pyiceberg.io import FileIO

    from airflow_ckpt_provider.tables.keys.index import Positions

#: Bytes of gathered rows in memory, and of row groups that a process keeps between splits.
HELD_BYTES, KEPT_BYTES = 16 << 20, 48 << 20


class MatchedRows:
    """Rows, numbered in the order in which they are added.

    :param schema: of the rows.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        #: Number of the first row of each piece; a piece is a batch in memory, or the path of a file with one.
        self._starts: list[int] = []
        self._pieces: list[pa.RecordBatch | str] = []
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._held_rows = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.rows = self.nbytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pieces, self._held = [], []
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        import pyarrow as pa

        for batch in rows.to_batches():
            self._held.append(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
            self._held_bytes += batch.nbytes
            self._held_rows += batch.num_rows
            self.rows += batch.num_rows
            self.nbytes += batch.nbytes
        if self._held_bytes > HELD_BYTES:
            self._put(spill=True)

    def finish(self) -> None:
        """Nothing more is added."""
        if self._held:
            self._put(spill=False)

    def take(self, numbers: Positions) -> pa.RecordBatch:
        """Rows by number, in the order asked for."""
        import numpy as np
        import pyarrow as pa

        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        taken: list[pa.RecordBatch] = []
        at = 0
        while at < len(ordered):
            piece = bisect.bisect_right(self._starts, int(ordered[at])) - 1
            end = self._starts[piece + 1] if piece + 1 < len(self._starts) else self.rows
            stop = int(np.searchsorted(ordered, end))
            taken.append(self._open(piece).take(pa.array(ordered[at:stop] - self._starts[piece])))
            at = stop
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        rows = range(len(self._schema))
        columns = [pa.concat_arrays([batch.column(number) for batch in taken]).take(pa.array(back)) for number in rows]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _put(self, *, spill: bool) -> None:
        """Make a piece of what is held."""
        import pyarrow as pa

        columns = [pa.concat_arrays([batch.column(number) for batch in self._held]) for number in range(len(self._schema))]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        piece: pa.RecordBatch | str = batch
        if spill:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="upsert-")
            piece = os.path.join(self._folder.name, f"{len(self._pieces)}.arrow")
            with pa.ipc.new_file(piece, self._schema) as writer:
                writer.write_batch(batch)
        self._starts.append(self.rows - self._held_rows)
        self._pieces.append(piece)
        self._held, self._held_bytes, self._held_rows = [], 0, 0

    def _open(self, number: int) -> pa.RecordBatch:
        """A piece; what is mapped of its file is given back with the batch."""
        import pyarrow as pa

        piece = self._pieces[number]
        return pa.ipc.open_file(pa.memory_map(piece)).get_batch(0) if isinstance(piece, str) else piece


class KeptRows:
    """Spans of staged source files that a process has read, kept for its next splits as long as they fit in ``KEPT_BYTES``."""

    def __init__(self) -> None:
        self._scope: object = None
        self._kept: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._size = 0

    def within(self, scope: object) -> KeptRows:
        """Forget what was kept for anything else than this."""
        if scope != self._scope:
            self.clear()
            self._scope = scope
        return self

    def fetch(self, io: FileIO, path: str, rows: Positions, into: MatchedRows) -> None:
        """Add rows of one staged source file, by sorted numbers."""
        import numpy as np
        import pyarrow as pa

        with SourceFileReader(io, path) as reader:
            for span in reader.spans():
                start, stop = np.searchsorted(rows, [span.start, span.start + span.rows])
                if start == stop:
                    continue
                table = self._kept.get((path, span.first))
                if table is None:
                    table = reader.read(span)
                    self._keep((path, span.first), table)
                into.add(table.take(pa.array(rows[start:stop] - span.start)))

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
        self._size = 0

    def _keep(self, name: tuple[str, int], table: pa.Table) -> None:
        # What is read first stays: a pass over more than fits would push out just what the next pass needs first.
        if self._size + table.nbytes <= KEPT_BYTES:
            self._kept[name] = table
            self._size += table.nbytes


#: What this process keeps.
KEPT = KeptRows()
