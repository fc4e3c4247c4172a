"""What executors do in an upsert: write staged source files, match files of the table, insert the rest, look for duplicates."""

from __future__ import annotations

import contextlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import RowCountError
from airflow_ckpt_provider.tables.iceberg.upsert.facts import IntermediateFile
from airflow_ckpt_provider.tables.iceberg.upsert.grouping import stem_of_rewritten
from airflow_ckpt_provider.tables.iceberg.upsert.key_batches import key_batches, load, refuse_duplicates
from airflow_ckpt_provider.tables.iceberg.upsert.keys import key_columns
from airflow_ckpt_provider.tables.iceberg.upsert.matched_rows import MatchedRows
from airflow_ckpt_provider.tables.iceberg.upsert.matching import Matcher, Matches
from airflow_ckpt_provider.tables.iceberg.upsert.merge import Merge
from airflow_ckpt_provider.tables.iceberg.upsert.sidecar import SidecarWriter, mark_matched
from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFileReader, write_source_file
from airflow_ckpt_provider.tables.iceberg.writer import IcebergWriter, delete_files
from airflow_ckpt_provider.tables.writer import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
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

    def match(self, files: Sequence[ScanFile], sources: Sequence[SourceFile], stem: str) -> Written:
        """Match live data files of the table with the source, and rewrite each of which that changes a row.

        :param files: of one group.
        :param sources: all staged source files.
        :returns: with ``replaces`` for the files that were rewritten, and as ``intermediate`` the sidecar, if a row matched.
        """
        try:
            return self._match(files, sources, stem)
        except BaseException:
            delete_files(self.facts.io(), [self._sidecar_path(stem)])
            raise

    def _match(self, files: Sequence[ScanFile], sources: Sequence[SourceFile], stem: str) -> Written:
        io = self.facts.io()
        matcher = Matcher(io, [partial(self._read_keys.read, file) for file in files], sources, self._keys)
        with contextlib.ExitStack() as stack:
            sidecar = stack.enter_context(SidecarWriter(io, self._sidecar_path(stem))) if self._insert else None
            matches = stack.enter_context(Matches()) if self._update else None
            gathered = stack.enter_context(MatchedRows(self.schema)) if self._update else None
            in_common = matcher.match(sidecar, matches, gathered)
            kept = sidecar.finish() if sidecar is not None else None
            if not in_common:
                return Written(0, 0, (), None)
            if matches is None or gathered is None:
                return Written(0, 0, (), None, counts={"ignored": in_common}, intermediate=kept)
            return self._rewritten(zip(files, matcher.rows, strict=True), matches, gathered, stem)._replace(intermediate=kept)

    def _rewritten(self, files: Iterable[tuple[ScanFile, int]], matches: Matches, gathered: MatchedRows, stem: str) -> Written:
        """Write each file anew of which a row changes.

        :param files: each with the number of its live rows.
        """
        counts: Counter[str] = Counter()
        replaced: list[str] = []
        written: list[DataFile] = []
        start = 0
        try:
            for number, (file, rows) in enumerate(files):
                in_common = matches.count(start, rows)
                merge = Merge(partial(self._read_all.read, file), matches, start, gathered, self.schema)
                start += rows
                if not in_common or not merge.changes():
                    counts["unchanged"] += in_common
                    continue
                anew = self.write_files(self.chunks(merge.rows()), stem_of_rewritten(stem, number))
                written += anew
                count = sum(data_file.record_count for data_file in anew)
                if count != rows:
                    raise RowCountError(f"{file.path} holds {rows} rows, but {count} were rewritten (I2).")
                counts.update(merge.counts)
                replaced.append(file.path)
        except BaseException:
            # As in ``write_files``: what cannot be deleted is known by its name.
            with contextlib.suppress(Exception):
                delete_files(self.facts.io(), [data_file.file_path for data_file in written])
            raise
        return self.listed(written, stem)._replace(replaces=tuple(replaced), counts=dict(counts))

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
