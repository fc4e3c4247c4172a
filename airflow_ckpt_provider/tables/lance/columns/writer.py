"""What executors do to add columns: stage the values of a range, and join ranges into the column file of a fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Part, StagedFile, part_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import RowCountError, TableMovedError
from airflow_ckpt_provider.scan.lance_rows import PLACE
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.intermediate import ColumnFile
from airflow_ckpt_provider.tables.lance.scan import FileScan
from airflow_ckpt_provider.tables.lance.schema import as_read
from airflow_ckpt_provider.tables.lance.writer import LanceWriter
from airflow_ckpt_provider.tables.staged_files import reading_staged
from airflow_ckpt_provider.tables.storage import DataFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Split
    from airflow_ckpt_provider.tables.writer import Written

#: Tasks of table splits.
JOIN = "join"

#: Rows of a fragment that are laid out at once.
_WINDOW_ROWS = 8192


#: Rows of a staged file, from a place up to another, and where the first of them stands now.
Run: TypeAlias = tuple[int, int, int]


class Join(Part, frozen=True, omit_defaults=True):
    """What a split joins.

    :param content: what the fragment holds; see ``content_of``.
    :param rows: of the fragment, deleted ones included.
    :param parts: names and bytes of the staged files, in the order of their rows.
    :param runs: of each of them, which of its rows are in this fragment; empty for all, where they are. None is of one, if there
        are none.
    """

    content: str
    rows: int
    parts: tuple[tuple[str, int], ...]
    runs: tuple[tuple[Run, ...], ...] = ()

    def to_json(self) -> JsonObject:
        """As stored in a plan."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: JsonObject) -> Join:
        """As read from a plan."""
        return part_of(value, cls)


class ColumnsWriter(LanceWriter):
    """Writes values with the place of each, in ``PLACE``, and joins them; see ``Writer``."""

    def work(self, split: Split, stem: str) -> Written:
        """Join the ranges of a fragment."""
        join, files = Join.from_json(split.read), self.facts.files
        read = [StagedFile(files.path(name), size) for name, size in join.parts]
        with reading_staged(read, files.sizes, self.facts.table):
            return self._joined(join, stem)

    def _joined(self, join: Join, stem: str) -> Written:
        scan = FileScan(self.facts.files, self.schema)
        runs = join.runs or ((),) * len(join.parts)
        parts = zip(join.parts, runs, strict=True)
        values = (batch for (name, size), places in parts for batch in self._values(scan, DataFile(path=name, bytes=size), places))
        written = self.rewrite(spread(values, join.rows, as_read(self.schema)), stem)
        (file,) = StagedFragments.from_json(written.manifest or {}).fragments
        if file.rows != join.rows:
            raise RowCountError(f"A fragment of {self.facts.table} has {join.rows} rows; {stem} was written with {file.rows} (I2).")
        # The rows that have values are counted where they were computed.
        return written._replace(rows=0, manifest=None, intermediate=ColumnFile(name=file.name, bytes=file.bytes))

    def _values(self, scan: FileScan, file: DataFile, runs: Sequence[Run]) -> Iterator[pa.RecordBatch]:
        """Values of a staged file, at the places where their rows stand now."""
        rows = 0
        for staged in scan.read(file):
            batch = moved(staged, runs)
            rows += batch.num_rows
            if batch.num_rows:
                yield batch
        # A row that others moved was there when it was read, unless it was deleted then.
        if runs and rows != sum(stop - start for start, stop, _ in runs):
            raise brought_back(self.facts.table)


def brought_back(table: str) -> TableMovedError:
    """The error for rows that were deleted when their ranges were read."""
    return TableMovedError(
        f"{table} was restored to an earlier version since the columns were computed: rows that were deleted then are back, and "
        f"have no values. Nothing was committed. Redo the write: {how_to_restart()}."
    )


def moved(values: pa.RecordBatch, runs: Sequence[Run]) -> pa.RecordBatch:
    """The values whose rows are in one of the runs, at the places where those stand now.

    :param values: with ``PLACE``.
    :param runs: none moves nothing.
    """
    import numpy as np
    import pyarrow as pa

    if not runs:
        return values
    starts, stops, now = np.array(runs, np.int64).T
    places = values.column(PLACE).to_numpy(zero_copy_only=False).astype(np.int64)
    run = np.searchsorted(starts, places, side="right") - 1
    kept = (run >= 0) & (places < stops[run])
    places_now = pa.array((places - starts[run] + now[run])[kept], pa.uint32())
    rows = values.filter(pa.array(kept))
    return rows.set_column(rows.schema.get_field_index(PLACE), rows.schema.field(PLACE), places_now)


def spread(values: Iterable[pa.RecordBatch], rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All rows of a fragment: those that have values where they belong, the others with nulls.

    :param values: with ``PLACE``, in its order.
    :param rows: of the fragment.
    """
    import numpy as np

    at = 0
    for batch in values:
        places = batch.column(PLACE).to_numpy(zero_copy_only=False).astype(np.int64)
        done = 0
        while done < len(places):
            count = int(np.searchsorted(places[done:], at + _WINDOW_ROWS))
            in_window = places[done : done + count]
            stop = at + _WINDOW_ROWS if done + count < len(places) else int(in_window[-1]) + 1
            yield _laid_out(batch.slice(done, count), in_window - at, range(at, stop), schema)
            done, at = done + count, stop
    for start in range(at, rows, _WINDOW_ROWS):
        yield _laid_out(None, np.zeros(0, np.int64), range(start, min(start + _WINDOW_ROWS, rows)), schema)


def _laid_out(batch: pa.RecordBatch | None, at: Any, window: range, schema: pa.Schema) -> pa.RecordBatch:  # noqa: ANN401 - numpy
    """The rows of a window, with the values of ``batch`` at the numbers ``at``."""
    import numpy as np
    import pyarrow as pa

    if batch is not None and batch.num_rows == len(window):
        return batch
    index = np.full(len(window), -1, np.int64)
    index[at] = np.arange(len(at))
    taken = pa.array(index, mask=index < 0)
    places = pa.array(window, pa.uint32())
    return pa.RecordBatch.from_arrays(
        [
            places if field.name == PLACE
            else pa.nulls(len(window), field.type) if batch is None
            else batch.column(field.name).take(taken)
            for field in schema
        ],
        schema=schema,
    )  # fmt: skip
