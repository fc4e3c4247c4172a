"""The keys of a source, as many at a time as memory allows: bucket by bucket, and parts of a bucket where even that is much."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.exceptions import DuplicateKeyError
from airflow_ckpt_provider.tables.keys.index import OVERHEAD_BYTES, KeyIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.tables.keys.index import Duplicates, Positions
    from airflow_ckpt_provider.tables.keys.values import Hashes

#: Bytes of memory for the keys of one batch of keys.
PORTION_BYTES = 64 << 20

#: Bytes of the source for each bucket, and the most buckets there are.
_BUCKET_BYTES, _MOST_BUCKETS = 128 << 20, 64

#: Bytes of memory for a key besides the key itself: the index, and where its row is.
_ROW_BYTES = OVERHEAD_BYTES + 12

#: Keys that an error shows.
_EXAMPLES = 5


def buckets_for(source_bytes: int) -> int:
    """Number of buckets for a source of this many bytes."""
    return max(1, min(_MOST_BUCKETS, -(-source_bytes // _BUCKET_BYTES)))


def bucket_of(hashed: Hashes, buckets: int) -> Hashes:
    """Bucket of each key."""
    import numpy as np

    return hashed % np.uint64(buckets)


class KeyBatch(NamedTuple):
    """Keys of these buckets, and of these only one of several equal shares."""

    buckets: tuple[int, ...]
    share: int = 0
    shares: int = 1

    def has(self, hashed: Hashes, buckets: int) -> Any:  # noqa: ANN401 - a numpy array of booleans
        """Which of these keys belong to the share; their bucket must be one of the batch of keys's."""
        import numpy as np

        return (hashed // np.uint64(buckets)) % np.uint64(self.shares) == np.uint64(self.share)

    def holds(self, hashed: Hashes, buckets: int) -> Any:  # noqa: ANN401 - a numpy array of booleans
        """Which of these keys belong to the batch of keys."""
        import numpy as np

        if len(self.buckets) == buckets and self.shares == 1:
            return np.ones(len(hashed), dtype=np.bool_)
        return np.isin(bucket_of(hashed, buckets), np.array(self.buckets, dtype=np.uint64)) & self.has(hashed, buckets)


class Keys(NamedTuple):
    """The keys of a batch of keys: where they are in memory, and which row of which source each is of."""

    known: KeyIndex
    source: Positions
    row: Positions

    @property
    def nbytes(self) -> int:
        return self.known.nbytes + int(self.source.nbytes + self.row.nbytes)


def batches_of(key_bytes: int, rows: int, buckets: int, only: int | None = None) -> list[KeyBatch]:
    """The batches into which all keys are cut, each of about ``PORTION_BYTES`` at most.

    :param key_bytes: bytes of all keys in memory, and their number.
    :param only: the bucket whose keys are; all if None.
    """
    each = max(1, (key_bytes + _ROW_BYTES * rows) // buckets)
    wanted = list(range(buckets)) if only is None else [only]
    if each > PORTION_BYTES:
        shares = -(-each // PORTION_BYTES)
        return [KeyBatch((bucket,), share, shares) for bucket in wanted for share in range(shares)]
    together = PORTION_BYTES // each
    return [KeyBatch(tuple(wanted[start : start + together])) for start in range(0, len(wanted), together)]


class BatchPart(NamedTuple):
    """Keys that were read together: in their canonical form, hashed, the number of their source, and of their rows in it."""

    columns: list[pa.Array]
    hashed: Hashes
    source: int
    rows: Positions

    @property
    def nbytes(self) -> int:
        return int(sum(column.nbytes for column in self.columns)) + len(self.rows) * _ROW_BYTES

    def of(self, positions: Any) -> BatchPart:  # noqa: ANN401 - a numpy array
        """Some of them."""
        import pyarrow as pa

        taken = pa.array(positions)
        return BatchPart([column.take(taken) for column in self.columns], self.hashed[positions], self.source, self.rows[positions])


def collect(parts: Iterable[BatchPart], columns: int, names: Sequence[str], shown: Callable[[int, pa.Array, int], str]) -> Keys:
    """The keys of a batch of keys, in the order of the sources and of the rows in each.

    :param columns: number of key columns.
    :param names: theirs, for messages.
    :param shown: a value of a key column, by the column's number, as messages show it.
    :raises DuplicateKeyError: if there are far more of them than was reckoned, because many are the same.
    """
    held: list[BatchPart] = []
    size, limit = 0, 2 * PORTION_BYTES
    for part in parts:
        if not len(part.rows):
            continue
        held.append(part)
        size += part.nbytes
        if size > limit:
            refuse_duplicates(_joined(held, columns), names, shown)
            limit = 2 * size
    return _joined(held, columns)


def refuse_duplicates(loaded: Keys, names: Sequence[str], shown: Callable[[int, pa.Array, int], str]) -> None:
    """Refuse a source in which a key is there more than once; see ``collect``.

    :raises DuplicateKeyError: with examples.
    """
    duplicates: Duplicates | None = loaded.known.duplicates(_EXAMPLES)
    if duplicates is None:
        return
    columns = list(enumerate(loaded.known.columns))
    examples = [
        f"({', '.join(shown(number, column, position) for number, column in columns)}): {times} rows"
        for position, times in zip(duplicates.positions, duplicates.times, strict=True)
    ]
    raise DuplicateKeyError(
        f"The source of the upsert has rows with the same key ({', '.join(map(repr, names))}), so that it is undefined which of "
        f"them is meant: {duplicates.keys} keys or more are there more than once, for instance\n  "
        + "\n  ".join(examples)
        + "\nNothing was committed. Keep one row of each key in the source or its transform, or name more columns in upsert_keys; "
        "then run the write under another idempotence key."
    )


def _joined(parts: Sequence[BatchPart], columns: int) -> Keys:
    import numpy as np
    import pyarrow as pa

    if not parts:
        return Keys(KeyIndex([], np.array([], np.uint64)), np.array([], np.int64), np.array([], np.int64))
    joined = [pa.concat_arrays([part.columns[number] for part in parts]) for number in range(columns)]
    source = np.concatenate([np.full(len(part.rows), part.source, np.int32) for part in parts])
    return Keys(KeyIndex(joined, np.concatenate([part.hashed for part in parts])), source, np.concatenate([p.rows for p in parts]))


class KeptKeys:
    """Portions that a process has loaded, kept for its next splits as long as they fit in ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: OrderedDict[object, Keys] = OrderedDict()

    def get(self, name: object, load: Callable[[], Keys]) -> Keys:
        """What was kept under this name, or what is loaded now."""
        keys = self._kept.pop(name, None)
        if keys is None:
            self._shrink(self.limit - PORTION_BYTES)
            keys = load()
        self._kept[name] = keys
        self._shrink(self.limit)
        return keys

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()

    def _shrink(self, limit: int) -> None:
        while self._kept and sum(keys.nbytes for keys in self._kept.values()) > limit:
            self._kept.popitem(last=False)
