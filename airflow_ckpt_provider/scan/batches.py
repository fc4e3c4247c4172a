"""The rows of one data file as they stand in it, with the file's own schema in Iceberg's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import UnsupportedTableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyarrow.parquet import FileMetaData
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import NameMapping

    from airflow_ckpt_provider.scan.data_files import ScanFile

#: Rows of one batch at most, and bytes of the file that they may stand for: rows may be large.
BATCH_ROWS, BATCH_BYTES = 65_536, 8 << 20

#: Bytes read at a time from one column.
_BUFFER_BYTES = 1 << 20


def rows_of_groups(footer: FileMetaData) -> list[int]:
    """Numbers of the rows of each row group of a Parquet file."""
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


def groups_behind(groups: Sequence[int], row: int) -> tuple[int, int]:
    """Number of the row groups that end before a row, and of their rows.

    :param groups: rows of each.
    :param row: its number, from the beginning of the first group.
    """
    count = rows = 0
    while count < len(groups) and rows + groups[count] <= row:
        count, rows = count + 1, rows + groups[count]
    return count, rows


def file_batches(
    io: FileIO, file: ScanFile, want: Schema, mapping: NameMapping | None, version: int, first_group: int = 0
) -> Iterator[tuple[Schema, pa.RecordBatch]]:
    """All rows of ``file``, in order, with those of its top-level columns that ``want`` needs by field id.

    :param mapping: names the columns of files that have no field ids.
    :param first_group: of a Parquet file, the first row group that is read.
    :raises UnsupportedTableError: if the file has no field ids and the table no name mapping.
    """
    rows = min(BATCH_ROWS, max(1, file.rows * BATCH_BYTES // max(file.bytes, 1)))
    with io.new_input(file.path).open() as opened:
        if file.format == "ORC":
            from pyarrow.orc import ORCFile

            orc = ORCFile(opened)
            schema = _schema(orc.schema, mapping, version, file)
            columns = _columns(schema, want)
            for stripe in range(orc.nstripes):
                whole = orc.read_stripe(stripe, columns=columns)
                for start in range(0, whole.num_rows, rows):
                    yield schema, whole.slice(start, rows)
            return
        from pyarrow.parquet import ParquetFile

        # Column chunks are read piece by piece: a row group, which others may have made as large as they liked, is not held.
        parquet = ParquetFile(opened, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        schema = _schema(parquet.schema_arrow, mapping, version, file)
        groups = range(first_group, parquet.num_row_groups)
        for batch in parquet.iter_batches(rows, row_groups=groups, columns=_columns(schema, want), use_threads=False):
            yield schema, batch


def _columns(have: Schema, want: Schema) -> list[str]:
    return [field.name for field in have.fields if field.field_id in want.field_ids]


def _schema(arrow: pa.Schema, mapping: NameMapping | None, version: Any, file: ScanFile) -> Schema:  # noqa: ANN401 - 1, 2 or 3
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    try:
        return pyarrow_to_schema(arrow, mapping, downcast_ns_timestamp_to_us=version <= 2, format_version=version)
    except ValueError as error:
        raise UnsupportedTableError(
            f"The columns of {file.path} cannot be matched with the table's: {error}. Give the table a name mapping "
            "(schema.name-mapping.default), or rewrite the file."
        ) from error
