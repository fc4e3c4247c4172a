"""The stage: writes rows into files of an Iceberg table that no snapshot references yet, and remembers each split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.hooks.tables import open_table
from airflow_ckpt_provider.operators.stage import CheckpointedWriteOperator
from airflow_ckpt_provider.tables.iceberg.format import FORMAT
from airflow_ckpt_provider.write.arguments import parameters_in, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources import Source
    from airflow_ckpt_provider.sources.protocol import StoredSource
    from airflow_ckpt_provider.tables.table import Table

Mode = Literal["create", "append", "overwrite", "overwrite_partitions", "upsert"]


class CheckpointedIcebergWriteOperator(CheckpointedWriteOperator):
    """Write a source into an Iceberg table, checkpointed: a retry recovers what was staged and writes only the rest.

    The rows land in the table when a ``CheckpointCommitOperator`` commits the reference that this returns.

    :param table: ``namespace.table`` in the catalog (templated)
    :param source: what to read: a source such as ``Files``, ``IcebergTable`` or ``SparkDataFrame``, or a path or glob of Parquet
        files (templated)
    :param transform: a function from a ``pyarrow.RecordBatch`` to a batch, a table, or an iterable of batches; its name as
        ``"package.module:function"``; a ``Map``, ``FlatMap`` or ``Aggregate`` of ``airflow_ckpt_provider.transforms``; None to
        write the rows as they are
    :param transform_version: what stands for the transform's code in place of its fingerprint, which covers all that it uses:
        change it whenever the rows that the transform makes change (templated)
    :param mode: how the rows land, in one snapshot: ``"append"``; ``"create"`` makes the table, which must not exist;
        ``"overwrite"`` replaces all rows, or those of ``overwrite_filter``; ``"overwrite_partitions"`` replaces the partitions
        that occur in the rows; ``"upsert"`` updates rows that have the same ``upsert_keys`` and inserts the others (templated)
    :param overwrite_filter: with ``overwrite``: the rows to replace, such as ``"day = '2026-01-01'"``; all new rows have to match
        it (templated)
    :param overwrite_parameters: values of the filter's parameters: ``{"day": "{{ ds }}"}`` for ``"day = :day"`` (templated)
    :param upsert_keys: with ``upsert``: the columns that identify a row; null equals null (templated)
    :param when_matched: with ``upsert``: ``"update"`` (default) or ``"ignore"``
    :param when_not_matched: with ``upsert``: ``"insert"`` (default) or ``"ignore"``
    :param partition_by: with ``create`` and ``create_if_missing``: terms such as ``"day(ts)"``, ``"bucket(16, id)"``, ``"region"``
        (templated)
    :param sort_by: with ``create`` and ``create_if_missing``: the sort order to record, such as ``"id"`` or
        ``"ts desc nulls last"`` (templated)
    :param table_properties: with ``create`` and ``create_if_missing``: properties of the table (templated)
    :param location: with ``create`` and ``create_if_missing``: where the table's files go; the catalog decides if None (templated)
    :param create_if_missing: with ``append``, ``overwrite``, ``overwrite_partitions`` and ``upsert``: whether a table that does not
        exist comes into being with the first rows, in their commit, as with ``create`` (templated)
    :param branch: branch of the table to write to; one that does not exist begins where ``main`` is (templated)
    :param evolve_schema: add columns that the table lacks, as optional ones, and promote types that are too narrow, in a commit of
        its own before anything is staged
    :param idempotence_key: the name under which this write is remembered, up to 512 characters. Default: DAG, task, run and map
        index (templated)
    :param on_change: what to do if the key belongs to a write with another table, source, mode or transform: ``"fail"``;
        ``"restart"`` to discard what is staged and begin anew; or ``"continue"``, where only the code of the transform has changed,
        to keep all that is staged and go on with the new code. None for that of the section ``[checkpoints]`` of Airflow's
        configuration, which is ``"fail"`` unless it is set
    :param on_rerun: what to do if the key is committed already: ``"reuse"`` checks and reports the existing snapshot;
        ``"replace"`` writes anew, and its commit removes exactly the files that the earlier one committed for rows of this key
    :param if_empty: what becomes of the task if there is nothing to read, or no row comes out of the transform: ``"succeed"``;
        ``"skip"``, which leaves the reference in XCom, so that a commit of mapped stages with ``trigger_rule="none_failed"`` takes
        the others; or ``"fail"``. None for that of the section ``[checkpoints]``,
        which is ``"succeed"``. As long as nothing has landed, the stage, cleared, looks for input again
    :param missing_columns: what becomes of columns that the rows lack, members of structs too. None refuses
        partition and sort columns and ``upsert_keys``, and makes others null, with a warning that names them; ``"fail"`` refuses
        any; ``"null"`` makes all null but ``upsert_keys``
    :param save_every: rows of the input, or a ``timedelta``, after which what is done of a split is saved, so that the next attempt
        goes on behind it. A transform gets no more rows than that at a time, or so many that they take it about a second. A
        split that is done sooner is not affected. None for half a minute, but for a ``SparkDataFrame``: its buckets are saved only
        if this is set, because their rows are sorted by their ids then. Partitions, ``recover="rows"``, groups, and a
        ``SparkDataFrame`` without a transform are staged as a whole
    :param on_error: what becomes of rows at which a ``Map`` or ``FlatMap`` fails: ``"fail"`` fails the task at the first of them;
        ``"skip"`` leaves them out of the write and keeps them, with error and traceback, for ``Rejected``; ``"retry"`` stages all
        others and then fails the try, so that the next one runs these again, and only these. As long as the write is not sealed,
        an attempt runs again what earlier ones have rejected. A function of batches that fails is called again with parts of its
        batch
    :param max_errors: how many rows may be left out: a number, or a share of the rows of the input such as ``0.01``, of each
        split, once a hundred of its rows are done, and of all. More fail the task, or the try with ``"retry"``. Default: any
        number with ``"skip"``, none with ``"retry"``
    :param iceberg_conn_id: connection of type ``iceberg``; an embedded catalog if ``iceberg_default`` does not exist (templated)
    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``; ``local[*]`` if ``spark_default`` does not exist
        (templated)
    :param spark_conf: Spark configuration of the session (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint``; a folder below ``AIRFLOW_HOME`` if ``checkpoint_default`` does
        not exist (templated)
    :returns: the checkpoint reference, see ``airflow_ckpt_provider.checkpoint.reference.Reference``
    """

    template_fields: Sequence[str] = (
        "table", "source", "transform_name", "transform_version", "mode", *parameters_in(FORMAT), "branch", "idempotence_key",
        "iceberg_conn_id", "spark_conn_id", "spark_conf", "checkpoint_conn_id",
    )  # fmt: skip
    template_fields_renderers = {"spark_conf": "json", "table_properties": "json", "overwrite_parameters": "json"}  # noqa: RUF012 - Airflow's own attribute

    def __init__(
        self,
        *,
        table: str,
        source: Source | StoredSource | str,
        transform: Callable[..., Any] | str | None = None,
        transform_version: str | None = None,
        mode: Mode = "append",
        overwrite_filter: str | None = None,
        overwrite_parameters: Mapping[str, Any] | None = None,
        upsert_keys: Sequence[str] | str | None = None,
        when_matched: Literal["update", "ignore"] | None = None,
        when_not_matched: Literal["insert", "ignore"] | None = None,
        partition_by: Sequence[str] | str | None = None,
        sort_by: Sequence[str] | str | None = None,
        table_properties: Mapping[str, str] | None = None,
        location: str | None = None,
        create_if_missing: bool | None = None,
        branch: str = "main",
        evolve_schema: bool = False,
        idempotence_key: str | None = None,
        on_change: Literal["fail", "restart", "continue"] | None = None,
        on_rerun: Literal["reuse", "replace"] = "reuse",
        if_empty: Literal["succeed", "skip", "fail"] | None = None,
        missing_columns: Literal["null", "fail"] | None = None,
        save_every: int | timedelta | None = None,
        on_error: Literal["fail", "skip", "retry"] = "fail",
        max_errors: float | None = None,
        iceberg_conn_id: str = "iceberg_default",
        spark_conn_id: str = "spark_default",
        spark_conf: Mapping[str, str] | None = None,
        checkpoint_conn_id: str = "checkpoint_default",
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's
    ) -> None:
        super().__init__(
            source=source,
            transform=transform,
            transform_version=transform_version,
            mode=mode,
            evolve_schema=evolve_schema,
            idempotence_key=idempotence_key,
            on_change=on_change,
            on_rerun=on_rerun,
            if_empty=if_empty,
            missing_columns=missing_columns,
            save_every=save_every,
            on_error=on_error,
            max_errors=max_errors,
            spark_conn_id=spark_conn_id,
            spark_conf=spark_conf,
            checkpoint_conn_id=checkpoint_conn_id,
            **kwargs,
        )
        self.table = table
        self.overwrite_filter = overwrite_filter
        self.overwrite_parameters = overwrite_parameters
        self.upsert_keys = upsert_keys
        self.when_matched = when_matched
        self.when_not_matched = when_not_matched
        self.partition_by = partition_by
        self.sort_by = sort_by
        self.table_properties = table_properties
        self.location = location
        self.create_if_missing = create_if_missing or None
        self.branch = branch
        self.iceberg_conn_id = iceberg_conn_id
        self._parameters()

    @property
    def _table_conn_id(self) -> str:
        return self.iceberg_conn_id

    def _table(self, key: IdempotenceKey, store: CheckpointStore) -> Table:
        del key, store
        return open_table(FORMAT.name, self.table, self.branch, self.iceberg_conn_id)

    def _parameters(self) -> JsonObject:
        return parameters_of(self, FORMAT)
