"""A file of rejected rows: their columns as they came in, and beside them what was wrong and where they stood.

It is in the store when its writer has published it, whole or not at all, and is named by a record after that. Its SHA-256, which
the record has, is checked before anything of it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from typing import IO, TYPE_CHECKING, Any, Self

from airflow_ckpt_provider.checkpoint.documents import RejectedFile
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.checkpoint.store import StoreError
from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.transforms.steps import FailedRows

#: Columns beside those of the input: type and message of the error, the user's lines, the split, and the row of its input.
ERROR, TRACEBACK, SPLIT, ROW = COLUMNS = ("_error", "_traceback", "_split", "_row")

#: Bytes of rows that are held in memory, by a writer and by a reader.
_HELD = 16 << 20

#: Rows that a reader hands out at a time.
_BATCH = 1024


class RejectedRows:
    """The rejected rows of a split, or of a piece of it, being written. Rows of other columns begin another file.

    :param split_id: whose rows they are.
    :param writer: attempt and task attempt, and the piece if it is one.
    :param place_of: where a row stood in the input, if it is not the split that was read there.
    """

    def __init__(
        self,
        store: CheckpointStore,
        paths: CheckpointPaths,
        split_id: str,
        writer: str,
        place_of: Callable[[int], tuple[str, int]] | None = None,
    ) -> None:
        self._place_of = place_of or (lambda row: (split_id, row))
        self._store = store
        self._paths = paths
        self._split = split_id
        self._writer = writer
        self._open: list[_Part] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._open:
            part.close()

    def add(self, failed: FailedRows) -> None:
        """Keep rows at which a transform has failed.

        :raises InvalidInputError: if the input has a column with the name of one of ours, or one that cannot be kept.
        """
        import pyarrow as pa

        rows = failed.rows
        twice = [name for name in rows.schema.names if name in COLUMNS]
        if twice:
            raise InvalidInputError(
                f"Rows of the input cannot be rejected: they have the column {twice[0]}, and rejected rows are kept with columns "
                f"of the names {', '.join(COLUMNS)}. Read the input without it, or under another name."
            )
        failures, places = failed.failures, [self._place_of(failure.row) for failure in failed.failures]
        more = {
            ERROR: pa.array([failure.error for failure in failures], pa.string()),
            TRACEBACK: pa.array([failure.traceback for failure in failures], pa.string()),
            SPLIT: pa.array([split for split, _ in places], pa.string()),
            ROW: pa.array([row for _, row in places], pa.int64()),
        }
        schema = pa.schema([*rows.schema, *(pa.field(name, column.type) for name, column in more.items())])
        batch = pa.RecordBatch.from_arrays([*rows.columns, *more.values()], schema=schema)
        if not self._open or self._open[-1].schema != schema:
            number = len(self._open)
            self._open.append(_Part(f"{self._writer}r{number}" if number else self._writer, schema))
        self._open[-1].add(batch)

    def publish(self) -> tuple[RejectedFile, ...]:
        """Put the files into the store. Comes before a record names them."""
        return tuple(self._published(part) for part in self._open)

    def _published(self, part: _Part) -> RejectedFile:
        import obstore

        name = self._paths.rejected(self._split, part.writer)
        size, digest = part.finish()
        try:
            obstore.put(self._store.location.open(create=True), name, part.file)
        except Exception as error:
            said = self._store.location.said(error)
            raise StoreError(f"Could not write {name} to the checkpoint store {self._store.uri}: {said}") from error
        self._store.location.restrict(name)
        return RejectedFile(self._split, part.writer, part.rows, size, digest)


class _Part:
    """Rows of the same columns, on disk: those of a large split need not fit into memory (I11)."""

    def __init__(self, writer: str, schema: pa.Schema) -> None:
        self.writer = writer
        self.schema = schema
        self.rows = 0
        self.file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - closed by whoever holds this
        self._parquet: Any = None
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= _HELD:
            self._flush()

    def finish(self) -> tuple[int, str]:
        """Write what is held, and go to the beginning of the file; its size and SHA-256."""
        self._flush()
        self._parquet.close()
        self._parquet = None
        size = self.file.tell()
        self.file.seek(0)
        digest = hashlib.file_digest(self.file, "sha256").hexdigest()
        self.file.seek(0)
        return size, digest

    def close(self) -> None:
        if self._parquet is not None:
            self._parquet.close()
        self.file.close()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            if self._parquet is None:
                self._parquet = pq.ParquetWriter(self.file, self.schema, compression="zstd")
            if self._held:
                self._parquet.write_table(pa.Table.from_batches(self._held, self.schema))
        except pa.ArrowNotImplementedError as error:
            raise InvalidInputError(
                f"Rows of the input cannot be rejected: rejected rows are kept as Parquet, which has no such columns ({error}). "
                "Read the input without them, or leave out on_error."
            ) from error
        self._held, self._bytes = [], 0


def remove(store: CheckpointStore, names: Iterable[str]) -> None:
    """Remove files that no record names, or will name. One that is gone already is gone."""
    import obstore

    objects = store.location.open(create=True)
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            obstore.delete(objects, name)


def rows_in(
    store: CheckpointStore, paths: CheckpointPaths, file: RejectedFile, columns: Sequence[str] | None = ()
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in batches.

    :param columns: those of ours that are wanted beside those of the input; None for ours alone.
    :raises CorruptObjectError: if the file is gone or is not the one that the record names (I7, I15).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as local:
        _fetch(store, paths, file, local)
        parquet = pq.ParquetFile(local)
        names = parquet.schema_arrow.names
        wanted = (
            [name for name in names if name in COLUMNS]
            if columns is None
            else [name for name in names if name not in COLUMNS or name in columns]
        )
        for batch in parquet.iter_batches(_BATCH):
            # By selection and not while reading: that would take a name with a dot for a path.
            yield pa.RecordBatch.from_arrays(
                [batch.column(name) for name in wanted], schema=pa.schema(map(batch.schema.field, wanted))
            )


def require_there(store: CheckpointStore, paths: CheckpointPaths, files: Sequence[RejectedFile]) -> None:
    """Refuse files that are gone, before anything is read.

    :raises CorruptObjectError: naming one.
    """
    stored = in_store(store, paths) if files else {}
    for file in files:
        name = paths.rejected(file.split, file.writer)
        if name not in stored:
            raise _damaged(store, paths, file, "is gone")
        if stored[name] != file.bytes:
            raise _damaged(store, paths, file, "has another size than its record says")


def in_store(store: CheckpointStore, paths: CheckpointPaths) -> dict[str, int]:
    """The files of rejected rows of a generation, whether a record names them or not: their bytes by their names."""
    import obstore

    try:
        chunks = obstore.list(store.location.open(create=True), paths.rejected_folder)
        return {item["path"]: item["size"] for chunk in chunks for item in chunk}
    except Exception as error:
        said = store.location.said(error)
        raise StoreError(f"Could not list {paths.rejected_folder} in the checkpoint store {store.uri}: {said}") from error


def _fetch(store: CheckpointStore, paths: CheckpointPaths, file: RejectedFile, local: IO[bytes]) -> None:
    import obstore

    name, digest, size = paths.rejected(file.split, file.writer), hashlib.sha256(), 0
    try:
        answer = obstore.get(store.location.open(), name)
        if answer.meta["size"] != file.bytes:
            raise _damaged(store, paths, file, "has another size than its record says")
        for chunk in answer.stream():
            digest.update(chunk)
            size += len(chunk)
            local.write(chunk)
    except FileNotFoundError as error:
        raise _damaged(store, paths, file, "is gone") from error
    except CorruptObjectError:
        raise
    except Exception as error:
        said = store.location.said(error)
        raise StoreError(f"Could not read {name} from the checkpoint store {store.uri}: {said}") from error
    if (size, digest.hexdigest()) != (file.bytes, file.sha256):
        raise _damaged(store, paths, file, "does not match the checksum in its record")
    local.seek(0)


def _damaged(store: CheckpointStore, paths: CheckpointPaths, file: RejectedFile, what: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"Object {paths.rejected(file.split, file.writer)} in the checkpoint store {store.uri} {what}. It holds {file.rows:,} rows "
        f"of the input at which a transform failed. Restore it, or redo the write that has rejected them: {how_to_restart()}."
    )
