"""What a source can do: what every source must, and what some can besides, one protocol for each.

Every source is a ``Source`` and has a ``Reader``. A caller asks for the others by ``isinstance``, never for the class of a source:
``IncrementalSource`` reads on from a watermark, ``ListableSource`` tells without Spark what there is to read, ``ReplanningSource``
opens rounds of its own, the rows of a ``SessionSource`` are computed by a Spark session, and those of a ``SampledSource`` have
places.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject, Plan, Split
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore


class Reader(Protocol):
    """Reads splits on an executor. Picklable; holds credentials, so it never goes into the store."""

    def read(self, split: Split, expected: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """Rows of ``split``, in batches, the same rows in the same order every time.

        :param expected: the schema wanted, for formats that carry no types of their own; None if it is not known.
        :raises InputChangedError: if the input is not the one that was planned (I6).
        """
        ...


@runtime_checkable
class ResumableReader(Reader, Protocol):
    """A reader that can leave out rows at the beginning of a split without reading them."""

    def read_near(self, split: Split, expected: pa.Schema | None, row: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        """The rows that ``read`` yields, without some of those before a row.

        :param row: counted from 0, in what ``read`` yields.
        :returns: the number of the first row that is yielded, which is not behind ``row``; and the rows.
        """
        ...


@runtime_checkable
class NamingReader(Reader, Protocol):
    """A reader that can tell a user where the rows of a split are."""

    def places(self, split: Split) -> list[str]:
        """Names of what is read, such as ``s3://lake/1.parquet (row groups 2 to 5)``.

        Of a split that the reader has begun, that of the file at which it is.
        """
        ...


@runtime_checkable
class Source(Protocol):
    """What is read, and how it splits."""

    #: Airflow connection with the storage credentials, or None for those of the environment.
    conn_id: str | None

    #: What kind of connection that is: ``checkpoint`` gives storage options; ``store`` the same of a checkpoint store, with what
    #: opens it; ``iceberg`` the properties of a catalog, and its name as ``name``. These are the ``options`` of the methods here.
    conn_kind: str

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


@runtime_checkable
class IncrementalSource(Source, Protocol):
    """A source that can read only what was added since a watermark, which the commit of what was read carries on."""

    #: Whether it is asked to.
    incremental: bool

    @property
    def followed(self) -> str:
        """What is read, by a name that stays the same from run to run."""
        ...

    def plan_since(self, options: Mapping[str, str], watermark: JsonObject | None) -> Plan:
        """Like ``plan``, for what was added since ``watermark``; all there is if None.

        :returns: a plan whose inputs hold ``watermark``: ``from`` where, and ``to`` where, what it lists was added.
        :raises InputChangedError: if what was added since cannot be told any more.
        """
        ...


@runtime_checkable
class ListableSource(Source, Protocol):
    """A source that can tell without Spark what there is to read."""

    def news(self, plan: Plan, options: Mapping[str, str]) -> str | None:
        """What there is to read now and ``plan`` does not read, such as ``3 files match now that were not read: a.parquet, …``.

        :returns: None if there is nothing of that kind; what is gone does not count.
        """
        ...


@runtime_checkable
class LookingSource(Source, Protocol):
    """A source whose ``plan`` has seen all that it lists, so that ``verify`` could say nothing new of a plan made a moment ago."""

    #: That it has.
    plan_looks: bool


@runtime_checkable
class AccountingSource(Source, Protocol):
    """A source that can tell of a plan from the store whether its splits read everything once, as far as that can be known."""

    def require_once(self, plan: Plan, options: Mapping[str, str]) -> None:
        """Refuse a plan of whose splits two read the same, or that leave out what this source is known to hold (I2, I15).

        :param plan: one with splits that the source reads: all of them.
        :raises CorruptObjectError: naming what is read twice or not at all.
        """
        ...


@runtime_checkable
class StoredSource(Protocol):
    """What is read lies in a checkpoint store, and can be read once that is open."""

    def store_conn_id(self) -> str:
        """Airflow connection of that store, once templates are rendered."""
        ...

    def opened(self, store: CheckpointStore) -> Source:
        """The source, in its store."""
        ...


@runtime_checkable
class SharedSource(Source, Protocol):
    """A source of rows that stay for as long as somebody reads them, and so have to know who does."""

    def begin_reading(self, reader: Header) -> None:
        """Record that a generation reads them, before it is planned.

        :raises DiscardedError: if they are not there any more.
        """
        ...


@runtime_checkable
class ReplanningSource(Source, Protocol):
    """A source that may plan a round of its own in every attempt that finds splits missing."""

    def replan(
        self,
        rounds: Sequence[Plan],
        staged_ids: AbstractSet[str],
        attempt: str | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> Plan | None:
        """The plan of the next round; None if the newest pinned one is to be worked on.

        :param rounds: all pinned plans, oldest first; there is at least one.
        :param staged_ids: ids of all published splits.
        :param attempt: id of the attempt that opens the round.
        """
        ...

    def restaged(self, plan: Plan, staged_ids: AbstractSet[str], number: int, attempt: str) -> Plan:
        """A plan in which lost splits have new ids, as this source stages them.

        :param staged_ids: ids of the published splits whose files are there.
        :param number: of the round.
        """
        ...


@runtime_checkable
class SessionSource(Source, Protocol):
    """A source whose rows only a Spark session can compute, such as a DataFrame. Its splits are buckets of row ids."""

    id_column: list[str]
    buckets: int
    assert_unique: bool
    reproducible: bool
    recover: str

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows."""
        ...

    def session_sample(self, spark: SparkSession) -> Iterator[pa.RecordBatch]:
        """The first rows, to tell the columns by; a batch without rows if there are none."""
        ...


@runtime_checkable
class PinningSource(SessionSource, Protocol):
    """A ``SessionSource`` whose rows are made of what its plan has pinned, beside its splits."""

    def reading(self, plan: Plan) -> tuple[SessionSource, Plan]:
        """The source as a plan has it, whose ``frame`` is of what is pinned; and the plan without that.

        :raises InputChangedError: naming what is not as it was planned (I6).
        """
        ...


@runtime_checkable
class SampledSource(Source, Protocol):
    """A source of rows that have places of their own, which stay beside what a transform makes of them."""

    #: Column that holds the place of a row.
    place_column: str

    def sample(self, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """A few rows, to tell the columns by.

        :raises EmptyInputError: if there are none.
        """
        ...
