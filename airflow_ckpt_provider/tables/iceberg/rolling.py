"""Parquet files of one split: one is open at a time, a new one at the table's target size, statistics on closing.

Parquet, its statistics and its settings are ``pyiceberg``'s own; this adds what it lacks: a size limit while a file is
open, and the counts of NaN values, without which a later ``delete("f <= 10")`` drops NaN rows.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, cast

from airflow_ckpt_provider.tables.iceberg.fit import FIELD_ID
from airflow_ckpt_provider.tables.iceberg.manifest import facts_with_cut_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyiceberg.io import FileIO, OutputFile, OutputStream
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.locations import LocationProvider

    from airflow_ckpt_provider.tables.iceberg.partitions import Partition

#: A column gets a dictionary unless more than this share of its first values are distinct.
_SAMPLE_ROWS, _DISTINCT_SHARE = 65_536, 0.2


class RollingFiles:
    """The data files of one split.

    :param stem: start of every file name (I4).
    :param spec_id: partition spec of the files.
    :param properties: the table's properties.
    :param sample: the first rows of the split, which tell which columns get a dictionary.
    """

    def __init__(
        self,
        io: FileIO,
        locations: LocationProvider,
        schema: Schema,
        spec_id: int,
        properties: dict[str, str],
        stem: str,
        sample: pa.Table,
    ) -> None:
        from pyiceberg.schema import sanitize_column_names
        from pyiceberg.table import TableProperties
        from pyiceberg.utils.properties import property_as_int

        self._io = io
        self._locations = locations
        self._file_schema = sanitize_column_names(schema)
        self._spec_id = spec_id
        self._properties = properties
        self._stem = stem
        self._numbers = itertools.count()
        default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        self._target = property_as_int(properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, default) or default
        self._dictionaries = dictionary_columns(sample, self._file_schema)
        self._open: _OpenDataFile | None = None
        self.closed: list[DataFile] = []

    def write(self, partition: Partition | None, rows: pa.Table) -> None:
        """Write ``rows`` of one partition as one row group. Rows of another partition begin another file.

        :param partition: the same object for all rows of it.
        """
        if self._open is not None and self._open.partition is not partition:
            self._close()
        if self._open is None:
            self._open = self._create(partition)
        self._open.write(rows)
        if self._open.size >= self._target:
            self._close()

    def close(self) -> list[DataFile]:
        """Close the last file and return all, in the order they were closed."""
        self._close()
        return self.closed

    def abandon(self) -> list[str]:
        """Give up: close what is open and return the paths of all files there may be."""
        paths = [file.file_path for file in self.closed]
        if self._open is not None:
            paths.append(self._open.path)
            self._open.abandon()
            self._open = None
        return paths

    def _create(self, partition: Partition | None) -> _OpenDataFile:
        name = f"{self._stem}-{next(self._numbers):05d}.parquet"
        path = self._locations.new_data_location(name, partition)  # type: ignore[arg-type]
        output = self._io.new_output(path)
        return _OpenDataFile(output, self._file_schema, self._spec_id, self._properties, partition, self._dictionaries)

    def _close(self) -> None:
        file, self._open = self._open, None
        if file is not None:
            self.closed.append(file.close())


class _OpenDataFile:
    """One Parquet file being written."""

    def __init__(
        self,
        output: OutputFile,
        schema: Schema,
        spec_id: int,
        properties: dict[str, str],
        partition: Partition | None,
        dictionaries: list[str],
    ) -> None:
        from pyiceberg.io.fileformat import FileFormatFactory
        from pyiceberg.manifest import FileFormat

        self.path = output.location
        self._output = output
        self._spec_id = spec_id
        self.partition = partition
        self._measured = _measured(output)
        self._schema = schema
        self._properties = properties
        writer = FileFormatFactory.get(FileFormat.PARQUET).create_writer(self._measured, schema, properties)
        self._writer = cast("Any", writer)
        # pyiceberg has no table property for it, and hands its settings to the Parquet writer at the first write.
        self._writer._parquet_writer_kwargs["use_dictionary"] = dictionaries  # noqa: SLF001
        self._nans: dict[int, int] = {}

    @property
    def size(self) -> int:
        """Bytes written so far, without the row group that is being built."""
        stream = self._measured.stream
        return stream.tell() if stream is not None else 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write(rows)
        for field_id, count in nan_counts(rows):
            self._nans[field_id] = self._nans.get(field_id, 0) + count

    def close(self) -> DataFile:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        try:
            facts = self._writer.close().to_serialized_dict()
        except UnicodeEncodeError:
            # The file is whole; only what pyiceberg makes of its statistics failed.
            facts = facts_with_cut_bounds(self._writer._writer.writer.metadata, self._schema, self._properties)  # noqa: SLF001
        facts["nan_value_counts"] = {k: v for k, v in self._nans.items() if k in facts["value_counts"]}
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=self.partition.record if self.partition else Record(),
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            spec_id=self._spec_id,
            equality_ids=None,
            key_metadata=None,
            **facts,
        )

    def abandon(self) -> None:
        # Not only the stream: a Parquet writer without one fails in its finaliser. What went wrong first is what matters.
        with contextlib.suppress(Exception):
            self._writer.close()
        stream = self._measured.stream
        if stream is not None:
            stream.close()


def _measured(output: OutputFile) -> Any:  # noqa: ANN401 - a subclass of a class that is imported late
    """``output``, remembering the stream it creates, so that its position can be asked while a writer holds it."""
    from pyiceberg.io import OutputFile as Base

    class Measured(Base):
        stream: OutputStream | Any = None

        def __len__(self) -> int:
            return len(output)

        def exists(self) -> bool:
            return output.exists()

        def to_input_file(self) -> Any:  # noqa: ANN401 - pyiceberg.io.InputFile
            return output.to_input_file()

        def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 - pyiceberg's signature
            self.stream = output.create(overwrite)
            return self.stream

    return Measured(output.location)


def dictionary_columns(rows: pa.Table, schema: Schema) -> list[str]:
    """Parquet paths of the columns that are written with a dictionary, judged by the first rows of a split.

    Where most values differ, a dictionary is built in every row group only to outgrow its limit and be given up, which
    takes a quarter of the writing time and makes the file larger. Few rows, and nested columns, are not judged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg.io.pyarrow import parquet_path_to_id_mapping

    sample = rows.slice(0, _SAMPLE_ROWS)
    varied = set()
    if sample.num_rows == _SAMPLE_ROWS:
        for name, column in zip(sample.column_names, sample.columns, strict=True):
            judged = not pa.types.is_nested(column.type) and not isinstance(column.type, pa.BaseExtensionType)
            if judged and pc.count_distinct(column).as_py() > _SAMPLE_ROWS * _DISTINCT_SHARE:
                varied.add(name)
    return [path for path in parquet_path_to_id_mapping(schema) if path not in varied]


