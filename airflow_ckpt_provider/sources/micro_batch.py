"""A micro-batch of a streaming query: rows that Spark hands over under a number, and again under the same one after a failure.

How far a stream has come stands in the table, as the watermark of a task that follows a growing source does: the commit of a
batch sets it to the query and the batch. So the table alone tells which batches have landed, for as long as it exists, whatever
becomes of the checkpoint store and of the query's own checkpoint location.

Decision: a query whose checkpoint location was lost is another query. It begins with batch 0 and reads its source from wherever
it is told to, so that Spark cannot say which of its rows have landed. It is refused until the user says that its rows are new.
From then on the query before it is refused, which may still be running somewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Increment
from airflow_ckpt_provider.checkpoint.known_types import known
from airflow_ckpt_provider.exceptions import BindingMismatchError, CorruptObjectError, InputChangedError
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.saved import SavedRows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Plan

#: Queries that came before, as many as a table remembers of a stream. The oldest are forgotten first.
_EARLIER = 50


class StreamPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far a stream has come: what the watermark of its commits holds.

    :param query: id of the query, which Spark keeps in the query's checkpoint location.
    :param batch: number of the last micro-batch that has landed.
    :param earlier: ids of the queries that have written the stream before this one, the oldest first.
    """

    query: str
    batch: int
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True)
class MicroBatch:
    """Which rows Spark hands over.

    :param stream: the stream's key.
    :param query: id of the query.
    :param batch: number of the micro-batch within the query.
    :param new_query: whether the user says that rows of this query are not among those that an earlier one has landed.
    """

    stream: str
    query: str
    batch: int
    new_query: bool = False

    @property
    def key(self) -> str:
        """The idempotence key of the batch."""
        return f"{self.stream}/{self.query}/{self.batch}"

    @property
    def followed(self) -> str:
        """What the table remembers the stream by."""
        return f"stream {self.stream}"

    def has_landed(self, watermark: JsonObject | None) -> bool:
        """Whether the table has the rows of this batch.

        :param watermark: of the stream, as the table shows it.
        :raises BindingMismatchError: if another query writes this stream.
        :raises InputChangedError: if later batches of this query have landed, which Spark does not know of any more.
        """
        place = self._place(watermark)
        if place is None or place.query != self.query or place.batch < self.batch:
            return False
        if place.batch > self.batch:
            raise InputChangedError(
                f"The stream {self.stream!r} has landed the micro-batches of the query {self.query} up to number {place.batch}, "
                f"and Spark begins again with {self.batch}: the query's checkpoint location was set back to an earlier state, so "
                "that its batches need not have the rows that they had. Nothing was written. Restore the newest state of the "
                "checkpoint location; or look up to where the rows of the source are in the table, begin a new query there with "
                "another checkpointLocation, and say new_query=True."
            )
        return True

    def increment(self, watermark: JsonObject | None) -> Increment:
        """From where to where the commit of this batch moves the watermark.

        :raises BindingMismatchError: if another query writes this stream.
        """
        place = self._place(watermark)
        earlier: tuple[str, ...] = ()
        if place is not None:
            earlier = place.earlier if place.query == self.query else (*place.earlier, place.query)[-_EARLIER:]
        end = StreamPlace(query=self.query, batch=self.batch, earlier=earlier)
        return Increment(begin=watermark, end=msgspec.to_builtins(end))

    def _place(self, watermark: JsonObject | None) -> StreamPlace | None:
        if watermark is None:
            return None
        try:
            place = msgspec.convert(watermark, known(StreamPlace))
        except msgspec.ValidationError as error:
            raise CorruptObjectError(
                f"What the table says of the stream {self.stream!r} was altered and cannot be read ({error}). It says which "
                "micro-batches have landed. Set it back to what an earlier snapshot or version holds."
            ) from error
        if self.query in place.earlier:
            raise BindingMismatchError(
                f"The stream {self.stream!r} is written by the query {place.query} since it was told that its rows are new, and "
                f"this is the query {self.query}, from before. Nothing was written. Stop this query; to write both, give each a "
                "key of its own."
            )
        if place.query != self.query and not self.new_query:
            raise BindingMismatchError(
                f"The stream {self.stream!r} has landed micro-batches of the query {place.query}, up to number {place.batch}, and "
                f"this is batch {self.batch} of another query, {self.query}. A query has another id if its checkpoint location was "
                "lost, or if it is another one; in both cases its rows may be in the table already. Nothing was written. Restore "
                "the checkpointLocation and start the query again; or, if its rows are new, such as those of a source that begins "
                "where the other query has ended, say new_query=True; or give it a key of its own."
            )
        return place


class SavedBatch(SavedRows):
    """The rows of a micro-batch, as the tasks of one execution stage them; see ``SavedRows``.

    :param columns: of the rows.
    """

    incremental = True

    def __init__(self, batch: MicroBatch, columns: pa.Schema) -> None:
        super().__init__(columns)
        self._batch = batch

    @property
    def followed(self) -> str:
        """What is followed; see ``IncrementalSource``."""
        return self._batch.followed

    def describe(self) -> JsonObject:
        """The columns, and what is followed: the commit asks for it there."""
        return super().describe() | {"follows": self.followed}

    def plan_since(self, options: Mapping[str, str], watermark: JsonObject | None) -> Plan:
        """A plan without splits, which says what its commit moves."""
        return msgspec.structs.replace(self.plan(options), increment=self._batch.increment(watermark))


class FrameBatch(SparkDataFrame):
    """The rows of a micro-batch in hash buckets of their ids; see ``SparkDataFrame``.

    :param build: returns the DataFrame of the batch.
    :param assert_unique: see ``SparkDataFrame``.
    """

    incremental = True

    def __init__(
        self,
        batch: MicroBatch,
        build: Callable[..., DataFrame],
        id_column: Sequence[str],
        buckets: int,
        *,
        assert_unique: bool,
    ) -> None:
        # What computes the rows is above what Spark hands over, where nobody sees it.
        super().__init__(
            build,
            list(id_column),
            buckets,
            recover="buckets",
            assert_unique=assert_unique,
            reproducible=True,
            build_version=batch.key,
        )
        self._batch = batch

    @property
    def followed(self) -> str:
        """What is followed; see ``IncrementalSource``."""
        return self._batch.followed

    def describe(self) -> JsonObject:
        """The same, and what is followed: the commit asks for it there."""
        return super().describe() | {"follows": self.followed}

    def plan_since(self, options: Mapping[str, str], watermark: JsonObject | None) -> Plan:
        """One split for each bucket, and what the commit of them moves."""
        return msgspec.structs.replace(self.plan(options), increment=self._batch.increment(watermark))
