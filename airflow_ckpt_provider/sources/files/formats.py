"""How one file of each format is opened, cut and read. Batches come one after the other; a whole file is never held.

A **unit** is what a format can start reading at: a Parquet row group, an ORC stripe. CSV and JSON lines have one unit, the
file (a line break may stand inside a quoted CSV value, so a byte range is no safe cut).
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Protocol

from airflow_ckpt_provider.scan.batches import rows_of_groups
from airflow_ckpt_provider.scan.objects import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from obstore.store import ObjectStore

    from airflow_ckpt_provider.sources.files.listing import PinnedFile

#: Rows in one batch.
BATCH_ROWS = 65_536

#: Bytes parsed at a time from CSV and JSON lines.
_BLOCK_BYTES = 4 << 20

#: Bytes read at a time from one column of a local file, and fetched at a time from object storage.
_READ_BYTES, _FETCH_BYTES = 1 << 20, 8 << 20


class OpenFile:
    """One input file, opened for Arrow: local files natively, others through their object store."""

    def __init__(self, objects: ObjectStore, file: PinnedFile) -> None:
        self._objects = objects
        self.file = file

    @property
    def buffer_bytes(self) -> int:
        """Bytes to read at a time from one place of the file: the dearer a request, the more."""
        from obstore.store import LocalStore

        return _READ_BYTES if isinstance(self._objects, LocalStore) else _FETCH_BYTES

    def random_access(self) -> pa.NativeFile:
        """The file for formats that seek: only the ranges they ask for are fetched."""
        import pyarrow as pa

        return self._local() or pa.PythonFile(RemoteFile(self._objects, self.file.path, self.file.size), mode="r")

    def stream(self) -> pa.NativeFile:
        """The file as a stream, decompressed by its suffix (``.gz``, ``.zst``, ``.bz2``, ``.lz4``)."""
        import pyarrow as pa

        codecs = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
        codec = codecs.get(self.file.path.rpartition(".")[2].lower())
        remote = RemoteFile(self._objects, self.file.path, self.file.size)
        raw = self._local() or pa.PythonFile(io.BufferedReader(remote, _FETCH_BYTES), mode="r")
        return pa.CompressedInputStream(raw, codec) if codec else raw

    def is_blank(self) -> bool:
        """True if there is nothing but white space in the decompressed file."""
        with self.stream() as stream:
            while chunk := stream.read(_BLOCK_BYTES):
                if chunk.strip():
                    return False
        return True

    def _local(self) -> pa.NativeFile | None:
        import pyarrow as pa
        from obstore.store import LocalStore

        # Not a memory map: its pages count as the worker's memory, which would grow with the split (I11).
        return pa.OSFile("/" + self.file.path) if isinstance(self._objects, LocalStore) else None


class FileFormat(Protocol):
    """One file format."""

    #: What a unit is called.
    unit: str

    def units(self, opened: OpenFile) -> list[int]:
        """Bytes of each unit of the file."""
        ...

    def schema(self, opened: OpenFile) -> pa.Schema | None:
        """Schema of the file, or None if the format carries none."""
        ...

    def read(
        self, opened: OpenFile, units: range | None, columns: Sequence[str] | None, expected: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of these units (None for all), in order, with at least ``columns``."""
        ...


