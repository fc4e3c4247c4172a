"""``checkpointed_batches``: what ``foreachBatch`` of a streaming query is given, so that each of its micro-batches lands once.

Spark promises that a micro-batch which failed, or whose end is not recorded, is handed over again under the same number. It does
not promise that nothing of it was written before. So the commit of a batch says in the table which query and batch it is, and a
batch that the table knows is not written again; see ``sources.micro_batch``.

Decision: what an execution of a batch has staged before it failed is not taken over by the next one, unless the user asks for it
by ``recover="buckets"``. The code that computes the rows of a batch is not seen here, and may be other code after a restart.
Batches are small, and two executions that are never mixed are exact whatever the query does.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Origin
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import InvalidInputError, StageFailedError, TableMissingError
from airflow_ckpt_provider.sources.micro_batch import FrameBatch, MicroBatch, SavedBatch
from airflow_ckpt_provider.spark.code_shipping import dumps, is_connect
from airflow_ckpt_provider.spark.engine import SessionEngine
from airflow_ckpt_provider.spark.error_summary import error_summary, terminal_in
from airflow_ckpt_provider.spark.frame.plans import arrow_schema
from airflow_ckpt_provider.spark.frame.run import ARROW_BATCHES
from airflow_ckpt_provider.spark.places import NO_CONNECTIONS, store_at
from airflow_ckpt_provider.spark.program import GivenFrame, staged, table_of_session
from airflow_ckpt_provider.spark.session import quiet, require_equal_pyspark, same_python
from airflow_ckpt_provider.spark.stage import spark_settings
from airflow_ckpt_provider.spark.visibility import require_shared_store
from airflow_ckpt_provider.tables.format import MAIN, format_of
from airflow_ckpt_provider.tables.parameters import given
from airflow_ckpt_provider.tables.watermarks import consumer_of
from airflow_ckpt_provider.write import commits, groups
from airflow_ckpt_provider.write.arguments import require_policies
from airflow_ckpt_provider.write.attempt import WriteAttempt
from airflow_ckpt_provider.write.execution import opened, sealed
from airflow_ckpt_provider.write.looks import look_at
from airflow_ckpt_provider.write.outcome import commit_word
from airflow_ckpt_provider.write.request import WriteRequest
from airflow_ckpt_provider.write.stage_log import StageLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.execution import Execution

_log = logging.getLogger(__name__)

#: Modes that a stream can land in.
_MODES = ("append", "upsert", "overwrite", "overwrite_partitions")

#: Local property of the thread in which Spark calls the function.
_QUERY_ID = "sql.streaming.queryId"


def checkpointed_batches(
    *,
    key: str,
    store: str,
    table: str | None = None,
    uri: str | None = None,
    mode: str = "append",
    id_column: Sequence[str] | str | None = None,
    recover: Literal["buckets"] | None = None,
    buckets: int = 8,
    catalog: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    store_options: Mapping[str, str] | None = None,
    branch: str = MAIN,
    new_query: bool = False,
    missing_columns: Literal["null", "fail"] | None = None,
    assert_unique: bool = False,
    **parameters: object,
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch``: each micro-batch of the query lands in one snapshot or version, once::

        query = (
            orders.writeStream.foreachBatch(checkpointed_batches(table="prod.shop.orders", key="orders", store="s3://lake/ckpt"))
            .option("checkpointLocation", "s3a://lake/streams/orders")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    The idempotence key of a batch is ``<key>/<query id>/<batch id>``. Start the query again after it was killed at any time: Spark
    hands over the batch that it has not recorded again, and it is written only if the table does not know it. Two processes that
    run one query at the same time land each batch once, too.

    :param key: the stream's name, up to 400 characters; another one for each stream that writes a table
    :param store: URI of the checkpoint store
    :param table: an Iceberg table, as for ``checkpointed_write``
    :param uri: a Lance dataset, in place of ``table``
    :param mode: how each batch lands: ``append``; ``upsert`` with ``upsert_keys``; ``overwrite``, for queries whose output mode is
        ``complete``; or ``overwrite_partitions``
    :param id_column: one or several columns that identify a row, for ``recover``; those of ``upsert_keys`` without any
    :param recover: ``buckets`` to keep the buckets of ids that an execution of a batch has staged before it failed, for the next
        one: the query has to compute the same ids of a batch each time. Without it, a batch that failed is staged anew as a whole
    :param buckets: number of splits of a batch, where its rows are dealt by ids
    :param catalog: as for ``checkpointed_write``
    :param storage_options: as for ``checkpointed_write``
    :param store_options: as for ``checkpointed_write``
    :param branch: of an Iceberg table
    :param new_query: True to say that the rows of a query with another id are new. A query gets another id when its
        ``checkpointLocation`` is lost. The query before it is refused from then on
    :param missing_columns: what becomes of columns of the table that the rows lack, as the operators
    :param assert_unique: fail if an id occurs twice in a batch
    :param parameters: those of the mode, as the operators
    :returns: the function. It raises what ``checkpointed_write`` raises, and the query fails with it; nothing is lost by that
    :raises InvalidInputError: for what cannot work, before the query starts
    """
    require_equal_pyspark()
    quiet()
    require_policies("fail", "reuse", "succeed", missing_columns)
    if mode not in _MODES:
        raise InvalidInputError(f"checkpointed_batches: a stream cannot land in mode={mode!r}. There are {', '.join(_MODES)}.")
    if recover not in {None, "buckets"}:
        raise InvalidInputError(f"checkpointed_batches: recover={recover!r} is neither None nor 'buckets'.")
    IdempotenceKey(key)
    ids = [id_column] if isinstance(id_column, str) else list(id_column or _upsert_keys(parameters))
    if recover is not None and not ids:
        raise InvalidInputError("checkpointed_batches: recover='buckets' needs id_column=, columns that identify a row.")
    if assert_unique and not ids:
        raise InvalidInputError("checkpointed_batches: assert_unique=True needs id_column=, columns that identify a row.")
    by_id = ids if recover or assert_unique or mode == "upsert" else []

    def open_places(spark: SparkSession) -> tuple[CheckpointStore, Table]:
        engine = SessionEngine(spark)
        opened_store = store_at(store, store_options)
        require_shared_store(opened_store, engine.target)
        return opened_store, table_of_session(spark, engine, table, uri, branch, catalog, storage_options)

    return _Batches(key, mode, by_id, buckets, open_places, parameters, recover=recover is not None, new_query=new_query,
                    missing_columns=missing_columns, assert_unique=assert_unique)  # fmt: skip


