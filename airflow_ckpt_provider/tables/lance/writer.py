"""Writing one split on an executor: batches in, files of a dataset out, in constant memory however wide the rows are (I11)."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.exceptions import RowCountError
from airflow_ckpt_provider.tables.fit import Conform
from airflow_ckpt_provider.tables.lance.files import DatasetFiles  # noqa: TC001 - a dataclass holds it
from airflow_ckpt_provider.tables.lance.fragments import StagedFragment, StagedFragments
from airflow_ckpt_provider.tables.lance.scan import FileScan
from airflow_ckpt_provider.tables.lance.schema import as_read
from airflow_ckpt_provider.tables.storage import DataFile
from airflow_ckpt_provider.tables.writer import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Split, Staged

#: Rows of one file; Lance's own default.
FILE_ROWS = 1 << 20

#: Bytes of a file that are held before they are written: Lance's default is 8 MiB for each column, which is much for many.
CACHE_BYTES = 64 << 20


@dataclass(frozen=True)
class WriterFacts:
    """What a writer has to know of its dataset.

    :param table: the dataset's URI, for messages.
    :param schema: of the rows, as files are written.
    :param fields: see ``StagedFragments``.
    :param one_file: whether the rows of a split have to be in one file, however many they are.
    """

    table: str
    files: DatasetFiles
    schema: pa.Schema
    fields: tuple[int, ...]
    storage_version: str
    one_file: bool = False


class LanceWriter:
    """Writes splits of one checkpoint. Picklable; holds storage options, so it never goes into the store."""

    def __init__(self, facts: WriterFacts) -> None:
        self.facts = facts

    @property
    def schema(self) -> pa.Schema:
        """The dataset's schema."""
        return self.facts.schema

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Write the rows of one split; see ``Writer.write``."""
        files = _Files(self.facts, stem)
        rows = 0
        try:
            for batch in map(Conform(self.facts.schema, self.facts.table), batches):
                rows += batch.num_rows
                files.write(batch)
            closed = files.close()
        except BaseException:
            # Nothing refers to these files yet. Those of a killed process stay, and are known by their names (I4).
            files.abandon()
            raise
        if not closed:
            return Written(0, 0, (), None)
        staged = StagedFragments(fragments=tuple(closed), fields=self.facts.fields, storage_version=self.facts.storage_version)
        if staged.rows != rows:
            raise RowCountError(f"{rows} rows were written to {stem}, but its files hold {staged.rows} (I2).")
        named = tuple(StagedFile(self.facts.files.path(file.name), file.bytes) for file in closed)
        return Written(rows, sum(file.bytes for file in closed), named, staged.to_json())

    @property
    def folders(self) -> frozenset[str]:
        """The dataset's own; see ``Writer.folders``."""
        return frozenset([self.facts.files.uri])

    def holding(self, record: Staged) -> list[StagedFile]:
        """The data files; see ``Writer.holding``."""
        return list(record.files)

    def named_in(self, record: Staged) -> list[StagedFile]:
        """The data files; see ``Writer.named_in``."""
        return self.holding(record)

    def sizes(self, paths: Sequence[str]) -> Sequence[int | None]:
        """See ``Writer.sizes``."""
        return self.facts.files.sizes(paths)

    def read(self, record: Staged) -> Iterator[pa.RecordBatch]:
        """Rows of the data files; see ``Writer.read``."""
        scan, files = FileScan(self.facts.files, self.facts.schema), self.facts.files
        for file in record.files:
            yield from scan.read(DataFile(path=file.path.removeprefix(files.path("")), bytes=file.bytes))

    def rewrite(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Write rows that were read from staged files; see ``as_read``."""
        return LanceWriter(dataclasses.replace(self.facts, schema=as_read(self.facts.schema))).write(batches, stem)

    def work(self, split: Split, stem: str) -> Written:
        """Appending asks for no table splits."""
        del stem
        raise NotImplementedError(f"The split {split.id} asks for {split.task!r}, which a plain write does not do.")

    def remove(self, written: Written) -> None:
        """Remove the files of a split that lost the race to be published."""
        self.facts.files.delete(file.path for file in written.files)


class _Files:
    """The files of one split, one open at a time."""

    def __init__(self, facts: WriterFacts, stem: str) -> None:
        self._facts = facts
        self._stem = stem
        self._names: list[str] = []
        self._writer: Any = None
        self._rows = 0
        self._counted: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            if self._writer is None:
                self._open()
            part = batch if self._facts.one_file else batch.slice(0, FILE_ROWS - self._rows)
            self._writer.write_batch(part)
            self._rows += part.num_rows
            if self._rows == FILE_ROWS and not self._facts.one_file:
                self._close()
            batch = batch.slice(part.num_rows)

    def close(self) -> list[StagedFragment]:
        """Close the last file; all of them."""
        self._close()
        files = self._facts.files
        sizes = files.sizes([files.path(name) for name in self._names])
        return [
            StagedFragment(name, rows, size)
            for name, rows, size in zip(self._names, self._counted, sizes, strict=True)
            if size is not None
        ]

    def abandon(self) -> None:
        # An unfinished writer ends what it began when it is closed. What went wrong first is what matters: a file that cannot be
        # deleted now is found by a clean-up, by its name.
        files = self._facts.files
        with contextlib.suppress(Exception):
            self._close()
        with contextlib.suppress(Exception):
            files.delete(files.path(name) for name in self._names)

    def _open(self) -> None:
        from lance.file import LanceFileSession

        facts = self._facts
        name = f"{self._stem}-{len(self._names):05d}.lance"
        session = LanceFileSession(facts.files.write_address, storage_options=facts.files.storage_options)
        self._writer = session.open_writer(
            f"data/{name}", schema=facts.schema, version=facts.storage_version, data_cache_bytes=CACHE_BYTES
        )
        self._names.append(name)
        self._rows = 0

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._counted.append(int(writer.close()))
