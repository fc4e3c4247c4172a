"""The rows of a split, gathered by partition, so that each partition gets whole files and large row groups, however many there are.

What fits into one chunk stays in memory. More goes to a local temporary file, chunk by chunk, sorted by partition, and is read back
partition by partition: memory is bounded (I11), and one file is open at a time.

Decision: the temporary file has no name, so that nothing stays of it when the process is killed; and it is read, not mapped: pages
that are mapped count as memory of the process where somebody watches that, such as YARN.
"""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING, Any, Self

from airflow_ckpt_provider.exceptions import no_room
from airflow_ckpt_provider.tables.fit import CHUNK_BYTES, CHUNK_ROWS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator
    from types import TracebackType

    import pyarrow as pa

    from airflow_ckpt_provider.tables.iceberg.partitions import Partition, Partitioner

#: Bytes of rows in the temporary file. Beyond that, what is there is given out, and each partition gets more files.
_MOST_ON_DISK = 8 << 30


def by_partition(chunks: Iterable[pa.Table], partitioner: Partitioner) -> Iterator[tuple[Partition, pa.Table]]:
    """Rows of partitions, all of one partition after the other, in their order, as tables of bounded size.

    :param chunks: rows in the table's schema, each of bounded size.
    """
    with _Spilled() as spilled:
        first: list[tuple[Partition, pa.Table]] | None = None
        for chunk in chunks:
            parts = list(partitioner.split(chunk))
            if first is None and not spilled.nbytes:
                first = parts
                continue
            for partition, rows in (*(first or ()), *parts):
                spilled.add(partition, rows)
            first = None
            if spilled.nbytes > _MOST_ON_DISK:
                yield from spilled.taken()
        yield from first or ()
        yield from spilled.taken()


class _Spilled:
    """Rows in a temporary file, each batch with its partition."""

    def __init__(self) -> None:
        self._file: Any = None
        self._writer: Any = None
        self._partitions: dict[Hashable, tuple[Partition, list[int]]] = {}
        self._batches = 0

    @property
    def nbytes(self) -> int:
        """Size of the file: that of many small batches is far from that of their rows."""
        return 0 if self._file is None else int(self._file.tell())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for opened in (self._writer, self._file):
            if opened is not None:
                # What is written last is not needed any more.
                with contextlib.suppress(OSError):
                    opened.close()

    def add(self, partition: Partition, rows: pa.Table) -> None:
        """Put rows behind those that the partition has."""
        import pyarrow as pa

        with self._writing():
            if self._writer is None:
                self._file = tempfile.TemporaryFile(prefix="partitions-")  # noqa: SIM115 - closed by taken or __exit__
                self._writer = pa.ipc.new_file(self._file, rows.schema)
            _, numbers = self._partitions.setdefault(partition.key, (partition, []))
            for batch in rows.to_batches():
                self._writer.write_batch(batch)
                numbers.append(self._batches)
                self._batches += 1

    def taken(self) -> Iterator[tuple[Partition, pa.Table]]:
        """All rows, which are gone then."""
        import pyarrow as pa

        if self._writer is None:
            return
        with self._writing():
            self._writer.close()
            self._file.flush()
        reader = pa.ipc.open_file(self._file)
        for partition, numbers in self._partitions.values():
            held: list[pa.RecordBatch] = []
            size = count = 0
            for number in numbers:
                batch = reader.get_batch(number)
                if held and (size + batch.nbytes > CHUNK_BYTES or count + batch.num_rows > CHUNK_ROWS):
                    yield partition, pa.Table.from_batches(held)
                    held, size, count = [], 0, 0
                held.append(batch)
                size += batch.nbytes
                count += batch.num_rows
            yield partition, pa.Table.from_batches(held)
        self._file.close()
        self._file = self._writer = None
        self._partitions, self._batches = {}, 0

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Within the block, an error says which disk it is about.

        :raises StageFailedError: if the rows cannot be written.
        """
        try:
            yield
        except OSError as error:
            raise no_room(
                "The rows of a split are gathered by partition",
                error,
                kept=f"{self.nbytes:,} bytes of them are there",
                instead="read smaller splits (max_split_bytes)",
            ) from error
