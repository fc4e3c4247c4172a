"""What every source can do. Two small protocols are all that sources and tables know of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Plan, Split


class Reader(Protocol):
    """Reads splits on an executor. Picklable; holds credentials, so it never goes into the store."""

    def read(self, split: Split, expected: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """Rows of ``split``, in batches, the same rows in the same order every time.

        :param expected: the schema wanted, for formats that carry no types of their own; None if it is not known.
        :raises InputChangedError: if the input is not the one that was planned (I6).
        """
        ...


@runtime_checkable
class Source(Protocol):
    """What is read, and how it splits."""

    #: Airflow connection with the storage credentials, or None for those of the environment.
    conn_id: str | None

    def describe(self) -> JsonObject:
        """What the user wrote, for the header and for messages. No secrets."""
        ...

    def plan(self, options: Mapping[str, str]) -> Plan:
        """List the input and cut it into splits. Called once per checkpoint; the result is pinned."""
        ...

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Check that the input of these splits is still the one that was planned.

        :raises InputChangedError: naming what changed (I6).
        """
        ...

    def schema(self, plan: Plan, options: Mapping[str, str]) -> pa.Schema | None:
        """Schema of the rows, if the input carries one and there is any input."""
        ...

    def reader(self, options: Mapping[str, str]) -> Reader:
        """What executors read with."""
        ...
