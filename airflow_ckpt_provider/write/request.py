"""What a user asked a write to be, and the plan and columns of what it reads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.encoding import require_storable
from airflow_ckpt_provider.exceptions import EmptyInputError, NotSupportedYetError, TableMissingError
from airflow_ckpt_provider.sources.protocol import IncrementalSource, ListableSource
from airflow_ckpt_provider.sources.transform import steps_of
from airflow_ckpt_provider.tables.format import format_of
from airflow_ckpt_provider.tables.parameters import CREATE_IF_MISSING
from airflow_ckpt_provider.tables.watermarks import consumer_of
from airflow_ckpt_provider.write.looks import look_at
from airflow_ckpt_provider.write.pieces import SaveEvery
from airflow_ckpt_provider.write.rejecting import OnError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Connections, JsonObject, Origin, Plan, TableBinding
    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.sources.transform import Transform
    from airflow_ckpt_provider.tables.missing import WhenMissing
    from airflow_ckpt_provider.tables.mode import Mode
    from airflow_ckpt_provider.tables.table import Table

OnChange = Literal["fail", "restart", "continue"]
OnRerun = Literal["reuse", "replace"]


@dataclass(frozen=True)
class WriteRequest:
    """What the user asked for.

    :param options: storage options of the source; hold credentials.
    :param parameters: what the mode is told; only what the user set.
    :param on_change: what to do if the key is bound to something else.
    :param on_rerun: what to do if the key is committed.
    :param evolve_schema: let the table's schema grow before the first row is staged.
    :param missing_columns: what becomes of columns of the table that the rows lack. No part of what binds: splits that were staged
        before it was changed are checked by what they lacked.
    :param sample: the first rows of a source that nothing but a Spark session can read; asked only if their columns are needed.
    :param transform_version: what binds the key in place of the transform's fingerprint, if the user says so.
    :param save_every: when what is done of a split is saved, so that the next attempt goes on behind it.
    :param on_error: what becomes of rows at which the transform fails.
    :param restart_token: identifies an explicit wish to start anew; the same token is served once.
    """

    key: IdempotenceKey
    source: Source
    options: Mapping[str, str]
    transform: Transform | None
    mode: str
    connections: Connections
    origin: Origin
    parameters: JsonObject = field(default_factory=dict)
    on_change: OnChange = "fail"
    on_rerun: OnRerun = "reuse"
    evolve_schema: bool = False
    missing_columns: WhenMissing = None
    sample: Callable[[], Iterable[pa.RecordBatch]] | None = None
    restart_token: str | None = None
    transform_version: str | None = None
    save_every: SaveEvery = field(default_factory=SaveEvery)
    on_error: OnError = field(default_factory=OnError)

    @property
    def creates_if_missing(self) -> bool:
        """Whether a table that does not exist comes into being with the rows."""
        return bool(self.parameters.get(CREATE_IF_MISSING))

    def parameters_on(self, table: Table, binding: TableBinding) -> JsonObject:
        """What the mode is told where a table is bound in this way; see ``TableFormat.on_existing``."""
        return self.parameters if binding.creation is not None else format_of(table.format).on_existing(self.parameters)

    def mode_on(self, table: Table) -> type[Mode]:
        """The mode that is asked for, on a table."""
        return format_of(table.format).mode(self.mode, self.parameters)


class SourcePlan:
    """The source's plan, made once by an attempt: the first rows may be needed before there is a header to plan for.

    :param table: the table to write to, which knows how far an incremental source was read.
    """

    def __init__(self, store: CheckpointStore, table: Table, request: WriteRequest) -> None:
        self._store = store
        self._table = table
        self._request = request
        self._plan: Plan | None = None

    def get(self, replaces: int | None = None) -> Plan:
        """The plan.

        :param replaces: the generation that is replaced, if one is.
        """
        if self._plan is None:
            self._plan = self._planned(replaces)
        return self._plan

    def require_storable(self, paths: CheckpointPaths, replaces: int | None = None) -> None:
        """Refuse a plan that is larger than any reader takes, while nothing is put for it.

        :param paths: of the generation that is to have it.
        :param replaces: see ``get``.
        :raises InvalidInputError: if it is.
        """
        require_storable(paths.plan(), self.get(replaces))

    def news(self, read: Plan | None) -> str | None:
        """What there is to read now and ``read``, a plan of which nothing has landed, does not read.

        :returns: None if there is nothing, or if only Spark can tell.
        """
        request = self._request
        if isinstance(request.source, IncrementalSource) and request.source.incremental:
            return "rows were added since the last commit" if self.get().splits else None
        if read is None or not isinstance(request.source, ListableSource):
            return None
        return request.source.news(read, request.options)

    def output_schema(self, replaces: int | None = None) -> pa.Schema | None:
        """Schema of the rows that will be staged, from the source itself or the first rows that come out of the transform.

        :returns: None if there are no rows to tell it from.
        """
        request = self._request
        plan = self.get(replaces)
        schema = request.source.schema(plan, request.options)
        if request.transform is None and schema is not None:
            return schema
        made = request.transform.made_of(schema) if request.transform is not None and plan.splits else None
        if made is not None:
            return made
        for batches in self._samples(plan):
            rows = iter(batches)
            first = next(rows, None)
            if first is None:
                continue
            made = first.schema if request.transform is None else request.transform.made_of(first.schema)
            if made is not None:
                return made
            few = _slices(itertools.chain([first], rows), 1 if request.transform is None else request.transform.first_rows)
            for step in steps_of(request.transform, few, rejecting=request.on_error.rejects):
                if step.batch is not None:
                    return step.batch.schema
        return None

    def required_schema(self, replaces: int | None = None) -> pa.Schema:
        """The same, where there is nothing to be done without it.

        :raises EmptyInputError: if there are no rows to tell it from.
        """
        schema = self.output_schema(replaces)
        if schema is None and not self._request.mode_on(self._table).lands:
            import pyarrow as pa

            # Whoever reads on finds no rows, whatever columns they would have had.
            return pa.schema([])
        if schema is None:
            raise EmptyInputError(
                f"The input of the key {self._request.key.value!r} has no rows, so that the columns of {self._table.identifier} "
                "cannot be told from them. Create the table first and use mode='append', or wait for input."
            )
        return schema

    def _planned(self, replaces: int | None) -> Plan:
        request = self._request
        source = request.source
        if not isinstance(source, IncrementalSource) or not source.incremental:
            return source.plan(request.options)
        replaced = None if replaces is None else Checkpoint.at(self._store, request.key, replaces).plan()
        if replaced is not None:
            # The same increment again: what came after it belongs to later commits.
            return replaced
        consumer = consumer_of(request.origin, source.followed)
        watermark = self._mark(consumer)
        plan = source.plan_since(request.options, watermark)
        if plan.increment is None:
            raise TypeError(f"{source!r} has planned an increment, and its plan does not say which.")
        return msgspec.structs.replace(plan, increment=msgspec.structs.replace(plan.increment, consumer=consumer))

    def _mark(self, consumer: str) -> JsonObject | None:
        """How far the task has read; None of a table that is to be created.

        :raises NotSupportedYetError: if the mode writes no increments.
        """
        mode, table = self._request.mode, self._table
        wanted = self._request.mode_on(table)
        if not wanted.takes_increments:
            raise self._no_increments(f"mode={mode!r}")
        if wanted.creates:
            return None
        try:
            return look_at(table, None, lambda state: state.watermark(consumer))
        except TableMissingError:
            if not self._request.creates_if_missing:
                raise
        if not format_of(table.format).modes["create"].takes_increments:
            raise self._no_increments("create_if_missing=True")
        return None

    def _no_increments(self, what: str) -> NotSupportedYetError:
        return NotSupportedYetError(
            f"{what} with a source of since='last_commit' is not supported for {self._table.identifier}: there is no table yet in "
            "which it could be noted that the task has begun to read. Create it first and use mode='append'."
        )

    def _samples(self, plan: Plan) -> Iterator[Iterable[pa.RecordBatch]]:
        request = self._request
        if request.sample is not None:
            yield request.sample()
            return
        reader = request.source.reader(request.options)
        for split in plan.splits:
            yield reader.read(split, None)


def _slices(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows, few at a time: a function that is asked for its columns is not to work for an hour first."""
    for batch in batches:
        for begin in range(0, max(1, batch.num_rows), rows):
            yield batch.slice(begin, rows)
