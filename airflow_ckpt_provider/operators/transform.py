"""A stage without a table: its rows are staged below the checkpoint store, for the next task to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.checkpoint.layout import rows_folder
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError
from airflow_ckpt_provider.hooks.sources import source_options
from airflow_ckpt_provider.hooks.tables import open_table
from airflow_ckpt_provider.operators.stage import CheckpointedWriteOperator, transform_of
from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
from airflow_ckpt_provider.sources.grouped import GroupedRows
from airflow_ckpt_provider.tables.format import MAIN
from airflow_ckpt_provider.tables.staged.format import FORMAT
from airflow_ckpt_provider.tables.staged.state import FOR_NEXT
from airflow_ckpt_provider.write.arguments import require_on_error, require_version
from airflow_ckpt_provider.write.content import content_key, without_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Split
    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources import Source
    from airflow_ckpt_provider.sources.protocol import StoredSource
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.attempt import WriteAttempt


class CheckpointedTransformOperator(CheckpointedWriteOperator):
    """Transform a source, checkpointed, for the next task to read: a retry goes on behind what is staged, and computes the rest.

    The rows are staged as Parquet below the checkpoint store, and never land in a table. The next operator reads them with
    ``Staged``; of several in a row only the last one writes to a table, and has a commit::

        parse = CheckpointedTransformOperator(task_id="parse", source=Files("s3://docs/*.parquet"), transform=FlatMap(pages, ...))
        embed = CheckpointedTransformOperator(task_id="embed", source=Staged(parse.output), transform=Map(Embedder, ...))
        write = CheckpointedLanceWriteOperator(task_id="write", uri="s3://lake/pages.lance", source=Staged(embed.output))
        commit = CheckpointCommitOperator(task_id="commit", checkpoint=write.output)

    :param source: what to read: a source such as ``Files``, ``IcebergTable``, ``SparkDataFrame`` or ``Staged``, or a path or
        glob of Parquet files (templated)
    :param transform: a function from a ``pyarrow.RecordBatch`` to a batch, a table, or an iterable of batches; its name as
        ``"package.module:function"``; a ``Map``, ``FlatMap`` or ``Aggregate`` of ``airflow_ckpt_provider.transforms``; None to
        stage the rows as they are. The columns of what a plain function makes are those of its first rows, for which it is called
        once on the worker of this task; a ``Map`` or ``FlatMap`` says them
    :param transform_version: what stands for the transform's code in place of its fingerprint, which covers all that it uses:
        change it whenever the rows that the transform makes change (templated)
    :param idempotence_key: the name under which this is remembered, up to 512 characters. Default: DAG, task, run and map index
        (templated)
    :param reuse: who may take up what is staged: ``"run"``, the tries of this task in its run; or ``"content"``, any task of any
        run that asks for the same: the key is the digest of what is read, of the transform's code, and of the columns that it
        makes, and of ``on_error``. What is computed already is not computed again, and other input or other code is another key.
        A ``transform_version`` stands for the code of this name in all tasks that say it
    :param on_change: what to do if the key belongs to another source or transform: ``"fail"``; ``"restart"`` to discard what is
        staged and begin anew; or ``"continue"``, where only the code of the transform has changed, to keep all that is staged and
        go on with the new code. None for that of the section ``[checkpoints]`` of Airflow's configuration, ``"fail"`` unless it
        is set
    :param if_empty: what becomes of the task if there is nothing to read, or no row comes out of the transform: ``"succeed"``,
        ``"skip"`` or ``"fail"``. None for that of the section ``[checkpoints]``, which is ``"succeed"``
    :param on_error: what becomes of rows at which a ``Map`` or ``FlatMap`` fails: ``"fail"`` fails the task at the first of them;
        ``"skip"`` leaves them out of the write and keeps them, with error and traceback, for ``Rejected``; ``"retry"`` stages all
        others and then fails the try, so that the next one runs these again, and only these. As long as the write is not sealed,
        an attempt runs again what earlier ones have rejected. A function of batches that fails is called again with parts of its
        batch
    :param max_errors: how many rows may be left out: a number, or a share of the rows of the input such as ``0.01``, of each
        split, once a hundred of its rows are done, and of all. More fail the task, or the try with ``"retry"``. Default: any
        number with ``"skip"``, none with ``"retry"``
    :param save_every: rows of the input, or a ``timedelta``, after which what is done of a split is saved, so that the next attempt
        goes on behind it. None for half a minute, but for a ``SparkDataFrame``: its buckets are saved only if this is set
    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``; ``local[*]`` if ``spark_default`` does not exist
        (templated)
    :param spark_conf: Spark configuration of the session (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint``, below whose store the rows are staged; a folder below
        ``AIRFLOW_HOME`` if ``checkpoint_default`` does not exist (templated)
    :returns: the checkpoint reference, see ``airflow_ckpt_provider.checkpoint.reference.Reference``
    """

    _lands = False

    template_fields: Sequence[str] = (
        "source", "transform_name", "transform_version", "idempotence_key", "spark_conn_id", "spark_conf", "checkpoint_conn_id",
    )  # fmt: skip
    template_fields_renderers = {"spark_conf": "json"}  # noqa: RUF012 - Airflow's own attribute

    def __init__(
        self,
        *,
        source: Source | StoredSource | str,
        transform: Callable[..., Any] | str | None = None,
        transform_version: str | None = None,
        idempotence_key: str | None = None,
        reuse: Literal["run", "content"] = "run",
        on_change: Literal["fail", "restart", "continue"] | None = None,
        if_empty: Literal["succeed", "skip", "fail"] | None = None,
        on_error: Literal["fail", "skip", "retry"] = "fail",
        max_errors: float | None = None,
        save_every: int | timedelta | None = None,
        spark_conn_id: str = "spark_default",
        spark_conf: Mapping[str, str] | None = None,
        checkpoint_conn_id: str = "checkpoint_default",
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's
    ) -> None:
        super().__init__(
            source=source,
            transform=transform,
            transform_version=transform_version,
            mode=FOR_NEXT,
            evolve_schema=False,
            idempotence_key=idempotence_key,
            on_change="fail" if reuse == "content" and on_change is None else on_change,
            on_rerun="reuse",
            if_empty=if_empty,
            missing_columns=None,
            on_error=on_error,
            max_errors=max_errors,
            save_every=save_every,
            spark_conn_id=spark_conn_id,
            spark_conf=spark_conf,
            checkpoint_conn_id=checkpoint_conn_id,
            **kwargs,
        )
        self.reuse = reuse
        self._require_reuse(source, on_change)

    def _require_reuse(self, source: object, on_change: str | None) -> None:
        """Refuse what a key that stands for its content cannot be."""
        if self.reuse not in {"run", "content"}:
            raise InvalidInputError(f"reuse={self.reuse!r}: the values are 'run' and 'content'.")
        if self.reuse == "run":
            return
        if self._has_key:
            raise InvalidInputError("reuse='content' makes the key of what is computed, and takes no idempotence_key.")
        if on_change not in {None, "fail"}:
            raise InvalidInputError(
                "reuse='content' makes another key of other code or input, so that there is nothing for "
                f"on_change={on_change!r} to do. Leave on_change out, or use reuse='run'."
            )
        if isinstance(source, SparkDataFrame):
            raise without_identity(source)

    @property
    def _table_conn_id(self) -> str:
        return self.checkpoint_conn_id

    def _key(self, context: Context) -> IdempotenceKey:
        if self.reuse == "run":
            return super()._key(context)
        return self._content_key(None)

    def _content_key(self, planned: Sequence[Split] | None) -> IdempotenceKey:
        """The key of what comes out.

        :param planned: splits that read the input; those of the input as it is now if None.
        """
        source = self._source()
        transform = transform_of(self.transform, source)
        version = require_version(self.transform, self.transform_version)
        on_error = require_on_error(self.on_error, self.max_errors, self.transform)
        return content_key(source, source_options(source), transform, version, on_error, planned)

    def _require_staged(self, attempt: WriteAttempt) -> None:
        """Refuse to seal rows of other input than the key stands for: it may have changed just before it was planned."""
        if self.reuse == "run":
            return
        checkpoint, source = attempt.checkpoint, attempt.source
        plan = checkpoint.plan()
        if plan is not None and isinstance(source, GroupedRows):
            plan = source.plan_read(plan)
        if plan is not None and self._content_key(plan.splits) != checkpoint.key:
            raise InputChangedError(
                f"The input changed between two looks at it, so that what is staged under {checkpoint.key} is not "
                "what that key stands for. It is not handed over. Clear the task: what the input is now has a key of its own. "
                f"Should the input ever become again what it was, {how_to_restart(checkpoint.header)}."
            )

    def _table(self, key: IdempotenceKey, store: CheckpointStore) -> Table:
        return open_table(FORMAT.name, rows_folder(store.uri, key.hash), MAIN, self.checkpoint_conn_id)

    def _parameters(self) -> JsonObject:
        return {"reuse": self.reuse} if self.reuse != "run" else {}
