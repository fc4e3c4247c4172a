"""Finding rows by key: a hash table held in arrays, searched for a million keys at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.tables.keys.values import equal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from airflow_ckpt_provider.tables.keys.values import Hashes

    Positions = npt.NDArray[np.int64]

#: Bytes that the index takes for one key, besides the key.
OVERHEAD_BYTES = 28


class KeyIndex:
    """Positions of keys.

    Keys are sorted by hash; a table says where the keys begin whose hash has the same leading bits. A search walks all keys
    in step along such runs, which are about one long, and compares the keys themselves wherever the hashes agree.

    :param columns: the key columns in canonical form.
    :param hashed: their hashes.
    """

    def __init__(self, columns: Sequence[pa.Array], hashed: Hashes) -> None:
        import numpy as np

        self.columns = columns
        order = np.argsort(hashed)
        self._order = order.astype(np.int32 if len(order) < 2**31 else np.int64)
        self._hashes = hashed[order]
        bits = max(1, int(len(hashed) - 1).bit_length()) if len(hashed) else 1
        self._shift = np.uint64(64 - bits)
        counts = np.bincount((self._hashes >> self._shift).astype(np.int64), minlength=2**bits)
        self._starts = np.zeros(2**bits + 1, dtype=np.int64)
        np.cumsum(counts, out=self._starts[1:])

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def nbytes(self) -> int:
        """Bytes of memory this takes."""
        arrays = self._order.nbytes + self._hashes.nbytes + self._starts.nbytes
        return int(arrays + sum(column.nbytes for column in self.columns))

    def find(self, columns: Sequence[pa.Array], hashed: Hashes) -> Positions:
        """Position of each key, -1 where it is not known.

        If a key is there more than once, any of its positions.
        """
        import numpy as np
        import pyarrow as pa

        places = np.full(len(hashed), -1, dtype=np.int64)
        if not len(self):
            return places
        slots = (hashed >> self._shift).astype(np.int64)
        starts = self._starts[slots]
        rows = np.flatnonzero(starts < self._starts[slots + 1])
        at, ends = starts[rows], self._starts[slots[rows] + 1]
        while len(rows):
            alike = np.flatnonzero(self._hashes[at] == hashed[rows])
            if len(alike):
                positions = self._order[at[alike]]
                asked, known = pa.array(rows[alike]), pa.array(positions)
                same = equal([column.take(asked) for column in columns], [column.take(known) for column in self.columns])
                places[rows[alike[same]]] = positions[same]
            at = at + 1
            going = (at < ends) & (places[rows] < 0)
            rows, at, ends = rows[going], at[going], ends[going]
        return places

    def duplicates(self, examples: int) -> Duplicates | None:
        """Keys that are there more than once, if any are."""
        import numpy as np
        import pyarrow as pa

        equal = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        if not len(equal):
            return None
        suspects = self._order[np.unique(np.concatenate([equal, equal + 1]))]
        suspects.sort()
        names = [str(number) for number in range(len(self.columns))]
        rows = pa.table([*(column.take(pa.array(suspects)) for column in self.columns), pa.array(suspects)], [*names, "row"])
        # Arrow's groups know null and, of the one bit pattern that canonical keys have, NaN.
        groups = rows.group_by(names).aggregate([("row", "count"), ("row", "min")])
        groups = groups.filter(pa.compute.greater(groups["row_count"], 1))
        if not groups.num_rows:
            return None
        first = groups.take(pa.compute.sort_indices(groups["row_min"])[:examples])
        return Duplicates(groups.num_rows, first["row_min"].to_pylist(), first["row_count"].to_pylist())


class Duplicates(NamedTuple):
    """How many keys there are more than once, and of some of them a position and how often they are there."""

    keys: int
    positions: list[int]
    times: list[int]
