"""A frame transform: the DataFrame that a function makes of the rows of another source, such as a join of files with a table.

The source is planned as it always is, and its plan is pinned beside the splits of the DataFrame. So each attempt hands the function
the same rows, whatever has arrived since; and a file that was changed is an error that names it. What else the function reads, such
as the other side of a join, is its own affair, as that of ``build`` is.

Decision: a source without a single split has nothing to transform. The function is not called, and no row is written, even by a
function that would make rows of nothing.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Plan
from airflow_ckpt_provider.checkpoint.readers import OVER
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.frame_input import FrameInput
from airflow_ckpt_provider.sources.packing import strange_plan
from airflow_ckpt_provider.sources.protocol import (
    AccountingSource,
    IncrementalSource,
    ListableSource,
    LookingSource,
    SharedSource,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject
    from airflow_ckpt_provider.sources.protocol import Source


def opened(given: SparkDataFrame, read: Source, options: Mapping[str, str]) -> FrameTransform:
    """A ``SparkDataFrame`` of a source, with that source opened.

    :param options: of the source; they hold credentials.
    """
    if isinstance(read, IncrementalSource) and read.incremental:
        return IncrementalFrameTransform(given, read, options)
    return FrameTransform(given, read, options)


class FrameTransform(SparkDataFrame):
    """``SparkDataFrame(source=…, dataframe=…)``, with its source opened; see ``SessionSource``, whose words the members have.

    :param read: the source of the rows that the function is given.
    :param options: of that source; they hold credentials.
    """

    def __init__(self, given: SparkDataFrame, read: Source, options: Mapping[str, str]) -> None:
        super().__init__(
            source=read,
            dataframe=given.dataframe,
            id_column=given.id_column or None,
            buckets=given.buckets,
            bucket_rows=given.bucket_rows,
            parameters=given.parameters,
            recover=given.recover,  # type: ignore[arg-type]  # it was looked at
            assert_unique=given.assert_unique,
            reproducible=given.reproducible,
            build_version=given.build_version,
        )
        self.read = read
        self.options = options
        self.conn_id = read.conn_id
        self.conn_kind = read.conn_kind
        self.told_rows: Callable[[SparkSession, FrameTransform, Plan], DataFrame] | None = None
        #: What the DataFrame is made of: the plan that was made, or that ``reading`` was told.
        self.planned: Plan | None = None

    def read_by(self, rows: Callable[[SparkSession, FrameTransform, Plan], DataFrame]) -> Self:
        """The same source, which can make its DataFrame.

        :param rows: reads the splits of a plan of ``read`` in a session.
        """
        other = copy.copy(self)
        other.told_rows = rows
        return other

    def describe(self) -> JsonObject:
        """What decides which rows are computed: of what, by which code, and into which splits they fall."""
        return super().describe() | {OVER: self.read.describe()}

    def begin_reading(self, reader: Header) -> None:
        """Pass on who reads."""
        if isinstance(self.read, SharedSource):
            self.read.begin_reading(reader)

    def plan(self, options: Mapping[str, str]) -> Plan:
        """The splits of the DataFrame, beside the plan of the source that is read."""
        return self._dealt(self.read.plan(options), options)

    def plan_read(self, plan: Plan) -> Plan:
        """The plan of the source that is read, as it was pinned."""
        pinned = plan.source_as(FrameInput)
        return Plan(created_at=plan.created_at, source=pinned.source, splits=pinned.splits, increment=plan.increment)

    def reading(self, plan: Plan) -> tuple[FrameTransform, Plan]:
        """See ``PinningSource``.

        :raises InputChangedError: naming what is not as it was planned (I6).
        """
        planned = self.plan_read(plan)
        planned_now = isinstance(self.read, LookingSource) and self.planned is not None and self.planned.splits == planned.splits
        if not planned_now:
            self.read.verify(planned.splits, self.options)
        other = copy.copy(self)
        other.planned = planned
        return other, self._as_dealt(plan)

    def require_once(self, plan: Plan, options: Mapping[str, str]) -> None:
        """Refuse a split that is computed twice, or not at all; and the same of what is read. See ``AccountingSource``."""
        read = self.plan_read(plan)
        if isinstance(self.read, AccountingSource):
            self.read.require_once(read, options)
        if read.splits:
            super().require_once(self._as_dealt(plan), options)
        elif any(split.task == READ for split in plan.splits):
            raise strange_plan(f"computes rows of {self.name} out of nothing that is read")

    def news(self, plan: Plan, options: Mapping[str, str]) -> str | None:
        """What there is to read now, as far as the source that is read can tell."""
        return self.read.news(self.plan_read(plan), options) if isinstance(self.read, ListableSource) else None

    def frame(self, spark: SparkSession) -> DataFrame:
        """Call the function with the rows that are read."""
        if self.told_rows is None or self.planned is None:
            raise TypeError(f"{self!r} is planned, and read in a session, before its DataFrame is made.")
        return self._function()(self.told_rows(spark, self, self.planned), **self.parameters)

    def session_sample(self, spark: SparkSession) -> Iterator[pa.RecordBatch]:
        """The first rows of the DataFrame; none where nothing is read."""
        if self.planned is None:
            self.planned = self._plan_all()
        if self.planned.splits:
            yield from super().session_sample(spark)

    def _plan_all(self) -> Plan:
        return self.read.plan(self.options)

    def _dealt(self, planned: Plan, options: Mapping[str, str]) -> Plan:
        """The plan of the DataFrame of what a plan reads."""
        self.planned = planned
        if not planned.splits:
            nothing = FrameInput(source=planned.source).to_json()
            return Plan(created_at=now(), source=nothing, splits=(), increment=planned.increment)
        dealt = super().plan(options)
        pinned = FrameInput(source=planned.source, splits=planned.splits, dealt=dealt.source)
        return msgspec.structs.replace(dealt, source=pinned.to_json(), increment=planned.increment)

    def _as_dealt(self, plan: Plan) -> Plan:
        """A plan as one of a DataFrame that reads no source.

        :raises CorruptObjectError: if it does not say how rows are dealt, and so was not made by ``plan``.
        """
        dealt = plan.source_as(FrameInput).dealt
        if dealt is None:
            raise CorruptObjectError(f"The plan in the checkpoint store does not say how the rows of {self.name} are dealt.")
        return msgspec.structs.replace(plan, source=dealt)


class IncrementalFrameTransform(FrameTransform):
    """The same of what was added to a source since the last commit; see ``IncrementalSource``."""

    incremental = True

    def __init__(self, given: SparkDataFrame, read: IncrementalSource, options: Mapping[str, str]) -> None:
        super().__init__(given, read, options)
        self._increments = read

    @property
    def followed(self) -> str:
        """What is read increment by increment."""
        return self._increments.followed

    def describe(self) -> JsonObject:
        """The same, with what it follows: the commit asks for it there."""
        return super().describe() | {"follows": self.followed}

    def plan_since(self, options: Mapping[str, str], watermark: JsonObject | None) -> Plan:
        """The splits of the DataFrame of what was added since a watermark."""
        return self._dealt(self._increments.plan_since(options, watermark), options)

    def _plan_all(self) -> Plan:
        return self._increments.plan_since(self.options, None)