class _Batches:
    """The function that Spark calls for each micro-batch.

    :param ids: columns by which rows are dealt; none if they stay in Spark's partitions.
    :param open_places: opens the store and the table.
    :param recover: whether what an earlier execution of a batch has staged is kept.
    """

    def __init__(
        self,
        stream: str,
        mode: str,
        ids: Sequence[str],
        buckets: int,
        open_places: Callable[[SparkSession], tuple[CheckpointStore, Table]],
        parameters: Mapping[str, object],
        *,
        recover: bool,
        new_query: bool,
        missing_columns: Literal["null", "fail"] | None,
        assert_unique: bool,
    ) -> None:
        self._stream = stream
        self._mode = mode
        self._ids = ids
        self._buckets = buckets
        self._open_places = open_places
        self._parameters = parameters
        self._recover = recover
        self._new_query = new_query
        self._missing_columns = missing_columns
        self._assert_unique = assert_unique

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Land the rows of a micro-batch, unless they have landed.

        :param batch_id: its number within the query.
        """
        spark = frame.sparkSession
        batch = MicroBatch(self._stream, _query_of(spark), batch_id, new_query=self._new_query)
        store, table = self._open_places(spark)
        if batch.has_landed(self._watermark(batch, table)):
            _log.info("Micro-batch %d of the stream %s is in %s already.", batch_id, self._stream, table.identifier)
            return
        checkpoint = self._sealed(frame, batch, store, table)
        (settled,) = groups.commit([checkpoint], table)
        if settled.commit.commit_id is None:
            _log.info("Micro-batch %d of the stream %s has no rows.", batch_id, self._stream)
            return
        _log.info(
            "Micro-batch %d of the stream %s: %s rows are %s %s of %s.", batch_id, self._stream, f"{settled.seal.rows:,}",
            commit_word(checkpoint), settled.commit.commit_id, table.identifier,
        )  # fmt: skip

    def _watermark(self, batch: MicroBatch, table: Table) -> JsonObject | None:
        consumer = consumer_of(_origin(batch), batch.followed)
        try:
            return look_at(table, None, lambda state: state.watermark(consumer))
        except TableMissingError:
            if not self._parameters.get("create_if_missing"):
                raise
        return None

    def _sealed(self, frame: DataFrame, batch: MicroBatch, store: CheckpointStore, table: Table) -> Checkpoint:
        """Stage the rows of a batch, and seal them."""
        spark = frame.sparkSession
        if self._ids:
            restart = None if self._recover else self._restart(batch, store, table)
            given_frame = GivenFrame(frame, "checkpointed_batches")
            source = FrameBatch(batch, given_frame, self._ids, self._buckets, assert_unique=self._assert_unique)
            request = self._request(batch, source, table, restart)
            attempt = WriteAttempt(store, table, request)
            staged(attempt, SessionEngine(spark), StageLog(_Quiet(), self._missing_columns))
            return attempt.checkpoint
        columns = arrow_schema(frame.schema, "The DataFrame of the micro-batch")
        request = self._request(batch, SavedBatch(batch, columns), table, None)
        attempt = WriteAttempt(store, table, request)
        execution = opened(attempt, columns, "stream")
        splits = _run(frame, execution) if execution.work is not None else []
        return sealed(store, table, request, execution, splits).checkpoint

    def _restart(self, batch: MicroBatch, store: CheckpointStore, table: Table) -> str | None:
        """What asks for a new generation, where an execution before this one has staged something that has not landed."""
        latest = Checkpoint.latest(store, IdempotenceKey(batch.key))
        return None if latest is None or commits.landed(latest, table) is not None else uuid.uuid4().hex

    def _request(self, batch: MicroBatch, source: Source, table: Table, restart: str | None) -> WriteRequest:
        return WriteRequest(
            key=IdempotenceKey(batch.key),
            source=source,
            options={},
            transform=None,
            mode=self._mode,
            parameters=given(format_of(table.format).parameters, self._mode, dict(self._parameters)),
            connections=NO_CONNECTIONS,
            origin=_origin(batch),
            # The columns of a batch that failed may have been others.
            on_change="restart",
            missing_columns=self._missing_columns,
            restart_token=restart,
        )


class _Quiet:
    """What a stage says goes to whoever asks for details: a stream has a batch every few seconds."""

    def info(self, event: str, /, *args: Any) -> None:  # noqa: ANN401 - whatever is shown
        _log.debug(event, *args)

    def warning(self, event: str, /, *args: Any) -> None:  # noqa: ANN401 - as above
        _log.warning(event, *args)


def _origin(batch: MicroBatch) -> Origin:
    """The stream, where operators have a task: the table remembers what it has landed by that."""
    return Origin(dag_id="", task_id=batch.followed, run_id=batch.query, map_index=-1)


def _upsert_keys(parameters: Mapping[str, object]) -> Sequence[str]:
    keys = parameters.get("upsert_keys") or ()
    return [keys] if isinstance(keys, str) else list(keys)  # type: ignore[call-overload]


def _query_of(spark: SparkSession) -> str:
    """Id of the streaming query that calls.

    :raises InvalidInputError: if none does, and over Spark Connect, where it cannot be told.
    """
    if is_connect(spark):
        raise InvalidInputError(
            "checkpointed_batches does not work over Spark Connect: a function that the server calls is not told which query it is "
            "called for, so that a batch could not be told from that of another query. Run the query in a program with a session "
            "of its own."
        )
    query = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if not query:
        raise InvalidInputError(
            "checkpointed_batches was called outside a streaming query. Pass what it returns to writeStream.foreachBatch(…); for "
            "other DataFrames there is checkpointed_write."
        )
    return query


def _run(frame: DataFrame, execution: Execution) -> list[str]:
    """Stage all rows of a DataFrame, each partition by the task that Spark runs for it.

    :returns: the splits that count, one for each partition.
    """
    spark = frame.sparkSession
    SessionEngine(spark).start()
    payload = dumps(execution)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from airflow_ckpt_provider.spark.streaming_task import run_task

        return run_task(payload, batches)

    try:
        with same_python(spark), spark_settings(spark, ARROW_BATCHES):
            rows = frame.mapInArrow(task, "split string").collect()
    except Exception as error:
        raise terminal_in(error) or StageFailedError(
            f"Spark could not compute or stage the rows of a micro-batch: {error_summary(error)}. Nothing of it has landed. Start "
            "the query again once that is mended: Spark hands the batch over again."
        ) from error
    return [row["split"] for row in rows]
