"""The data files of a snapshot, pruned by a filter, and the rows of one of them, one batch after the other.

``scan_files`` runs on the driver; what it yields is stored in plans. ``IcebergScan`` travels to executors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.exceptions import UnsupportedTableError
from airflow_ckpt_provider.scan.batches import file_batches, rows_of_groups
from airflow_ckpt_provider.scan.constants import constant_of, constants_of
from airflow_ckpt_provider.scan.data_files import DeleteFile, ScanFile
from airflow_ckpt_provider.scan.deletes import LiveRows
from airflow_ckpt_provider.scan.doubles import read_exactly
from airflow_ckpt_provider.scan.projection import Projection, plain_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.name_mapping import NameMapping

#: Manifests opened at a time: they are fetched side by side, and their entries are all that is held of a snapshot.
_MANIFESTS = 16

_POSITION = "\0position"


class Scanned(NamedTuple):
    """A file to read, and its entry in the manifest: sequence numbers and, in ``data_file``, bounds and counts."""

    file: ScanFile
    entry: ManifestEntry

    @property
    def data_file(self) -> DataFile:
        return self.entry.data_file


def scan_files(
    table: Table, snapshot_id: int | None, row_filter: BooleanExpression | None = None, schema_id: int | None = None
) -> Iterator[Scanned]:
    """Files of a snapshot that may hold rows of ``row_filter``, by partitions and metrics, with the deletes for each.

    Memory is bounded by the manifests that are open at a time and by the delete files.

    :param snapshot_id: None for a table without one.
    :param row_filter: unbound; every row if None.
    :param schema_id: schema that the filter is written for; the table's current one if None.
    :raises UnsupportedTableError: if there are equality deletes, or files that are neither Parquet nor ORC.
    """
    if snapshot_id is None:
        return iter(())
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise ValueError(f"There is no snapshot {snapshot_id}.")
    return plan_manifests(table, snapshot.manifests(table.io), row_filter, schema_id)


def plan_manifests(
    table: Table,
    manifests: Sequence[ManifestFile],
    row_filter: BooleanExpression | None = None,
    schema_id: int | None = None,
    keep: Callable[[ManifestEntry], bool] = lambda _: True,
) -> Iterator[Scanned]:
    """Like ``scan_files``, for these manifests only.

    :param keep: which entries for data files are wanted.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.manifest import INITIAL_SEQUENCE_NUMBER, DataFileContent, ManifestContent
    from pyiceberg.table import ManifestGroupPlanner
    from pyiceberg.table.delete_file_index import DeleteFileIndex

    from airflow_ckpt_provider.scan.comparing import fitted

    metadata = with_schema(table.metadata, schema_id)
    planner = ManifestGroupPlanner(metadata, table.io, fitted(row_filter or AlwaysTrue(), metadata.schema()))
    data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
    oldest = min((manifest.min_sequence_number or INITIAL_SEQUENCE_NUMBER for manifest in data), default=0)
    deletes = DeleteFileIndex()
    for entry in _entries(planner, [m for m in manifests if m.content == ManifestContent.DELETES]):
        if (entry.sequence_number or INITIAL_SEQUENCE_NUMBER) < oldest:
            continue
        if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
            raise UnsupportedTableError(
                f"{'.'.join(table.name())} has equality deletes ({entry.data_file.file_path}), which cannot be read here. "
                "Compact the table with the engine that wrote them, then retry."
            )
        deletes.add_delete_file(entry, partition_key=entry.data_file.partition)
    identities = {spec_id: constants_of(spec, metadata.schema()) for spec_id, spec in metadata.specs().items()}
    for entry in _entries(planner, data):
        if not keep(entry):
            continue
        file = entry.data_file
        if file.file_format.value not in {"PARQUET", "ORC"}:
            raise UnsupportedTableError(
                f"{'.'.join(table.name())} has the {file.file_format.value} file {file.file_path}; only Parquet and ORC are read."
            )
        applying = deletes.for_data_file(entry.sequence_number or INITIAL_SEQUENCE_NUMBER, file, partition_key=file.partition)
        yield Scanned(
            ScanFile(
                path=file.file_path,
                bytes=file.file_size_in_bytes,
                rows=file.record_count,
                spec_id=file.spec_id,
                format=file.file_format.value,
                constants=identities[file.spec_id](file.partition),
                deletes=tuple(
                    DeleteFile(delete.file_path, delete.file_size_in_bytes, delete.file_format.value)
                    for delete in sorted(applying, key=lambda delete: delete.file_path)
                ),
            ),
            entry,
        )


def _entries(planner: Any, manifests: Sequence[ManifestFile]) -> Iterator[ManifestEntry]:  # noqa: ANN401 - ManifestGroupPlanner
    read_exactly()
    for start in range(0, len(manifests), _MANIFESTS):
        # The planner opens all that it is given at once and keeps what they hold until it is read.
        for entries in planner.plan_manifest_entries(manifests[start : start + _MANIFESTS]):
            yield from entries


def with_schema(metadata: TableMetadata, schema_id: int | None) -> TableMetadata:
    """The table's metadata as if this schema was its current one."""
    if schema_id is None or schema_id == metadata.current_schema_id:
        return metadata
    return metadata.model_copy(update={"current_schema_id": schema_id})


