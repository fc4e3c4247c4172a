"""The keys of a source, as many at a time as memory allows: bucket by bucket, and parts of a bucket where even that is much."""

from __future__ import annotations

import datetime as dt
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.exceptions import DuplicateKeyError
from airflow_ckpt_provider.tables.iceberg.upsert.index import OVERHEAD_BYTES, KeyIndex
from airflow_ckpt_provider.tables.iceberg.upsert.scratch import ScratchReader, bucket_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyiceberg.io import FileIO

    from airflow_ckpt_provider.tables.iceberg.upsert.index import Duplicates, Positions
    from airflow_ckpt_provider.tables.iceberg.upsert.keys import Hashes, KeyColumn
    from airflow_ckpt_provider.tables.iceberg.upsert.scratch import Scratch

#: Bytes of memory for the keys of one portion, and for the portions that a process keeps between splits.
PORTION_BYTES, KEPT_BYTES = 64 << 20, 64 << 20

#: Keys that an error shows.
_EXAMPLES = 5


class Portion(NamedTuple):
    """Keys of these buckets, and of these only one of several equal shares."""

    buckets: tuple[int, ...]
    share: int = 0
    shares: int = 1

    def has(self, hashed: Hashes, buckets: int) -> Any:  # noqa: ANN401 - a numpy array of booleans
        """Which of these keys belong to the share; their bucket must be one of the portion's."""
        import numpy as np

        return (hashed // np.uint64(buckets)) % np.uint64(self.shares) == np.uint64(self.share)

    def holds(self, hashed: Hashes, buckets: int) -> Any:  # noqa: ANN401 - a numpy array of booleans
        """Which of these keys belong to the portion."""
        import numpy as np

        if len(self.buckets) == buckets and self.shares == 1:
            return np.ones(len(hashed), dtype=np.bool_)
        return np.isin(bucket_of(hashed, buckets), np.array(self.buckets, dtype=np.uint64)) & self.has(hashed, buckets)


class Keys(NamedTuple):
    """The keys of a portion: where they are in memory, and which row of which source each is of."""

    known: KeyIndex
    source: Positions
    row: Positions

    @property
    def nbytes(self) -> int:
        return self.known.nbytes + int(self.source.nbytes + self.row.nbytes)


def portions(sources: Sequence[Scratch], only: int | None = None) -> list[Portion]:
    """Portions that cover all keys, each of about ``PORTION_BYTES`` at most.

    :param only: the bucket to cover; all if None.
    """
    if not sources:
        return []
    buckets = sources[0].buckets
    size = sum(source.key_bytes + (OVERHEAD_BYTES + 12) * source.rows for source in sources)
    each = max(1, size // buckets)
    wanted = list(range(buckets)) if only is None else [only]
    if each > PORTION_BYTES:
        shares = -(-each // PORTION_BYTES)
        return [Portion((bucket,), share, shares) for bucket in wanted for share in range(shares)]
    together = PORTION_BYTES // each
    return [Portion(tuple(wanted[start : start + together])) for start in range(0, len(wanted), together)]


def load(io: FileIO, sources: Sequence[Scratch], keys: Sequence[KeyColumn], portion: Portion) -> Keys:
    """The keys of a portion, in the order of the sources and of the rows in each.

    :raises DuplicateKeyError: if there are far more of them than was reckoned, because many are the same.
    """
    import numpy as np

    parts: list[_Part] = []
    size, limit = 0, 2 * PORTION_BYTES
    for number, source in enumerate(sources):
        with ScratchReader(io, source.path) as reader:
            for span, columns, hashed in reader.keys(keys, portion.buckets):
                rows = np.arange(span.start, span.start + span.rows, dtype=np.int64)
                part = _Part(columns, hashed, number, rows)
                if portion.shares > 1:
                    part = part.of(np.flatnonzero(portion.has(hashed, source.buckets)))
                if not len(part.rows):
                    continue
                parts.append(part)
                size += sum(column.nbytes for column in part.columns) + len(part.rows) * (OVERHEAD_BYTES + 12)
                if size > limit:
                    refuse_duplicates(_joined(parts, len(keys)), keys)
                    limit = 2 * size
    return _joined(parts, len(keys))


def refuse_duplicates(loaded: Keys, keys: Sequence[KeyColumn]) -> None:
    """Refuse a source in which a key is there more than once.

    :raises DuplicateKeyError: with examples.
    """
    found: Duplicates | None = loaded.known.duplicates(_EXAMPLES)
    if found is None:
        return
    names = ", ".join(repr(key.name) for key in keys)
    columns = list(zip(keys, loaded.known.columns, strict=True))
    examples = [
        f"({', '.join(_shown(key, column, position) for key, column in columns)}): {times} rows"
        for position, times in zip(found.positions, found.times, strict=True)
    ]
    raise DuplicateKeyError(
        f"The source of the upsert has rows with the same key ({names}), so that it is undefined which of them is meant: "
        f"{found.keys} keys or more are there more than once, for instance\n  "
        + "\n  ".join(examples)
        + "\nNothing was committed. Keep one row of each key in the source or its transform, or name more columns in upsert_keys; "
        "then run the write under another idempotence key."
    )


class KeptKeys:
    """Portions that a process has loaded, kept for its next splits as long as they fit in ``KEPT_BYTES``."""

    def __init__(self) -> None:
        self._kept: OrderedDict[object, Keys] = OrderedDict()

    def get(self, io: FileIO, sources: Sequence[Scratch], keys: Sequence[KeyColumn], portion: Portion) -> Keys:
        """As ``load``."""
        name = (tuple(source.path for source in sources), tuple(key.field_id for key in keys), portion)
        found = self._kept.pop(name, None)
        if found is None:
            self._shrink(KEPT_BYTES - PORTION_BYTES)
            found = load(io, sources, keys, portion)
        self._kept[name] = found
        self._shrink(KEPT_BYTES)
        return found

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()

    def _shrink(self, limit: int) -> None:
        while self._kept and sum(keys.nbytes for keys in self._kept.values()) > limit:
            self._kept.popitem(last=False)


#: What this process keeps. Scratch files are never written twice under one name, so that nothing kept becomes wrong.
KEPT = KeptKeys()


class _Part(NamedTuple):
    columns: list[pa.Array]
    hashed: Hashes
    source: int
    rows: Positions

    def of(self, positions: Any) -> _Part:  # noqa: ANN401 - a numpy array
        import pyarrow as pa

        taken = pa.array(positions)
        return _Part([column.take(taken) for column in self.columns], self.hashed[positions], self.source, self.rows[positions])


def _joined(parts: Sequence[_Part], columns: int) -> Keys:
    import numpy as np
    import pyarrow as pa

    if not parts:
        return Keys(KeyIndex([], np.array([], np.uint64)), np.array([], np.int64), np.array([], np.int64))
    joined = [pa.concat_arrays([part.columns[number] for part in parts]) for number in range(columns)]
    source = np.concatenate([np.full(len(part.rows), part.source, np.int32) for part in parts])
    return Keys(KeyIndex(joined, np.concatenate([part.hashed for part in parts])), source, np.concatenate([p.rows for p in parts]))


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
