"""Rows of staged files, read before any version refers to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.tables.lance.schema import as_read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from lance.file import LanceFileReader

    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.storage import DataFile

#: Rows, and about the bytes, that are read at once, whichever is less: Lance reads ahead as far as it is let.
_RANGE_ROWS, _RANGE_BYTES = 65_536, 16 << 20


class FileScan:
    """Reads data files, all of them with the same columns. Picklable; holds storage options.

    :param schema: of the files' rows.
    :param columns: top-level columns to read, in this order; all if None.
    :raises ValueError: if there is no such column.
    """

    def __init__(self, files: DatasetFiles, schema: pa.Schema, columns: Sequence[str] | None = None) -> None:
        import pyarrow as pa

        absent = [name for name in columns or () if name not in schema.names]
        if absent:
            raise ValueError(f"There is no column {absent[0]!r}; there are {', '.join(schema.names)}.")
        self._files = files
        self.schema = as_read(schema if columns is None else pa.schema([schema.field(name) for name in columns], schema.metadata))

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Rows of a file, whose path is its name below ``data``, in their order."""
        for _, batches in self.ranges(file):
            yield from batches

    def ranges(self, file: DataFile) -> Iterator[tuple[range, Iterator[pa.RecordBatch]]]:
        """Numbers of rows that are read at once, and those rows, which are read if they are asked for."""
        from lance.file import LanceFileSession

        session = LanceFileSession(self._files.address, storage_options=self._files.storage_options)
        reader = session.open_reader(f"data/{file.path}", columns=self.schema.names)
        rows = reader.num_rows()
        size = max(1, min(_RANGE_ROWS, _RANGE_BYTES * rows // max(1, file.bytes)))
        for first in range(0, rows, size):
            numbers = range(first, min(first + size, rows))
            yield numbers, self._read(reader, numbers)

    def _read(self, reader: LanceFileReader, numbers: range) -> Iterator[pa.RecordBatch]:
        for batch in reader.read_range(numbers.start, len(numbers), batch_size=len(numbers)).to_batches():
            yield batch.select(self.schema.names)
