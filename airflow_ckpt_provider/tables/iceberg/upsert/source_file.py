"""Staged source files: the rows of a source split, kept between the rounds of an upsert. No snapshot ever refers to one.

Such a file is a Parquet file whose row groups hold rows of one bucket of keys each. A row's address is the file and its
number in it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the types of members
from airflow_ckpt_provider.checkpoint.documents import Pinned
from airflow_ckpt_provider.tables.iceberg.rolling import dictionary_columns
from airflow_ckpt_provider.tables.iceberg.upsert.bounds import Bounds, KeyBounds  # noqa: TC001 - as above
from airflow_ckpt_provider.tables.iceberg.upsert.facts import FACTS, IntermediateFile, facts_of
from airflow_ckpt_provider.tables.iceberg.writer import delete_files
from airflow_ckpt_provider.tables.keys.key_batches import bucket_of
from airflow_ckpt_provider.tables.keys.values import canonical, hashes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema

    from airflow_ckpt_provider.tables.iceberg.upsert.keys import KeyColumn
    from airflow_ckpt_provider.tables.keys.values import Hashes

#: Name under which a file says which bucket each of its row groups holds.
_BUCKETS = b"buckets"

#: Bytes of row groups that are read together, unless a single one is larger.
_SPAN_BYTES = 16 << 20


class SourceFile(IntermediateFile, frozen=True, kw_only=True, tag="iceberg_source_file"):
    """The rows of one split of the source, in one file.

    :param key_bytes: bytes of its key columns in memory.
    :param buckets: number of buckets; the same for all splits of an upsert.
    :param bounds: of the key columns.
    """

    rows: Count
    key_bytes: Count
    buckets: Count
    bounds: tuple[KeyBounds, ...]


class StagedSources(Pinned, frozen=True, kw_only=True, tag="iceberg_upsert"):
    """What the later rounds of an upsert are computed from: all files with the rows of its source."""

    sources: tuple[SourceFile, ...]


class Span(NamedTuple):
    """Row groups of a staged source file that are read together: their numbers, number of their first row in the file, rows."""

    first: int
    stop: int
    start: int
    rows: int


def write_source_file(
    io: FileIO, path: str, chunks: Iterable[pa.Table], schema: Schema, keys: Sequence[KeyColumn], buckets: int
) -> SourceFile | None:
    """Write chunks of rows, which are in the table's schema; None if there are none. Leaves no file behind on an error."""
    import pyarrow.parquet as pq
    from pyiceberg.schema import sanitize_column_names

    bounds = Bounds(keys)
    groups: list[int] = []
    rows = key_bytes = 0
    try:
        with contextlib.ExitStack() as stack:
            writer: Any = None
            for chunk in chunks:
                if writer is None:
                    stream = stack.enter_context(io.new_output(path).create(overwrite=True))
                    dictionary = dictionary_columns(chunk, sanitize_column_names(schema))
                    options = {"compression": "lz4", "use_dictionary": dictionary, "write_statistics": False}
                    writer = stack.enter_context(pq.ParquetWriter(stream, chunk.schema, **options))
                columns = [chunk.column(key.written) for key in keys]
                bounds.add(columns)
                for bucket, part in _split(chunk, columns, buckets):
                    writer.write_table(part, row_group_size=part.num_rows)
                    groups.append(bucket)
                rows += chunk.num_rows
                key_bytes += sum(column.nbytes for column in columns)
            if writer is None:
                return None
            file = SourceFile(path=path, bytes=0, rows=rows, key_bytes=key_bytes, buckets=buckets, bounds=bounds.to_json())
            writer.add_key_value_metadata({_BUCKETS: msgspec.json.encode(groups), FACTS: facts_of(file)})
    except BaseException:
        delete_files(io, [path])
        raise
    return msgspec.structs.replace(file, bytes=len(io.new_input(path)))


class SourceFileReader:
    """Reads a staged source file, some row groups at a time."""

    def __init__(self, io: FileIO, path: str) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self._stream = io.new_input(path).open()
        self._file = pq.ParquetFile(self._stream)
        self._buckets = msgspec.json.decode(self._file.metadata.metadata[_BUCKETS], type=list[int])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._stream.close()

    def spans(self, buckets: Collection[int] | None = None) -> Iterator[Span]:
        """All row groups of these buckets, or of all; small ones that stand side by side together."""
        metadata = self._file.metadata
        first = start = size = rows = 0
        for number, bucket in enumerate(self._buckets):
            group = metadata.row_group(number)
            wanted = buckets is None or bucket in buckets
            if rows and (not wanted or size + group.total_byte_size > _SPAN_BYTES):
                yield Span(first, number, start, rows)
                start, size, rows = start + rows, 0, 0
            if not rows:
                first = number
            if wanted:
                size += group.total_byte_size
                rows += group.num_rows
            else:
                start += group.num_rows
        if rows:
            yield Span(first, len(self._buckets), start, rows)

    def read(self, span: Span, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of a span."""
        return self._file.read_row_groups(list(range(span.first, span.stop)), columns=columns, use_threads=False)

    def keys(self, keys: Sequence[KeyColumn], buckets: Collection[int]) -> Iterator[tuple[Span, list[pa.Array], Hashes]]:
        """Keys of the rows in these buckets, in their canonical form and hashed, span by span."""
        for span in self.spans(buckets):
            table = self.read(span, [key.written for key in keys])
            columns = [canonical(table.column(key.written)) for key in keys]
            yield span, columns, hashes(columns)


def _split(chunk: pa.Table, columns: Sequence[pa.ChunkedArray], buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """Rows of each bucket that occurs in ``chunk``."""
    import numpy as np

    if buckets == 1:
        yield 0, chunk
        return
    numbers = bucket_of(hashes([canonical(column) for column in columns]), buckets).astype(np.uint16)
    order = np.argsort(numbers, kind="stable")
    ordered = chunk.take(order)
    counts = np.bincount(numbers, minlength=buckets)
    start = 0
    for bucket in np.flatnonzero(counts).tolist():
        yield bucket, ordered.slice(start, counts[bucket])
        start += int(counts[bucket])
