"""What stands in place of a reader, where only a Spark session can compute the rows of a split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Split


class NoReader:
    """Stands where other sources have a reader. Picklable.

    :param what: a split is, and who alone can compute its rows, for a message.
    """

    def __init__(self, what: str = "a bucket of a DataFrame: only a Spark session") -> None:
        self._what = what

    def read(self, split: Split, expected: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """Never reads.

        :raises InvalidInputError: always.
        """
        raise InvalidInputError(f"Split {split.id} is {self._what} can compute its rows.")