def nan_counts(rows: pa.Table) -> Iterator[tuple[int, int]]:
    """Field id and number of NaN values of each floating-point column, also inside structs."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        yield from _nan_counts(field, column)


def _nan_counts(field: pa.Field, column: pa.ChunkedArray) -> Iterator[tuple[int, int]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(field.type):
        yield int(field.metadata[FIELD_ID]), pc.sum(pc.is_nan(column)).as_py() or 0
    elif pa.types.is_struct(field.type):
        for index, member in enumerate(field.type):
            if _holds_floats(member.type):
                yield from _nan_counts(member, pc.struct_field(column, [index]))
    elif pa.types.is_list(field.type) and _holds_floats(field.type.value_type):
        yield from _nan_counts(field.type.value_field, pc.list_flatten(column))
    elif pa.types.is_map(field.type) and (_holds_floats(field.type.key_type) or _holds_floats(field.type.item_type)):
        for item, name in ((field.type.key_field, "keys"), (field.type.item_field, "items")):
            if _holds_floats(item.type):
                # The children of a map are whole even where it is a slice; its offsets are not.
                lists = [pa.ListArray.from_arrays(chunk.offsets, getattr(chunk, name)) for chunk in column.chunks]
                yield from _nan_counts(item, pa.chunked_array([values.flatten() for values in lists], type=item.type))


def _holds_floats(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_floating(kind):
        return True
    return pa.types.is_nested(kind) and any(_holds_floats(kind.field(i).type) for i in range(kind.num_fields))