class Parquet:
    """Apache Parquet; the unit is the row group."""

    unit = "row group"

    def units(self, opened: OpenFile) -> list[int]:
        metadata = self._open(opened).metadata
        groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
        return [sum(g.column(c).total_compressed_size for c in range(g.num_columns)) for g in groups]

    def rows(self, opened: OpenFile) -> list[int]:
        """Rows of each unit of the file."""
        return rows_of_groups(self._open(opened).metadata)

    def schema(self, opened: OpenFile) -> pa.Schema:
        return self._open(opened).schema_arrow

    def read(
        self, opened: OpenFile, units: range | None, columns: Sequence[str] | None, expected: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        del expected
        file = self._open(opened)
        wanted = list(units if units is not None else range(file.num_row_groups))
        yield from file.iter_batches(
            BATCH_ROWS, row_groups=wanted, columns=None if columns is None else list(columns), use_threads=False
        )

    def _open(self, opened: OpenFile) -> Any:  # noqa: ANN401 - pyarrow.parquet.ParquetFile, imported where it is used
        from pyarrow.parquet import ParquetFile

        # Column chunks are read piece by piece: a row group, which others may have made as large as they liked, is not held.
        return ParquetFile(opened.random_access(), buffer_size=opened.buffer_bytes, pre_buffer=False)


class Orc:
    """Apache ORC; the unit is the stripe. ORC files do not tell stripe sizes through Arrow, so all count the same."""

    unit = "stripe"

    def units(self, opened: OpenFile) -> list[int]:
        stripes = self._open(opened).nstripes
        return [opened.file.size // stripes] * stripes if stripes else []

    def schema(self, opened: OpenFile) -> pa.Schema:
        return self._open(opened).schema

    def read(
        self, opened: OpenFile, units: range | None, columns: Sequence[str] | None, expected: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        del expected
        file = self._open(opened)
        for stripe in units if units is not None else range(file.nstripes):
            batch = file.read_stripe(stripe, columns=None if columns is None else list(columns))
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)

    def _open(self, opened: OpenFile) -> Any:  # noqa: ANN401 - pyarrow.orc.ORCFile, imported where it is used
        from pyarrow.orc import ORCFile

        return ORCFile(opened.random_access())


class Csv:
    """Comma-separated values with a header line. Types come from the table, and are inferred where it has none.

    An empty value is null in a column of numbers and the empty string in a column of strings, as in Arrow.
    """

    unit = "part"

    def units(self, opened: OpenFile) -> list[int]:
        return [opened.file.size]

    def schema(self, opened: OpenFile) -> None:
        del opened

    def read(
        self, opened: OpenFile, units: range | None, columns: Sequence[str] | None, expected: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import csv

        del units
        convert = csv.ConvertOptions(
            column_types={field.name: field.type for field in expected} if expected is not None else None,
            include_columns=None if columns is None else list(columns),
        )
        read = csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
        # Otherwise a quoted line break that meets the end of a block is an error, or worse.
        parse = csv.ParseOptions(newlines_in_values=True)
        with opened.stream() as stream:
            try:
                batches = csv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
            except pa.ArrowInvalid:
                if opened.is_blank():
                    return
                raise
            with batches:
                yield from batches


class JsonLines:
    """One JSON object per line. Types come from the table, and are inferred where it has none."""

    unit = "part"

    def units(self, opened: OpenFile) -> list[int]:
        return [opened.file.size]

    def schema(self, opened: OpenFile) -> None:
        del opened

    def read(
        self, opened: OpenFile, units: range | None, columns: Sequence[str] | None, expected: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import json

        del units, columns
        parse = json.ParseOptions(explicit_schema=expected, unexpected_field_behavior="infer")
        read = json.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
        with opened.stream() as stream:
            try:
                batches = json.open_json(stream, read_options=read, parse_options=parse)
            except pa.ArrowInvalid:
                if opened.is_blank():
                    return
                raise
            with batches:
                yield from batches


def unnamed_columns(format_name: str, opened: OpenFile, expected: pa.Schema | None) -> frozenset[str]:
    """Columns of ``expected`` that no row at the beginning of a file of JSON lines names. Arrow makes nulls of them in silence.

    Other formats say by themselves which columns a file has.
    """
    import pyarrow as pa
    from pyarrow import json

    if format_name != "jsonl" or expected is None:
        return frozenset()
    with opened.stream() as stream:
        head = stream.read(_BLOCK_BYTES)
    try:
        named = json.read_json(pa.BufferReader(head[: head.rfind(b"\n") + 1] or head)).schema.names
    except pa.ArrowInvalid:
        # Without the types that are expected it may not be readable; what is wrong with it, reading says.
        return frozenset()
    return frozenset(expected.names) - frozenset(named)


FORMATS: dict[str, FileFormat] = {"parquet": Parquet(), "orc": Orc(), "csv": Csv(), "jsonl": JsonLines()}
