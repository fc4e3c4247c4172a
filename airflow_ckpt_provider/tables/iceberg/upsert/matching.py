"""Which rows of some files of the table have the key of a source row: keys are read, and searched among those of the source.

Rows are numbered through all files of a split, one file after the other. Very small files are searched together: what is done once
for a thousand rows takes as long for ten.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, NamedTuple, Self

from airflow_ckpt_provider.tables.iceberg.upsert.bounds import Bounds, meeting
from airflow_ckpt_provider.tables.iceberg.upsert.key_batches import kept as kept_keys
from airflow_ckpt_provider.tables.iceberg.upsert.key_batches import key_batches
from airflow_ckpt_provider.tables.iceberg.upsert.matched_rows import KEPT as KEPT_ROWS
from airflow_ckpt_provider.tables.keys.values import canonical, hashes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """A number for each row of some files of the table, 0 where there is none; in a local file, because there are many rows."""

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

    def count(self, start: int, count: int) -> int:
        """How many of these rows have a number."""
        import numpy as np

        stop = start + count
        return sum(int(np.count_nonzero(self.get(at, min(_ROWS, stop - at)))) for at in range(start, stop, _ROWS))


class _Lot(NamedTuple):
    """Files whose keys are searched together, by their numbers, and the sources among whose keys they are."""

    files: range
    sources: Sequence[SourceFile]


class Matcher:
    """Matches the files of a split with the source.

    :param files: for each, what reads its key columns from its start.
    :param sources: all staged source files.
    """

    def __init__(
        self,
        io: FileIO,
        files: Sequence[Callable[[], Iterable[pa.RecordBatch]]],
        sources: Sequence[SourceFile],
        keys: Sequence[KeyColumn],
    ) -> None:
        self._io = io
        self._files = files
        self._sources = sources
        self._keys = keys
        #: Live rows of each file, once its keys were read.
        self.rows = [0] * len(files)

    def match(self, sidecar: SidecarWriter | None, matches: Matches | None, gathered: MatchedRows | None) -> int:
        """Find all rows in common.

        :param sidecar: takes the addresses of the source rows.
        :param matches: takes, for each row of the files, the number of its row in ``gathered``, counted from 1.
        :param gathered: takes the source rows.
        :returns: how many rows of the files have the key of a source row.
        """
        in_common = 0
        for lot in self._lots():
            start = sum(self.rows[: lot.files.start])
            for key_batch in key_batches(lot.sources):
                keys = kept_keys(self._io, lot.sources, self._keys, key_batch)
                hit, rows, live = self._search(lot, keys, key_batch, start, matches)
                in_common += rows
                if rows:
                    if matches is not None and gathered is not None:
                        _number(hit, gathered.rows, start, live, matches)
                    self._collect(lot.sources, keys, hit, sidecar, gathered)
        if gathered is not None:
            gathered.finish()
        return in_common

    def _lots(self) -> list[_Lot]:
        """Leave out the sources that cannot have a key of the files, if that saves passes over keys.

        Where the keys of each file are near sources of its own, files are searched one by one: each pass over keys reads one then.
        Otherwise all sources are searched, whatever the files, so that what is loaded for one split serves the next.
        """
        every = range(len(self._files))
        passes = len(key_batches(self._sources))
        if passes <= 1:
            return [_Lot(every, self._sources)]
        near = [self._near(number) for number in every]
        alone = [_Lot(range(number, number + 1), self._where(near[number])) for number in every]
        together = _Lot(every, self._where([any(of_source) for of_source in zip(*near, strict=True)]))
        fewer = len(key_batches(together.sources))
        one_by_one = sum(len(key_batches(lot.sources)) for lot in alone) <= fewer
        if fewer == passes and (not one_by_one or len(alone) == 1):
            return [_Lot(every, self._sources)]
        return alone if one_by_one else [together]

    def _near(self, number: int) -> list[bool]:
        """Which of the sources can have a key of a file."""
        import pyarrow as pa

        bounds = Bounds(self._keys)
        for chunk in _chunks(self._read(range(number, number + 1))):
            table = pa.Table.from_batches(chunk)
            bounds.add([table.column(key.name) for key in self._keys])
        held = bounds.to_json()
        if not held:
            return [False] * len(self._sources)
        return meeting(self._keys, held, [source.bounds for source in self._sources])

    def _where(self, near: Iterable[bool]) -> list[SourceFile]:
        return [source for source, is_near in zip(self._sources, near, strict=True) if is_near]

    def _read(self, files: range) -> Iterator[pa.RecordBatch]:
        """Keys of these files, whose rows are counted."""
        for number in files:
            rows = 0
            for batch in self._files[number]():
                rows += batch.num_rows
                yield batch
            self.rows[number] = rows

    def _search(
        self, lot: _Lot, keys: Keys, key_batch: KeyBatch, start: int, matches: Matches | None
    ) -> tuple[Positions, int, int]:
        """Positions of the keys that the files have; how many of their rows have one, and how many there are.

        A row's number is minus the position of its key, counted from 1, until ``_number`` gives the final one.

        :param start: number of the first row.
        """
        import numpy as np
        import pyarrow as pa

        hit = np.zeros(len(keys.known), dtype=np.bool_)
        found_rows = live = 0
        buckets = lot.sources[0].buckets
        for chunk in _chunks(self._read(lot.files)):
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
                    numbers = matches.get(start + live, table.num_rows)
                    numbers[at] = -positions[at] - 1
                    matches.put(start + live, numbers)
            live += table.num_rows
        return np.flatnonzero(hit), found_rows, live

    def _collect(
        self,
        searched: Sequence[SourceFile],
        keys: Keys,
        hit: Positions,
        sidecar: SidecarWriter | None,
        gathered: MatchedRows | None,
    ) -> None:
        import numpy as np

        sources, rows = keys.source[hit], keys.row[hit]
        kept = KEPT_ROWS.within(tuple(source.path for source in searched))
        for number in np.unique(sources).tolist():
            of_source = rows[np.searchsorted(sources, number) : np.searchsorted(sources, number, side="right")]
            path = searched[number].path
            if sidecar is not None:
                sidecar.add(path, of_source)
            if gathered is not None:
                kept.fetch(self._io, path, of_source, gathered)


def _number(hit: Positions, before: int, first: int, live: int, matches: Matches) -> None:
    """Number the rows of this batch of keys as their source rows will be, gathered after ``before`` others."""
    import numpy as np

    for start in range(first, first + live, _ROWS):
        numbers = matches.get(start, min(_ROWS, first + live - start))
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