class IcebergScan:
    """Reads data files of one table under one schema. Picklable; holds storage properties with credentials.

    :param table: an open table; only its schema, name mapping and storage properties are kept.
    :param schema_id: schema to read with; the current one if None.
    :param columns: columns of the rows, in this order; all if None.
    :param row_filter: rows to keep, unbound; all if None.
    :raises ValueError: if the filter does not fit the schema, or a column is not in it.
    """

    def __init__(
        self,
        table: Table,
        schema_id: int | None = None,
        columns: Sequence[str] | None = None,
        row_filter: BooleanExpression | None = None,
    ) -> None:
        from pyiceberg.expressions.visitors import bind, extract_field_ids
        from pyiceberg.schema import Schema

        from airflow_ckpt_provider.scan.comparing import fitted

        metadata = with_schema(table.metadata, schema_id)
        whole = metadata.schema()
        fields = list(whole.fields) if columns is None else [_top_level(whole, column) for column in columns]
        bound = None if row_filter is None else bind(whole, fitted(row_filter, whole), case_sensitive=True)
        wanted = set() if bound is None else extract_field_ids(bound)
        also = [field for field in whole.fields if field not in fields and wanted & Schema(field).field_ids]
        self._filter = bound
        self._names = [field.name for field in fields]
        self._read_schema = Schema(*fields, *also)
        self._name_mapping: NameMapping | None = metadata.name_mapping()
        self._format_version = metadata.format_version
        self._location = metadata.location
        self._io_properties = {name: str(value) for name, value in table.io.properties.items() if value is not None}

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows: the table's own column names, without field ids."""
        import pyarrow as pa

        whole = plain_schema(self._read_schema)
        return pa.schema([whole.field(name) for name in self._names])

    def read(self, file: ScanFile, first_group: int = 0) -> Iterator[pa.RecordBatch]:
        """Live rows of ``file`` that pass the filter, in the file's order, in bounded memory (I11).

        :param first_group: the first row group that is read, where ``rows_of_groups`` has said which there are.
        """
        for batch, _ in self._read(file, first_group):
            yield batch

    def rows_of_groups(self, file: ScanFile) -> list[int] | None:
        """How many rows ``read`` yields of each row group, where the footer tells; None where deletes or the filter have a say."""
        if self._filter is not None or file.deletes or file.format != "PARQUET":
            return None
        from pyarrow.parquet import ParquetFile

        with self._io().new_input(file.path).open() as opened:
            return rows_of_groups(ParquetFile(opened).metadata)

    def read_addressed(self, file: ScanFile) -> Iterator[tuple[pa.RecordBatch, pa.Int64Array]]:
        """Like ``read``, with the address of each row: how many live rows of the file come before it.

        The address depends on the file and its deletes only, not on the filter or the columns.
        """
        return self._read(file, 0)

    def _read(self, file: ScanFile, first_group: int) -> Iterator[tuple[pa.RecordBatch, pa.Int64Array]]:
        import pyarrow as pa

        io = self._io()
        live = LiveRows(io, file.path, file.deletes)
        values = {
            field_id: constant_of(self._read_schema.find_type(field_id), value)
            for field_id, value in file.constants
            if field_id in self._read_schema.field_ids
        }
        batches = file_batches(io, file, self._read_schema, self._name_mapping, self._format_version, first_group)
        projection: Projection | None = None
        for file_schema, batch in batches:
            if projection is None:
                projection = Projection(file_schema, self._read_schema, values, file.path)
            kept = live.of(batch)
            first = live.count - kept.num_rows
            rows = projection(kept)
            addresses = pa.array(range(first, live.count), pa.int64())
            yield from self._keep(rows, addresses)

    def check(self) -> None:
        """Try the filter on no rows: it may compare what Arrow cannot compare.

        :raises pyarrow.ArrowInvalid: or another error of Arrow, if so.
        """
        import pyarrow as pa

        schema = plain_schema(self._read_schema)
        list(self._keep(pa.RecordBatch.from_pylist([], schema=schema), pa.array([], pa.int64())))

    def _keep(self, rows: pa.RecordBatch, addresses: pa.Int64Array) -> Iterator[tuple[pa.RecordBatch, pa.Int64Array]]:
        import pyarrow as pa

        if self._filter is None:
            if rows.num_rows:
                yield rows.select(self._names), addresses
            return
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        # As a table: batches of older Arrow versions cannot be filtered down to nothing.
        table = pa.Table.from_batches([rows]).append_column(_POSITION, addresses)
        kept = table.filter(expression_to_pyarrow(self._filter, self._read_schema))
        for batch in kept.combine_chunks().to_batches():
            if batch.num_rows:
                yield batch.select(self._names), batch.column(_POSITION)

    def _io(self) -> FileIO:
        from pyiceberg.io import load_file_io

        return load_file_io(self._io_properties, self._location)


def _top_level(schema: Schema, column: str) -> Any:  # noqa: ANN401 - NestedField
    for field in schema.fields:
        if field.name == column:
            return field
    raise ValueError(f"There is no column {column!r}; there are {', '.join(field.name for field in schema.fields)}.")
