"""Which rows of a data file are live: position delete files and deletion vectors, applied batch by batch.

Memory is that of the positions deleted from the one file that is read, eight bytes each.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyiceberg.io import FileIO, InputStream

    from airflow_ckpt_provider.scan.data_files import DeleteFile


class LiveRows:
    """Takes the batches of a file in order and leaves the deleted rows out.

    :param path: the data file, as its table names it.
    :param deletes: files that may delete rows of it.
    """

    def __init__(self, io: FileIO, path: str, deletes: Sequence[DeleteFile]) -> None:
        #: Live rows seen so far.
        self.count = 0
        self._next = 0
        self._deleted = _positions(io, path, deletes) if deletes else memoryview(b"").cast("q")

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The live rows of the next batch."""
        import pyarrow as pa
        import pyarrow.compute as pc

        start, end = self._next, self._next + batch.num_rows
        self._next = end
        deleted = self._deleted[bisect_left(self._deleted, start) : bisect_left(self._deleted, end)]
        if len(deleted):
            gone = pa.Array.from_buffers(pa.int64(), len(deleted), [None, pa.py_buffer(deleted)])
            batch = batch.filter(pc.invert(pc.is_in(pa.array(range(start, end), pa.int64()), value_set=gone)))
        self.count += batch.num_rows
        return batch


def _positions(io: FileIO, path: str, deletes: Sequence[DeleteFile]) -> memoryview:
    """Positions of ``path`` that these files delete, sorted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [pa.chunked_array(_read(io, path, file), pa.int64()) for file in deletes]
    distinct = pc.unique(pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.int64()))
    ordered = distinct.take(pc.sort_indices(distinct))
    return memoryview(ordered.buffers()[1] or b"").cast("q")[: len(ordered)]


def rows_deleted_of(io: FileIO, file: DeleteFile, paths: frozenset[str]) -> int:
    """How many rows of these data files a file of position deletes names: its bounds span others, too."""
    import pyarrow.dataset as ds

    with io.new_input(file.path).open() as opened:
        if file.format == "PUFFIN":
            vectors = opened.read()
            return sum(len(chunk) for path in paths for chunk in _vectors(path, vectors))
        return sum(batch.num_rows for batch in _positions_in(opened, file, ds.field("file_path").isin(list(paths))))


def _read(io: FileIO, path: str, file: DeleteFile) -> list[pa.Array]:
    import pyarrow as pa
    import pyarrow.dataset as ds

    with io.new_input(file.path).open() as opened:
        if file.format == "PUFFIN":
            return _vectors(path, opened.read())
        return [pa.array(batch.column(0), pa.int64()) for batch in _positions_in(opened, file, ds.field("file_path") == path)]


def _positions_in(opened: InputStream, file: DeleteFile, wanted: ds.Expression) -> Iterator[pa.RecordBatch]:
    """The positions of a file of deletes that are wanted."""
    import pyarrow.dataset as ds

    kind = ds.OrcFileFormat() if file.format == "ORC" else ds.ParquetFileFormat(pre_buffer=False)
    yield from kind.make_fragment(opened).scanner(columns=["pos"], filter=wanted, use_threads=False).to_batches()


def _vectors(path: str, puffin: bytes) -> list[pa.Array]:
    import pyarrow as pa
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    vectors = [v for v in deletion_vectors_from_puffin_file(PuffinFile(puffin)) if v.referenced_data_file == path]
    # Chunk by chunk: an empty part of a vector has no type of its own.
    return [chunk.cast(pa.int64()) for vector in vectors for chunk in vector.to_vector().chunks]
