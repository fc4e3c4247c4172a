"""The rows of a fragment in bounded memory, however wide it is (I11).

Lance reads a fragment page by page, up to 8 MiB of each column, and several at a time: of 400 columns that is gigabytes, whatever
the batch size. So a large fragment is read in windows of rows. A filter is first asked which rows those are, from its own columns
alone: with a window it would be evaluated from the fragment's first row on, again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.scan.lance import BLOBS, batch_rows, bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Places = npt.NDArray[np.uint64]

#: About the bytes of a window in the fragment's files.
_WINDOW_BYTES = 64 << 20

_ADDRESS = "_rowaddr"


def fragment_batches(
    fragment: Any,  # noqa: ANN401 - a LanceFragment
    columns: Sequence[str] | None,
    row_filter: str | None,
    first: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Live rows of a fragment that pass the filter, in their order.

    :param columns: top-level columns, in this order; all if None.
    :param first: the first live row that is read, where there is no filter.
    """
    facts = fragment.metadata
    size = max(1, _WINDOW_BYTES * facts.physical_rows // max(1, bytes_of(facts)))
    settings = {
        "columns": None if columns is None else list(columns),
        "batch_size": batch_rows(facts),
        "batch_readahead": 2,
        "blob_handling": BLOBS,
    }
    if size >= facts.physical_rows and not first:
        yield from fragment.scanner(filter=row_filter, **settings).to_batches()
    elif row_filter is None:
        for begin in range(first, facts.num_rows, size):
            yield from fragment.scanner(offset=begin, limit=size, **settings).to_batches()
    else:
        yield from _matching(fragment, row_filter, size, settings)


def _matching(fragment: Any, row_filter: str, size: int, settings: dict[str, Any]) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - see above
    """Windows from one row that matches to another, and of each the rows that do."""
    import numpy as np
    import pyarrow as pa

    matching = _addresses(fragment, row_filter)
    every = _addresses(fragment, None) if fragment.num_deletions else None
    numbers = matching & np.uint64(0xFFFFFFFF) if every is None else np.searchsorted(every, matching)
    at = 0
    while at < len(numbers):
        first = int(numbers[at])
        stop = int(np.searchsorted(numbers, first + size))
        wanted = matching[at:stop]
        limit = int(numbers[stop - 1]) - first + 1
        for batch in fragment.scanner(offset=first, limit=limit, with_row_address=True, **settings).to_batches():
            is_wanted = np.isin(batch.column(_ADDRESS).to_numpy(), wanted, assume_unique=True)
            kept = batch.drop_columns([_ADDRESS]).filter(pa.array(is_wanted))
            if kept.num_rows:
                yield kept
        at = stop


def _addresses(fragment: Any, row_filter: str | None) -> Places:  # noqa: ANN401 - see above
    """Addresses of the live rows that pass, sorted."""
    import numpy as np

    batches = fragment.scanner(columns=[], filter=row_filter, with_row_address=True).to_batches()
    addresses = [batch.column(_ADDRESS).to_numpy() for batch in batches]
    return np.sort(np.concatenate(addresses)) if addresses else np.empty(0, np.uint64)
