"""What executors read an Iceberg table with, and what a split of it stores."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Part, part_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import InputChangedError, escaped
from airflow_ckpt_provider.scan.batches import groups_behind
from airflow_ckpt_provider.scan.data_files import ScanFile  # noqa: TC001 - msgspec reads annotations
from airflow_ckpt_provider.scan.iceberg import IcebergScan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Split


class IcebergSplit(Part, frozen=True):
    """What a split reads.

    :param table_uuid: identity of the table.
    :param snapshot_id: the pinned snapshot.
    :param schema_id: the pinned schema.
    """

    table_uuid: str
    snapshot_id: int | None
    schema_id: int
    files: tuple[ScanFile, ...]

    def to_json(self) -> JsonObject:
        """As stored in a plan."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: JsonObject) -> IcebergSplit:
        """As read from a plan."""
        return part_of(value, cls)


class IcebergReader:
    """Reads splits of ``IcebergTable``. Picklable; holds credentials, so it never goes into the store.

    It is made before it is known which splits it will read, and so can read under each schema of the table.
    """

    def __init__(self, table: Table, columns: Sequence[str] | None, row_filter: BooleanExpression | None) -> None:
        self._name = ".".join(table.name())
        self._uuid = str(table.metadata.table_uuid)
        self._scans: dict[int, IcebergScan] = {}
        self._at: ScanFile | None = None
        for schema_id in table.schemas():
            try:
                self._scans[schema_id] = IcebergScan(table, schema_id, columns, row_filter)
            except ValueError:
                # A schema that these columns do not fit was never pinned for them.
                continue

    def read(self, split: Split, expected: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """Rows of the split, file after file, in each file's order.

        :raises InputChangedError: if a file is gone.
        """
        del expected
        wanted = IcebergSplit.from_json(split.read)
        return self._read(wanted, wanted.files)

    def read_near(self, split: Split, expected: pa.Schema | None, row: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        """The same without the row groups before that of a row, as far as footers tell which those are."""
        del expected
        wanted, begin = IcebergSplit.from_json(split.read), 0
        scan = self._scan(wanted)
        for number, file in enumerate(wanted.files):
            with self._finding(wanted, file):
                groups = scan.rows_of_groups(file)
            if groups is None:
                return begin, self._read(wanted, wanted.files[number:])
            first, rows = groups_behind(groups, row - begin)
            begin += rows
            if first < len(groups):
                return begin, self._read(wanted, wanted.files[number:], first)
        return begin, iter(())

    def _scan(self, wanted: IcebergSplit) -> IcebergScan:
        """What reads files under the schema of a split.

        :raises InputChangedError: if the table has it no more.
        """
        scan = self._scans.get(wanted.schema_id)
        if scan is None or wanted.table_uuid != self._uuid:
            raise InputChangedError(
                f"The table {self._name} is not the one that was planned any more, or its schema {wanted.schema_id} was removed. "
                f"Redo the write: {how_to_restart()}."
            )
        return scan

    def _read(self, wanted: IcebergSplit, files: Sequence[ScanFile], first_group: int = 0) -> Iterator[pa.RecordBatch]:
        """Rows of files, from a row group of the first one on."""
        scan = self._scan(wanted)
        for file in files:
            self._at = file
            with self._finding(wanted, file):
                yield from scan.read(file, first_group)
            first_group = 0

    @contextlib.contextmanager
    def _finding(self, wanted: IcebergSplit, file: ScanFile) -> Iterator[None]:
        """Within the block, a file that is gone is an error that says what that means.

        :raises InputChangedError: naming it.
        """
        try:
            yield
        except FileNotFoundError as error:
            raise InputChangedError(
                f"The file {file.path} of {self._name}, or one of its deletes, is gone. Snapshot {wanted.snapshot_id}, which "
                "this write reads, may have been expired. To redo the write on the table as it is now: "
                f"{how_to_restart()}."
            ) from error

    def places(self, split: Split) -> list[str]:
        """The data file at which it is, or all."""
        files = IcebergSplit.from_json(split.read).files
        return [escaped(file.path) for file in (files if self._at is None or self._at not in files else [self._at])]
