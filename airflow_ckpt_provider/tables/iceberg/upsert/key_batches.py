"""The keys of staged source files, a batch of keys at a time."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFileReader
from airflow_ckpt_provider.tables.keys import key_batches as generic
from airflow_ckpt_provider.tables.keys.key_batches import BatchPart, KeptKeys, batches_of, collect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.io import FileIO

    from airflow_ckpt_provider.tables.iceberg.upsert.keys import KeyColumn
    from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFile
    from airflow_ckpt_provider.tables.keys.key_batches import KeyBatch, Keys

#: Bytes of memory for the key_batches that a process keeps between splits.
KEPT_BYTES = 64 << 20

#: What this process keeps. Staged source files are never written twice under one name, so that nothing kept becomes wrong.
KEPT = KeptKeys(KEPT_BYTES)


def key_batches(sources: Sequence[SourceFile], only: int | None = None) -> list[KeyBatch]:
    """The batches into which all keys are cut.

    :param only: the bucket whose keys are; all if None.
    """
    if not sources:
        return []
    return batches_of(sum(file.key_bytes for file in sources), sum(file.rows for file in sources), sources[0].buckets, only)


def load(io: FileIO, sources: Sequence[SourceFile], keys: Sequence[KeyColumn], key_batch: KeyBatch) -> Keys:
    """The keys of a batch of keys; see ``collect``."""
    return collect(_parts(io, sources, keys, key_batch), len(keys), [key.name for key in keys], _Shown(keys))


def kept(io: FileIO, sources: Sequence[SourceFile], keys: Sequence[KeyColumn], key_batch: KeyBatch) -> Keys:
    """As ``load``, or from what this process keeps."""
    name = (tuple(source.path for source in sources), tuple(key.field_id for key in keys), key_batch)
    return KEPT.get(name, lambda: load(io, sources, keys, key_batch))


def _parts(io: FileIO, sources: Sequence[SourceFile], keys: Sequence[KeyColumn], key_batch: KeyBatch) -> Iterator[BatchPart]:
    import numpy as np

    for number, source in enumerate(sources):
        with SourceFileReader(io, source.path) as reader:
            for span, columns, hashed in reader.keys(keys, key_batch.buckets):
                part = BatchPart(columns, hashed, number, np.arange(span.start, span.start + span.rows, dtype=np.int64))
                yield part.of(np.flatnonzero(key_batch.has(hashed, source.buckets))) if key_batch.shares > 1 else part


def refuse_duplicates(loaded: Keys, keys: Sequence[KeyColumn]) -> None:
    """Refuse a source in which a key is there more than once.

    :raises DuplicateKeyError: with examples.
    """
    generic.refuse_duplicates(loaded, [key.name for key in keys], _Shown(keys))


class _Shown:
    """Values of keys as an error shows them."""

    def __init__(self, keys: Sequence[KeyColumn]) -> None:
        self._keys = keys

    def __call__(self, number: int, column: pa.Array, position: int) -> str:
        return _shown(self._keys[number], column, position)


def _shown(key: KeyColumn, column: pa.Array, position: int) -> str:
    """A key's value as an error shows it."""
    import pyarrow as pa
    from pyiceberg.types import DoubleType, FloatType, UUIDType

    value: Any = column[position].as_py()
    if value is None:
        return "null"
    if isinstance(key.kind, FloatType | DoubleType):
        # Canonical floats are bit patterns.
        value = column.slice(position, 1).view(pa.float32() if isinstance(key.kind, FloatType) else pa.float64())[0].as_py()
    elif isinstance(key.kind, UUIDType):
        return str(uuid.UUID(bytes=value))
    elif isinstance(value, dt.date | dt.time):
        return value.isoformat()
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
