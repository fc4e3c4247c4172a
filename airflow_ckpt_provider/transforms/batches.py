"""What a function of batches may return."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from airflow_ckpt_provider.exceptions import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    Batches: TypeAlias = pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table] | None


def as_batches(result: Batches, name: str) -> Iterator[pa.RecordBatch]:
    """What a transform returned, as batches.

    :raises OutputError: if it is none of what a transform may return.
    """
    import pyarrow as pa

    if result is None:
        return
    if isinstance(result, pa.RecordBatch):
        yield result
    elif isinstance(result, pa.Table):
        yield from result.to_batches()
    elif hasattr(result, "__iter__") and not isinstance(result, str | bytes | dict):
        for item in result:
            yield from as_batches(item, name)
    else:
        raise OutputError(
            f"The transform {name} returned a {type(result).__name__}; it must return a pyarrow RecordBatch or Table, an "
            "iterable of those, or None."
        )
