"""The rows of another source, in groups: what an ``Aggregate`` reads. Its splits are buckets of the columns that make a group.

The plan of the source that is read is pinned beside the buckets, so that every attempt shuffles the same input.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import (  # msgspec reads the annotations of its structs at run time
    READ,
    JsonObject,  # noqa: TC001
    Pinned,
    Plan,
    Split,
    part_of,
)
from airflow_ckpt_provider.checkpoint.readers import GROUPED
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.frame_input import columns_read
from airflow_ckpt_provider.sources.no_reader import NoReader
from airflow_ckpt_provider.sources.packing import require_each_once
from airflow_ckpt_provider.sources.protocol import (
    AccountingSource,
    IncrementalSource,
    ListableSource,
    PinningSource,
    SampledSource,
    SessionSource,
    SharedSource,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Header
    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.transforms.groups import Aggregate


class GroupedInput(Pinned, frozen=True, kw_only=True, tag="grouped"):
    """What is read, beside the buckets into which its groups are dealt.

    :param source: what the source that is read has pinned.
    :param splits: its splits.
    """

    buckets: Count
    source: JsonObject
    splits: tuple[Split, ...]


class GroupedRows:
    """The rows of a source, in groups; see ``SessionSource``, whose words the members have.

    :param read: the source of the rows.
    :param options: of that source; they hold credentials.
    :raises InvalidInputError: for a source whose rows cannot be grouped.
    """

    conn_kind = "checkpoint"
    plan_looks = True
    assert_unique = False
    recover = "buckets"

    def __init__(self, read: Source, options: Mapping[str, str], aggregate: Aggregate) -> None:
        if isinstance(read, IncrementalSource) and read.incremental:
            raise InvalidInputError(
                f"{aggregate.name} cannot group what was added to {read!r} since the last commit: the rest of each group was read "
                "before. Read all of it, or group what was written."
            )
        if isinstance(read, SampledSource):
            raise InvalidInputError(
                f"{aggregate.name} makes rows of groups, and this write computes a value for each row. Use Map."
            )
        self.read = read.as_input() if isinstance(read, SparkDataFrame) else read
        self.options = options
        self.aggregate = aggregate
        self.conn_id: str | None = read.conn_id
        self.id_column = list(aggregate.by)
        self.sorted_by = [*aggregate.by, *aggregate.order_by]
        self.buckets = aggregate.buckets
        self.name = f"{read.name if isinstance(read, SessionSource) else repr(read)}, grouped by {', '.join(aggregate.by)}"
        #: What a source reads that has a plan is the same in every attempt.
        self.reproducible = read.reproducible if isinstance(read, SessionSource) else True

    def __repr__(self) -> str:
        return self.name

    @property
    def is_frame(self) -> bool:
        """Whether a session computes what is read."""
        return isinstance(self.read, SessionSource)

    def describe(self) -> JsonObject:
        """What decides which rows are read, and into which buckets they fall."""
        return {GROUPED: self.read.describe(), "by": self.id_column, "buckets": self.buckets}

    def begin_reading(self, reader: Header) -> None:
        """Pass on who reads."""
        if isinstance(self.read, SharedSource):
            self.read.begin_reading(reader)

    def plan(self, options: Mapping[str, str]) -> Plan:
        """One split for each bucket, beside the plan of the source that is read."""
        planned = self.read.plan(options)
        pinned = GroupedInput(buckets=self.buckets, source=planned.source, splits=planned.splits)
        splits = tuple(Split(id=f"{number:06d}", bytes=0, read={"bucket": number}) for number in range(self.buckets))
        return Plan(created_at=now(), source=pinned.to_json(), splits=splits if planned.splits else ())

    def plan_read(self, plan: Plan) -> Plan:
        """The plan of the source that is read, as it was pinned."""
        pinned = plan.source_as(GroupedInput)
        return Plan(created_at=plan.created_at, source=pinned.source, splits=pinned.splits)

    def reading(self, plan: Plan) -> tuple[GroupedRows, Plan]:
        """See ``PinningSource``."""
        if not isinstance(self.read, PinningSource):
            return self, plan
        other = copy.copy(self)
        other.read, _ = self.read.reading(self.plan_read(plan))
        return other, plan

    def require_once(self, plan: Plan, options: Mapping[str, str]) -> None:
        """Refuse a bucket that is computed twice, or not at all; and the same of what is read. See ``AccountingSource``."""
        buckets = [part_of(split.read["bucket"], int) for split in plan.splits if split.task == READ]
        read = self.plan_read(plan)
        every = {f"bucket {number}" for number in range(self.buckets)} if read.splits else set()
        require_each_once((f"bucket {number}" for number in buckets), self.name, every)
        if isinstance(self.read, AccountingSource):
            self.read.require_once(read, options)

    def verify(self, splits: Sequence[Split], options: Mapping[str, str]) -> None:
        """Nothing: a bucket does not say what is read for it. See ``verify_read``."""

    def verify_read(self, plan: Plan) -> None:
        """Check that what is read is still what was planned.

        :raises InputChangedError: naming what changed (I6).
        """
        self.read.verify(self.plan_read(plan).splits, self.options)

    def news(self, plan: Plan, options: Mapping[str, str]) -> str | None:
        """What there is to read now, as far as the source that is read can tell."""
        return self.read.news(self.plan_read(plan), options) if isinstance(self.read, ListableSource) else None

    def schema(self, plan: Plan, options: Mapping[str, str]) -> pa.Schema | None:
        """Of the rows that are read; None where only a session can tell, or nothing is read."""
        return None if isinstance(self.read, SessionSource) else columns_read(self.read, self.plan_read(plan), options)

    def session_sample(self, spark: SparkSession) -> Iterator[pa.RecordBatch]:
        """The first rows of a source that only a session can read."""
        if isinstance(self.read, SessionSource):
            yield from self.read.session_sample(spark)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows of a source that only a session can read."""
        if not isinstance(self.read, SessionSource):
            raise TypeError(f"{self.read!r} is read split by split.")
        return self.read.frame(spark)

    def reader(self, options: Mapping[str, str]) -> NoReader:
        """Refuses to read: the rows of a bucket come from Spark."""
        del options
        return NoReader()
