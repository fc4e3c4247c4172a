"""Writing one split on an executor: one Parquet file, in bounded memory (I11); and reading such files back."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.exceptions import OutputError
from airflow_ckpt_provider.scan.objects import Upload
from airflow_ckpt_provider.tables.fit import Conform, gathered
from airflow_ckpt_provider.tables.staged.folder import DATA
from airflow_ckpt_provider.tables.storage import DataFile
from airflow_ckpt_provider.tables.writer import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Split, Staged
    from airflow_ckpt_provider.tables.staged.folder import RowsFolder


class RowsWriter:
    """Writes splits. Picklable; holds storage options, so it never goes into the store."""

    def __init__(self, folder: RowsFolder, schema: pa.Schema) -> None:
        self._folder = folder
        self.schema = schema

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Write the rows of one split; see ``Writer.write``."""
        import obstore
        import pyarrow.parquet as pq

        path = self._folder.path(f"{stem}.parquet")
        if not self.schema.names:
            batches = _without_rows(batches)
        chunks = gathered(batches, Conform(self.schema, self._folder.uri))
        # Nothing is written before there is a row.
        first = next(chunks, None)
        if first is None:
            return Written(0, 0, (), None)
        rows = 0
        try:
            with (
                obstore.open_writer(self._folder.open(), f"{DATA}{stem}.parquet") as upload,
                pq.ParquetWriter(Upload(upload), self.schema) as file,
            ):
                for chunk in itertools.chain([first], chunks):
                    file.write_table(chunk)
                    rows += chunk.num_rows
        except BaseException:
            with contextlib.suppress(Exception):
                self._folder.delete([path])
            raise
        (size,) = self._folder.sizes([path])
        return Written(rows, size or 0, (StagedFile(path, size or 0),), {"path": path, "rows": rows})

    @property
    def folders(self) -> frozenset[str]:
        """The folder of data files."""
        return frozenset([self._folder.path("").rstrip("/")])

    def holding(self, record: Staged) -> list[StagedFile]:
        """Its file."""
        return list(record.files)

    def named_in(self, record: Staged) -> list[StagedFile]:
        """Its file; see ``Writer.named_in``."""
        return self.holding(record)

    def sizes(self, paths: Sequence[str]) -> Sequence[int | None]:
        """See ``Writer.sizes``."""
        return self._folder.sizes(paths)

    def read(self, record: Staged) -> Iterator[pa.RecordBatch]:
        """Rows of its file."""
        scan = RowsScan(self._folder, self.schema)
        for file in record.files:
            yield from scan.read(DataFile(path=file.path, bytes=file.bytes))

    def rewrite(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """As ``write``."""
        return self.write(batches, stem)

    def work(self, split: Split, stem: str) -> Written:
        """Adding rows asks for no table splits."""
        del stem
        raise NotImplementedError(f"The split {split.id} asks for {split.task!r}, which a plain write does not do.")

    def remove(self, written: Written) -> None:
        """Remove the file of a split that lost the race to be published."""
        self._folder.delete(file.path for file in written.files)


class RowsScan:
    """Reads such files. Picklable; holds storage options.

    :param columns: to read, in this order; all if None.
    :raises ValueError: if there is no such column.
    """

    def __init__(self, folder: RowsFolder, schema: pa.Schema, columns: Sequence[str] | None = None) -> None:
        import pyarrow as pa

        absent = [name for name in columns or () if name not in schema.names]
        if absent:
            raise ValueError(f"There is no column {absent[0]!r}; there are {', '.join(schema.names)}.")
        self._folder = folder
        self.schema = schema if columns is None else pa.schema([schema.field(name) for name in columns])

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Rows of one file, in their order."""
        import pyarrow.parquet as pq

        yield from pq.ParquetFile(self._folder.file(file.path, file.bytes)).iter_batches(columns=self.schema.names)


def _without_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches that have no columns: a file of none has no rows either.

    :raises OutputError: if there are rows.
    """
    for batch in batches:
        if batch.num_rows and not batch.num_columns:
            raise OutputError(f"The transform made {batch.num_rows:,} rows without any column. Let it make one at least.")
        yield batch
