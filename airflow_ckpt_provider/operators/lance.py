"""The stage into a Lance dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.hooks.tables import open_table
from airflow_ckpt_provider.operators.stage import CheckpointedWriteOperator
from airflow_ckpt_provider.scan.lance import dataset_uri
from airflow_ckpt_provider.sources.lance_rows import ROWS_PER_SPLIT, DatasetRows
from airflow_ckpt_provider.spark.visibility import require_shared_dataset
from airflow_ckpt_provider.tables.format import MAIN
from airflow_ckpt_provider.tables.lance.format import FORMAT
from airflow_ckpt_provider.transforms import Aggregate, FlatMap
from airflow_ckpt_provider.write.arguments import parameters_in, parameters_of, require_transform, require_usable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources import Source
    from airflow_ckpt_provider.sources.protocol import StoredSource
    from airflow_ckpt_provider.spark.session import SparkTarget
    from airflow_ckpt_provider.tables.table import Table

Mode = Literal["create", "append", "overwrite", "upsert", "add_columns"]


class CheckpointedLanceWriteOperator(CheckpointedWriteOperator):
    """Write a source into a Lance dataset, checkpointed: a retry recovers what was staged and writes only the rest.

    The rows land in the dataset, in one version, when a ``CheckpointCommitOperator`` commits the reference that this returns.

    :param uri: the dataset: an absolute path, or a URI such as ``s3://bucket/vectors.lance`` (templated)
    :param source: what to read: a source such as ``Files``, ``LanceDataset`` or ``SparkDataFrame``, or a path or glob of Parquet
        files; None with ``add_columns``, which reads the dataset (templated)
    :param transform: a function from a ``pyarrow.RecordBatch`` to a batch, a table, or an iterable of batches; its name as
        ``"package.module:function"``; a ``Map``, ``FlatMap`` or ``Aggregate`` of ``airflow_ckpt_provider.transforms``; None to
        write the rows as they are. With ``add_columns``: from a batch of ``read_columns`` to one with the new columns, with a row
        for each row in the same order, or a ``Map``. With ``create``, ``add_columns`` and ``evolve_schema`` it is called with a few
        rows in the task itself, too, to learn which columns it makes
    :param transform_version: what stands for the transform's code in place of its fingerprint, which covers all that it uses:
        change it whenever the rows that the transform makes change (templated)
    :param mode: how the rows land, in one version: ``"append"``; ``"create"`` makes the dataset, which must not exist;
        ``"overwrite"`` replaces all rows, and with them the indexes; ``"upsert"`` replaces rows that have the same ``upsert_keys``
        and adds the others, without copying a row that stays; ``"add_columns"`` computes new columns for the rows that are there,
        without copying any of them. Rows that others add after they were computed have no values in them (templated)
    :param upsert_keys: with ``upsert``: the columns that identify a row; null equals null (templated)
    :param when_matched: with ``upsert``: ``"update"`` (default) or ``"ignore"`` rows of the source whose key is there (templated)
    :param when_not_matched: with ``upsert``: ``"insert"`` (default) or ``"ignore"`` rows of the source whose key is not (templated)
    :param read_columns: with ``add_columns``: the columns that the transform is given (templated)
    :param rows_per_split: with ``add_columns``: rows whose values are computed and remembered at once, at most; 65,536 if None. A
        retry computes what was not finished again, so choose few where a row takes long
    :param storage_version: with ``create`` and ``create_if_missing``: version of the file format; of a dataset without rows Lance
        chooses it (templated)
    :param stable_row_ids: with ``create`` and ``create_if_missing``: whether rows keep their ids when they are moved
    :param create_if_missing: with ``append`` and ``overwrite``: whether a dataset that does not exist comes into being with the
        first rows, in their commit, as with ``create`` (templated)
    :param evolve_schema: add columns that the dataset lacks, as optional ones, in a version of its own before the first row is
        staged
    :param idempotence_key: the name under which this write is remembered, up to 512 characters. Default: DAG, task, run and map
        index (templated)
    :param on_change: what to do if the key belongs to a write with another table, source, mode or transform: ``"fail"``;
        ``"restart"`` to discard what is staged and begin anew; or ``"continue"``, where only the code of the transform has changed,
        to keep all that is staged and go on with the new code. None for that of the section ``[checkpoints]`` of Airflow's
        configuration, which is ``"fail"`` unless it is set
    :param on_rerun: what to do if the key is committed already: ``"reuse"`` checks and reports the existing version;
        ``"replace"`` writes anew, and its commit removes exactly the rows that the earlier one has added; those that it had updated
        stay, and are updated again where they are met
    :param if_empty: what becomes of the task if there is nothing to read, or no row comes out of the transform: ``"succeed"``;
        ``"skip"``, which leaves the reference in XCom, so that a commit of mapped stages with ``trigger_rule="none_failed"`` takes
        the others; or ``"fail"``. None for that of the section ``[checkpoints]``,
        which is ``"succeed"``. As long as nothing has landed, the stage, cleared, looks for input again
    :param missing_columns: what becomes of columns that the rows lack, members of structs too. None refuses
        ``upsert_keys``, and makes others null, with a warning that names them; ``"fail"`` refuses
        any; ``"null"`` makes all null but ``upsert_keys``. Not for ``add_columns``, which writes no whole rows
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
    :param lance_conn_id: connection of type ``checkpoint`` with the credentials of the dataset's storage; those of the environment
        if None (templated)
    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``; ``local[*]`` if ``spark_default`` does not exist
        (templated)
    :param spark_conf: Spark configuration of the session (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint``; a folder below ``AIRFLOW_HOME`` if ``checkpoint_default`` does
        not exist (templated)
    :returns: the checkpoint reference, see ``airflow_ckpt_provider.checkpoint.reference.Reference``
    """

    template_fields: Sequence[str] = (
        "uri", "source", "transform_name", "transform_version", "mode", *parameters_in(FORMAT), "idempotence_key",
        "lance_conn_id", "spark_conn_id", "spark_conf", "checkpoint_conn_id",
    )  # fmt: skip
    template_fields_renderers = {"spark_conf": "json"}  # noqa: RUF012 - Airflow's own attribute

    def __init__(
        self,
        *,
        uri: str,
        source: Source | StoredSource | str | None = None,
        transform: Callable[..., Any] | str | None = None,
        transform_version: str | None = None,
        mode: Mode = "append",
        upsert_keys: Sequence[str] | str | None = None,
        when_matched: Literal["update", "ignore"] | None = None,
        when_not_matched: Literal["insert", "ignore"] | None = None,
        read_columns: Sequence[str] | str | None = None,
        rows_per_split: int | None = None,
        storage_version: str | None = None,
        stable_row_ids: bool | None = None,
        create_if_missing: bool | None = None,
        evolve_schema: bool = False,
        idempotence_key: str | None = None,
        on_change: Literal["fail", "restart", "continue"] | None = None,
        on_rerun: Literal["reuse", "replace"] = "reuse",
        if_empty: Literal["succeed", "skip", "fail"] | None = None,
        missing_columns: Literal["null", "fail"] | None = None,
        save_every: int | timedelta | None = None,
        on_error: Literal["fail", "skip", "retry"] = "fail",
        max_errors: float | None = None,
        lance_conn_id: str | None = None,
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
        self.uri = uri
        self.upsert_keys = upsert_keys
        self.when_matched = when_matched
        self.when_not_matched = when_not_matched
        self.read_columns = read_columns
        self.rows_per_split = rows_per_split
        self.storage_version = storage_version
        self.stable_row_ids = stable_row_ids
        self.create_if_missing = create_if_missing or None
        self.lance_conn_id = lance_conn_id
        self._parameters()

    @property
    def _table_conn_id(self) -> str:
        return self.lance_conn_id or ""

    def _require_usable(self, mode: str, source: object, transform: object) -> None:
        if mode == "add_columns":
            if self.on_error != "fail":
                raise InvalidInputError("mode='add_columns' computes a value for each row, and takes no on_error but 'fail'.")
            if self.missing_columns is not None:
                raise InvalidInputError("mode='add_columns' writes the columns that it adds, and takes no missing_columns.")
            if self.evolve_schema:
                raise InvalidInputError("mode='add_columns' adds what its transform returns, and takes no evolve_schema.")
            if source is not None:
                raise InvalidInputError("mode='add_columns' reads the dataset that it adds columns to, and takes no source.")
            if isinstance(transform, FlatMap | Aggregate):
                raise InvalidInputError("mode='add_columns' computes a row for each, and takes no FlatMap or Aggregate. Use Map.")
            if transform is None:
                raise InvalidInputError("mode='add_columns' needs a transform: from read_columns to the columns that are added.")
        if source is not None or (mode != "add_columns" and "{{" not in mode):
            require_usable(source, transform)
        else:
            require_transform(transform)

    def _source(self) -> Source:
        self._require_usable(self.mode, self.source, self.transform)
        if self.source is not None:
            return super()._source()
        parameters: Any = self._parameters()
        return DatasetRows(
            self.uri, parameters["read_columns"], parameters.get("rows_per_split", ROWS_PER_SPLIT), self.lance_conn_id
        )

    def _require_shared_table(self, target: SparkTarget) -> None:
        require_shared_dataset(dataset_uri(self.uri), target)

    def _table(self, key: IdempotenceKey, store: CheckpointStore) -> Table:
        del key, store
        return open_table(FORMAT.name, self.uri, MAIN, self.lance_conn_id or "")

    def _parameters(self) -> JsonObject:
        return parameters_of(self, FORMAT)
