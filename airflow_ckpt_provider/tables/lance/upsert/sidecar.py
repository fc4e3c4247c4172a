"""Sidecars: which rows of the staged source have a key that a fragment of the dataset has.

What becomes of a row of the source may depend on that; and what is to be removed if the write is replaced does, even months later.
So a sidecar is in a folder of its own, which Lance's clean-up of old versions does not look into. It is an Arrow file of row
numbers; each of its batches is about one file of the source, and the file says which. Where updated rows keep their row ids, the
ids of the rows that were found are in a second column.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the types of members
from airflow_ckpt_provider.checkpoint.documents import Part
from airflow_ckpt_provider.checkpoint.location import StorageLocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from obstore.store import ObjectStore

    from airflow_ckpt_provider.tables.keys.index import Positions
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles

    Mask = npt.NDArray[np.bool_]
    Ids = npt.NDArray[np.uint64]

#: Folder of the sidecars, below the dataset's root.
FOLDER = "_checkpoints"

#: Name under which a sidecar says which file of the source each of its batches is about.
_SOURCES = b"sources"

#: Files of the source that a record names; if more are concerned, it names none, and the sidecar has to be looked into.
_NAMED = 16

#: Stands for no row id: the highest of their numbers, which Lance gives to no row.
NO_ID = (1 << 64) - 1

#: Sidecars that are read at the same time.
READS = 16


class DatasetSidecar(Part, frozen=True, kw_only=True):
    """One sidecar.

    :param name: below the dataset's root.
    :param sources: numbers of the files of the source that it is about; empty if these are many.
    """

    name: str
    bytes: Count
    sources: tuple[Count, ...] = ()

    def may_concern(self, source: int) -> bool:
        """Whether it can name rows of this file of the source."""
        return not self.sources or source in self.sources


def write_sidecar(files: DatasetFiles, sources: Positions, rows: Positions, stem: str, ids: Ids | None = None) -> DatasetSidecar:
    """Write which rows of the source were found.

    :param sources: the number of its file, for each row.
    :param rows: its number in that file.
    :param ids: the row id that it takes over, if it takes over any.
    """
    import numpy as np
    import pyarrow as pa

    order = np.lexsort((rows, sources))
    numbers, starts = np.unique(sources[order], return_index=True)
    named: list[int] = numbers.tolist()
    columns: list[tuple[pa.Field, Any]] = [(pa.field("row", pa.uint32(), nullable=False), rows[order].astype(np.uint32))]
    if ids is not None:
        columns.append((pa.field("id", pa.uint64(), nullable=False), ids[order]))
    schema = pa.schema([field for field, _ in columns], {_SOURCES: msgspec.json.encode(named)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for parts in zip(*(np.split(values, starts[1:]) for _, values in columns), strict=True):
            writer.write_batch(pa.record_batch([pa.array(part) for part in parts], schema=schema))
    name = f"{FOLDER}/{stem}-matched.arrow"
    file = files.put(name, sink.getvalue().to_pybytes())
    return DatasetSidecar(name=name, bytes=file.bytes, sources=tuple(named) if len(named) <= _NAMED else ())


def matched_rows(files: DatasetFiles, sidecars: Iterable[DatasetSidecar], source: int, rows: int) -> Mask:
    """Which rows of one file of the source any of the sidecars names.

    :param rows: number of its rows.
    :raises OSError: if a sidecar is gone or damaged; ``ValueError`` as well.
    """
    import numpy as np

    matched = np.zeros(rows, dtype=np.bool_)
    for batch in _batches(files, sidecars, source):
        matched[batch.column("row").to_numpy()] = True
    return matched


def kept_ids(files: DatasetFiles, sidecars: Iterable[DatasetSidecar], source: int, rows: int) -> Ids:
    """The row id that each row of one file of the source takes over; ``NO_ID`` where it was not found. See ``matched_rows``.

    Of several rows of the dataset with its key it takes the place of the one that was there first, by their ids.
    """
    import numpy as np

    ids = np.full(rows, NO_ID, dtype=np.uint64)
    for batch in _batches(files, sidecars, source):
        numbers = batch.column("row").to_numpy()
        ids[numbers] = np.minimum(ids[numbers], batch.column("id").to_numpy())
    return ids


def _batches(files: DatasetFiles, sidecars: Iterable[DatasetSidecar], source: int) -> Iterator[pa.RecordBatch]:
    """What the sidecars say of one file of the source: in each of these a row is there once at most."""
    concerned = (sidecar for sidecar in sidecars if sidecar.may_concern(source))
    with ThreadPoolExecutor(READS) as pool:
        for batches in pool.map(lambda sidecar: _read(files, sidecar, source), concerned):
            yield from batches


def _read(files: DatasetFiles, sidecar: DatasetSidecar, source: int) -> list[pa.RecordBatch]:
    """What it says of this file of the source; of the sidecar no more is read than that takes."""
    import pyarrow as pa

    with opened(files, sidecar) as stream, pa.ipc.open_file(stream) as file:
        sources = msgspec.json.decode(file.schema.metadata[_SOURCES], type=list[int])
        return [file.get_batch(number) for number, named in enumerate(sources) if named == source]


def opened(files: DatasetFiles, sidecar: DatasetSidecar) -> pa.PythonFile:
    """A sidecar, to be read in parts."""
    import pyarrow as pa

    return pa.PythonFile(_Opened(StorageLocation(files.uri, files.options).open(), sidecar), mode="r")


class _Opened:
    """A sidecar as Arrow opens files: obstore's reader does not say whether it is closed."""

    closed = False

    def __init__(self, store: ObjectStore, sidecar: DatasetSidecar) -> None:
        import obstore

        self._reader = obstore.open_reader(store, sidecar.name, size=sidecar.bytes)
        self.seek, self.tell = self._reader.seek, self._reader.tell

    def read(self, size: int) -> bytes:
        return bytes(self._reader.read(size))

    def close(self) -> None:
        self._reader.close()
