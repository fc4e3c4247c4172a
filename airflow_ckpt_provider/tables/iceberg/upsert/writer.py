"""What executors do in an upsert: write staged source files, match files of the table, insert the rest, look for duplicates."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import RowCountError
from airflow_ckpt_provider.tables.iceberg.upsert.facts import IntermediateFile
from airflow_ckpt_provider.tables.iceberg.upsert.key_batches import key_batches, load, refuse_duplicates
from airflow_ckpt_provider.tables.iceberg.upsert.keys import key_columns
from airflow_ckpt_provider.tables.iceberg.upsert.matched_rows import MatchedRows
from airflow_ckpt_provider.tables.iceberg.upsert.matching import FileMatcher, Matches
from airflow_ckpt_provider.tables.iceberg.upsert.merge import Merge
from airflow_ckpt_provider.tables.iceberg.upsert.sidecar import SidecarWriter, mark_matched
from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFileReader, write_source_file
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter, delete_files
from airflow_ckpt_provider.tables.writer import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.locations import LocationProvider

    from airflow_ckpt_provider.scan.data_files import ScanFile
    from airflow_ckpt_provider.tables.iceberg.upsert.compare import Mask
    from airflow_ckpt_provider.tables.iceberg.upsert.sidecar import MatchSidecar
    from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFile
    from airflow_ckpt_provider.tables.iceberg.writer import WriterFacts

#: Rows of a staged source file that are inserted at a time.
_BATCH_ROWS = 65_536


class UpsertWriter(IcebergWriter):
    """Does the splits of an upsert. Picklable; holds storage properties with credentials, so it never goes into the store.

    :param facts: of the table; rows are read and written with the schema there, and written with the spec.
    :param table: an open table; only what scans keep of it is kept.
    :param schema_id: id of that schema.
    :param keys: ``upsert_keys``.
    :param buckets: number of buckets of keys, see ``buckets_for``; the same in all splits of an upsert.
    :param update: whether matched rows are updated (``when_matched``).
    :param insert: whether other rows are inserted (``when_not_matched``).
    :raises InvalidInputError: if the keys cannot be keys of this table.
    """

    def __init__(
        self,
        facts: WriterFacts,
        table: Table,
        schema_id: int,
        keys: Sequence[str],
        *,
        buckets: int = 1,
        update: bool = True,
        insert: bool = True,
    ) -> None:
        from airflow_ckpt_provider.scan.iceberg import IcebergScan

        super().__init__(facts)
        self._keys = key_columns(facts.schema, keys, facts.table)
        self._buckets = buckets
        self._update = update
        self._insert = insert
        self._read_keys = IcebergScan(table, schema_id, [key.name for key in self._keys])
        self._read_all = IcebergScan(table, schema_id)

    def write_source(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Keep the rows of one source split in a file; see ``Writer.write``."""
        io = self.facts.io()
        path = self._locations().new_data_location(f"{stem}-source.parquet")
        file = write_source_file(io, path, self.chunks(batches), self.facts.schema, self._keys, self._buckets)
        if file is None:
            return Written(0, 0, (), None)
        return Written(file.rows, file.bytes, (), None, intermediate=file)

    def check_unique(self, bucket: int, sources: Sequence[SourceFile]) -> None:
        """Check that no key of this bucket is in the source more than once.

        :param sources: all staged source files.
        :raises DuplicateKeyError: with examples.
        """
        for key_batch in key_batches(sources, only=bucket):
            refuse_duplicates(load(self.facts.io(), sources, self._keys, key_batch), self._keys)

    def match(self, of_table: ScanFile, sources: Sequence[SourceFile], stem: str) -> Written:
        """Match one live data file of the table with the source, and rewrite it if that changes a row of it.

        :param sources: all staged source files.
        :returns: with ``replaces`` if the file was rewritten, and as ``intermediate`` the sidecar, if a row matched.
        """
        try:
            return self._match(of_table, sources, stem)
        except BaseException:
            delete_files(self.facts.io(), [self._sidecar_path(stem)])
            raise

    def _match(self, of_table: ScanFile, sources: Sequence[SourceFile], stem: str) -> Written:
        io = self.facts.io()
        matcher = FileMatcher(io, lambda: self._read_keys.read(of_table), sources, self._keys)
        with contextlib.ExitStack() as stack:
            sidecar = stack.enter_context(SidecarWriter(io, self._sidecar_path(stem))) if self._insert else None
            matches = stack.enter_context(Matches()) if self._update else None
            gathered = stack.enter_context(MatchedRows(self.schema)) if self._update else None
            in_common = matcher.match(sidecar, matches, gathered)
            kept = sidecar.finish() if sidecar is not None else None
            if matches is None or gathered is None:
                counts = {"ignored": in_common.rows} if in_common.rows else {}
                return Written(0, 0, (), None, counts=counts, intermediate=kept)
            if not in_common.rows:
                return Written(0, 0, (), None)
            merge = Merge(lambda: self._read_all.read(of_table), matches, gathered, self.schema)
            if not merge.changes():
                return Written(0, 0, (), None, counts={"unchanged": in_common.rows}, intermediate=kept)
            written = self.write(merge.rows(), stem)
            if written.rows != in_common.live_rows:
                raise RowCountError(f"{of_table.path} holds {in_common.live_rows} rows, but {written.rows} were rewritten (I2).")
            return written._replace(replaces=(of_table.path,), counts=merge.counts, intermediate=kept)

    def insert(self, source: SourceFile, sidecars: Sequence[MatchSidecar], stem: str) -> Written:
        """Write the rows of one staged source file that no file of the table holds.

        :param sidecars: of all match splits.
        """
        import numpy as np

        io = self.facts.io()
        matched = np.zeros(source.rows, dtype=np.bool_)
        for sidecar in sidecars:
            mark_matched(io, sidecar, source.path, matched)
        wanted = int(source.rows - np.count_nonzero(matched))
        if not wanted:
            return Written(0, 0, (), None)
        written = self.write(self._unmatched(source, ~matched), stem)
        if written.rows != wanted:
            raise RowCountError(f"{wanted} rows of {source.path} are new, but {written.rows} were written (I2).")
        return written._replace(counts={"inserted": written.rows})

    def remove(self, written: Written) -> None:
        """Remove the files of a split that lost the race to be published."""
        super().remove(written)
        if isinstance(written.intermediate, IntermediateFile):
            delete_files(self.facts.io(), [written.intermediate.path])

    def _unmatched(self, source: SourceFile, wanted: Mask) -> Iterator[pa.RecordBatch]:
        """The wanted rows of a staged source file, under the table's own column names."""
        import pyarrow as pa

        with SourceFileReader(self.facts.io(), source.path) as reader:
            for span in reader.spans():
                mask = pa.array(wanted[span.start : span.start + span.rows])
                for batch in reader.read(span).filter(mask).to_batches(max_chunksize=_BATCH_ROWS):
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def _sidecar_path(self, stem: str) -> str:
        return self._locations().new_data_location(f"{stem}-matched.parquet")

    def _locations(self) -> LocationProvider:
        from pyiceberg.table.locations import load_location_provider

        return load_location_provider(self.facts.location, self.facts.properties)
