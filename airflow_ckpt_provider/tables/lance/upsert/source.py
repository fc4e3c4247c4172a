"""The keys of the staged source, a batch of keys at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the types of members
from airflow_ckpt_provider.checkpoint.documents import Part as StoredPart
from airflow_ckpt_provider.checkpoint.documents import Pinned
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.keys import key_batches as generic
from airflow_ckpt_provider.tables.keys.key_batches import BatchPart, KeptKeys, batches_of, bucket_of, buckets_for, collect
from airflow_ckpt_provider.tables.keys.values import canonical, hashes
from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
from airflow_ckpt_provider.tables.lance.intermediate import KeysSize
from airflow_ckpt_provider.tables.lance.upsert.sidecar import DatasetSidecar  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Plan, Staged
    from airflow_ckpt_provider.tables.keys.key_batches import KeyBatch, Keys
    from airflow_ckpt_provider.tables.keys.values import Hashes
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles

#: What a process keeps of the source's keys between splits.
KEPT = KeptKeys(64 << 20)

#: Rows of a batch of keys.
_BATCH_ROWS = 65_536


def require_keys(schema: pa.Schema, keys: Sequence[str], table: str) -> None:
    """Refuse columns that cannot be keys of this dataset.

    :raises InvalidInputError: saying why.
    """
    twice = sorted({key for key in keys if list(keys).count(key) > 1})
    if twice:
        raise InvalidInputError(f"upsert_keys={list(keys)!r} names {', '.join(map(repr, twice))} more than once.")
    missing = [key for key in keys if key not in schema.names]
    if missing:
        raise InvalidInputError(
            f"upsert_keys names {', '.join(map(repr, missing))}, which the dataset {table} does not have. Its columns are: "
            f"{', '.join(schema.names)}."
        )
    for key in keys:
        kind = schema.field(key).type
        if not _is_key(kind):
            raise InvalidInputError(
                f"The column {key!r} of {table} is a {kind}, which cannot be one of the upsert_keys: only numbers, text, bytes, "
                "dates and times can."
            )


class StoredSource(StoredPart, frozen=True, kw_only=True):
    """A ``StagedSource`` in a plan."""

    files: tuple[str, ...]
    rows: Count
    key_bytes: Count
    sizes: tuple[Count, ...]


class UpsertPinned(Pinned, frozen=True, kw_only=True, omit_defaults=True, tag="lance_upsert"):
    """What an upsert pins beside its splits.

    :param keeps_row_ids: whether updated rows keep their row ids.
    :param source: once it is staged.
    :param sidecars: which rows of the source were found, once all fragments are matched.
    :param replaced: the same of the generation that is replaced.
    """

    keeps_row_ids: bool = False
    source: StoredSource | None = None
    sidecars: tuple[DatasetSidecar, ...] = ()
    replaced: tuple[DatasetSidecar, ...] = ()


class StagedSource(NamedTuple):
    """The staged fragments of the source, and how their keys are cut into key_batches.

    :param rows: of the source, and bytes of their keys in memory.
    :param sizes: of the files in bytes.
    """

    files: tuple[str, ...]
    rows: int
    key_bytes: int
    sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, records: Sequence[Staged]) -> StagedSource:
        """From the published records of the source's splits."""
        manifests = [StagedFragments.from_json(record.manifest) for record in records if record.manifest is not None]
        fragments = [fragment for manifest in manifests for fragment in manifest.fragments]
        names, sizes = tuple(file.name for file in fragments), tuple(file.bytes for file in fragments)
        size = sum(kept.key_bytes for record in records if (kept := record.intermediate_as(KeysSize)) is not None)
        return cls(names, sum(manifest.rows for manifest in manifests), size, sizes)

    @property
    def stored(self) -> StoredSource:
        """As a plan stores it."""
        return StoredSource(files=self.files, rows=self.rows, key_bytes=self.key_bytes, sizes=self.sizes)

    @classmethod
    def of_plan(cls, plan: Plan) -> StagedSource | None:
        """As plans say from the second round on; None before it is staged."""
        pinned = plan.mode_as(UpsertPinned)
        source = None if pinned is None else pinned.source
        return None if source is None else cls(source.files, source.rows, source.key_bytes, source.sizes)

    @property
    def buckets(self) -> int:
        """Number of buckets of keys."""
        return buckets_for(self.key_bytes)

    def key_batches(self, only: int | None = None) -> list[KeyBatch]:
        """The batches into which all keys are cut, or those of one bucket."""
        return batches_of(self.key_bytes, self.rows, self.buckets, only) if self.files else []


class SourceKeys:
    """Reads the keys of a source on an executor."""

    def __init__(self, files: DatasetFiles, source: StagedSource, keys: Sequence[str]) -> None:
        self._files = files
        self.source = source
        self._keys = keys

    def kept(self, key_batch: KeyBatch) -> Keys:
        """The keys of a batch of keys, or what this process keeps of them."""
        return KEPT.get((self._files.uri, self.source.files, tuple(self._keys), key_batch), lambda: self.load(key_batch))

    def load(self, key_batch: KeyBatch) -> Keys:
        """The keys of a batch of keys; see ``collect``."""
        return collect(self._parts(key_batch), len(self._keys), self._keys, _shown)

    def require_unique(self, bucket: int) -> None:
        """Refuse a source with one key in several rows.

        :raises DuplicateKeyError: with examples.
        """
        for key_batch in self.source.key_batches(bucket):
            generic.refuse_duplicates(self.load(key_batch), self._keys, _shown)

    def _parts(self, key_batch: KeyBatch) -> Iterator[BatchPart]:
        import numpy as np
        from lance.file import LanceFileSession

        session = LanceFileSession(self._files.address, storage_options=self._files.storage_options)
        for number, name in enumerate(self.source.files):
            start = 0
            reader = session.open_reader(f"data/{name}", columns=list(self._keys))
            for batch in reader.read_all(batch_size=_BATCH_ROWS).to_batches():
                columns, hashed = keys_of(batch, self._keys)
                part = BatchPart(columns, hashed, number, np.arange(start, start + batch.num_rows, dtype=np.int64))
                start += batch.num_rows
                yield part.of(np.flatnonzero(_within(key_batch, hashed, self.source.buckets)))


def keys_of(batch: pa.RecordBatch, keys: Sequence[str]) -> tuple[list[pa.Array], Hashes]:
    """The keys of rows in their canonical form, and hashed."""
    columns = [canonical(_plain(batch.column(key))) for key in keys]
    return columns, hashes(columns)


def _within(key_batch: KeyBatch, hashed: Hashes, buckets: int) -> Any:  # noqa: ANN401 - a numpy array of booleans
    import numpy as np

    return np.isin(bucket_of(hashed, buckets), np.array(key_batch.buckets, dtype=np.uint64)) & key_batch.has(hashed, buckets)


def _plain(column: pa.Array) -> pa.Array:
    """Text and bytes in their usual layout."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return _plain(column.dictionary_decode())
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


def _is_key(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _is_key(kind.value_type)
    if types.is_floating(kind):
        return int(kind.bit_width) in {32, 64}
    return bool(
        types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind) or types.is_decimal128(kind)
        or types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
    )  # fmt: skip


def _shown(number: int, column: pa.Array, position: int) -> str:
    del number
    value = column[position].as_py()
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
