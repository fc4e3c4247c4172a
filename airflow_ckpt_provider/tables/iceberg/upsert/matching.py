"""Which rows of one file of the table have the key of a source row: its keys are read, and searched among those of the source."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, NamedTuple, Self

from airflow_ckpt_provider.tables.iceberg.upsert.bounds import Bounds, meeting
from airflow_ckpt_provider.tables.iceberg.upsert.key_batches import kept as kept_keys
from airflow_ckpt_provider.tables.iceberg.upsert.key_batches import key_batches
from airflow_ckpt_provider.tables.iceberg.upsert.matched_rows import KEPT as KEPT_ROWS
from airflow_ckpt_provider.tables.keys.values import canonical, hashes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    import pyarrow as pa
    from pyiceberg.io import FileIO

    from airflow_ckpt_provider.tables.iceberg.upsert.keys import KeyColumn
    from airflow_ckpt_provider.tables.iceberg.upsert.matched_rows import MatchedRows
    from airflow_ckpt_provider.tables.iceberg.upsert.sidecar import SidecarWriter
    from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFile
    from airflow_ckpt_provider.tables.keys.index import Positions
    from airflow_ckpt_provider.tables.keys.key_batches import KeyBatch, Keys

#: Rows of a file of the table whose keys are searched at once.
_ROWS = 1 << 20

_ITEM = 8


class Matches:
    """A number for each row of a file of the table, 0 where there is none; in a local file, because there are many rows."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="upsert-")  # noqa: SIM115 - closed by __exit__
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def get(self, start: int, count: int) -> Positions:
        """Numbers of these rows."""
        import numpy as np

        numbers = np.zeros(count, dtype=np.int64)
        if start < self._end:
            self._file.seek(start * _ITEM)
            read = np.frombuffer(self._file.read(count * _ITEM), dtype=np.int64)
            numbers[: len(read)] = read
        return numbers

    def put(self, start: int, numbers: Positions) -> None:
        """Set the numbers of rows from ``start`` on."""
        # What is never written before the end reads as zeros.
        self._file.seek(start * _ITEM)
        self._file.write(numbers.tobytes())
        self._end = max(self._end, start + len(numbers))


class InCommon(NamedTuple):
    """What a file of the table has in common with the source.

    :param rows: rows of the file whose key the source has.
    :param live_rows: all rows of the file.
    """

    rows: int
    live_rows: int


class FileMatcher:
    """Matches one file of the table with the source.

    :param batches: reads the key columns of the file from its start.
    :param sources: all staged source files.
    """

    def __init__(
        self, io: FileIO, batches: Callable[[], Iterable[pa.RecordBatch]], sources: Sequence[SourceFile], keys: Sequence[KeyColumn]
    ) -> None:
        self._io = io
        self._batches = batches
        self._sources = sources
        self._keys = keys

    def match(self, sidecar: SidecarWriter | None, matches: Matches | None, gathered: MatchedRows | None) -> InCommon:
        """Find all rows in common.

        :param sidecar: takes the addresses of the source rows.
        :param matches: takes, for each row of the file, the number of its row in ``gathered``, counted from 1.
        :param gathered: takes the source rows.
        """
        if len(key_batches(self._sources)) > 1:
            self._narrow()
        rows = live = 0
        for key_batch in key_batches(self._sources):
            keys = kept_keys(self._io, self._sources, self._keys, key_batch)
            hit, rows_here, live = self._search(keys, key_batch, matches)
            rows += rows_here
            if rows_here:
                if matches is not None and gathered is not None:
                    _number(hit, gathered.rows, live, matches)
                self._collect(keys, hit, sidecar, gathered)
        if gathered is not None:
            gathered.finish()
        return InCommon(rows, live)

    def _narrow(self) -> None:
        """Leave out the sources that cannot have a key of the file, if that saves a pass over the file.

        Otherwise they are all searched, whatever the file, so that what is loaded for one file serves the next.
        """
        import pyarrow as pa

        bounds = Bounds(self._keys)
        for chunk in _chunks(self._batches()):
            table = pa.Table.from_batches(chunk)
            bounds.add([table.column(key.name) for key in self._keys])
        held = bounds.to_json()
        if not held:
            return
        near = meeting(self._keys, held, [source.bounds for source in self._sources])
        sources = [source for source, is_near in zip(self._sources, near, strict=True) if is_near]
        if len(key_batches(sources)) < len(key_batches(self._sources)):
            self._sources = sources

    def _search(self, keys: Keys, key_batch: KeyBatch, matches: Matches | None) -> tuple[Positions, int, int]:
        """Positions of the keys that the file of the table has; how many of its rows have one, and how many there are.

        A row's number is minus the position of its key, counted from 1, until ``_number`` gives the final one.
        """
        import numpy as np
        import pyarrow as pa

        hit = np.zeros(len(keys.known), dtype=np.bool_)
        found_rows = live = 0
        buckets = self._sources[0].buckets
        for chunk in _chunks(self._batches()):
            table = pa.Table.from_batches(chunk)
            columns = [canonical(table.column(key.name)) for key in self._keys]
            hashed = hashes(columns)
            positions = np.full(table.num_rows, -1, dtype=np.int64)
            searched = np.flatnonzero(key_batch.holds(hashed, buckets))
            if len(searched) == table.num_rows:
                positions = keys.known.find(columns, hashed)
            elif len(searched):
                taken = pa.array(searched)
                positions[searched] = keys.known.find([column.take(taken) for column in columns], hashed[searched])
            at = np.flatnonzero(positions >= 0)
            if len(at):
                found_rows += len(at)
                hit[positions[at]] = True
                if matches is not None:
                    numbers = matches.get(live, table.num_rows)
                    numbers[at] = -positions[at] - 1
                    matches.put(live, numbers)
            live += table.num_rows
        return np.flatnonzero(hit), found_rows, live

    def _collect(self, keys: Keys, hit: Positions, sidecar: SidecarWriter | None, gathered: MatchedRows | None) -> None:
        import numpy as np

        sources, rows = keys.source[hit], keys.row[hit]
        kept = KEPT_ROWS.within(tuple(source.path for source in self._sources))
        for number in np.unique(sources).tolist():
            of_source = rows[np.searchsorted(sources, number) : np.searchsorted(sources, number, side="right")]
            path = self._sources[number].path
            if sidecar is not None:
                sidecar.add(path, of_source)
            if gathered is not None:
                kept.fetch(self._io, path, of_source, gathered)


def _number(hit: Positions, before: int, live: int, matches: Matches) -> None:
    """Number the rows of this batch of keys as their source rows will be, gathered after ``before`` others."""
    import numpy as np

    for start in range(0, live, _ROWS):
        numbers = matches.get(start, min(_ROWS, live - start))
        at = np.flatnonzero(numbers < 0)
        if len(at):
            numbers[at] = before + np.searchsorted(hit, -numbers[at] - 1) + 1
            matches.put(start, numbers)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterable[list[pa.RecordBatch]]:
    """Batches gathered to about a million rows, or fewer large ones."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS or size >= _ROWS * 16:
            yield gathered
            gathered, rows, size = [], 0, 0
    if gathered:
        yield gathered
