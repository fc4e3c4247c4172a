"""The stage, whatever the table: writes rows into files that no commit references yet, and remembers each split."""

from __future__ import annotations

import copy
import json
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowSkipException

from airflow_ckpt_provider.checkpoint.documents import Connections
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.checkpoint.staged_write import sealed_of
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import EmptyInputError, InvalidInputError
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook
from airflow_ckpt_provider.hooks.configuration import policy
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.hooks.sources import opened_source, source_options
from airflow_ckpt_provider.hooks.spark import spark_target
from airflow_ckpt_provider.operators import metrics
from airflow_ckpt_provider.operators.handed_on import as_text
from airflow_ckpt_provider.operators.identity import continues, default_key, instances_of, origin_of, restart_token
from airflow_ckpt_provider.operators.lineage.facts import Lineage
from airflow_ckpt_provider.operators.lineage.told import TellsLineage
from airflow_ckpt_provider.operators.links import CheckpointLink, LinkedCheckpoint, SparkUiLink, show_checkpoint, show_spark_ui
from airflow_ckpt_provider.operators.making import require_made_once
from airflow_ckpt_provider.operators.stopping import said_of_a_stop, staged_so_far
from airflow_ckpt_provider.operators.uncommitted import why_uncommitted
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.sources.frame_transform import FrameTransform
from airflow_ckpt_provider.sources.grouped import GroupedRows
from airflow_ckpt_provider.sources.protocol import SampledSource, SessionSource
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.spark.engine import SparkEngine, planned_in
from airflow_ckpt_provider.spark.session import require_equal_pyspark
from airflow_ckpt_provider.spark.visibility import require_shared_store
from airflow_ckpt_provider.transforms.names import shown_name_of
from airflow_ckpt_provider.write.arguments import (
    require_on_error,
    require_policies,
    require_save_every,
    require_usable,
    require_version,
)
from airflow_ckpt_provider.write.attempt import WriteAttempt
from airflow_ckpt_provider.write.outcome import committed_reference
from airflow_ckpt_provider.write.request import WriteRequest
from airflow_ckpt_provider.write.rounds import Rounds
from airflow_ckpt_provider.write.stage_log import StageLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import timedelta

    import pyarrow as pa
    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Seal
    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources import Source
    from airflow_ckpt_provider.sources.protocol import StoredSource
    from airflow_ckpt_provider.spark.session import SparkTarget
    from airflow_ckpt_provider.tables.table import Table


class CheckpointedWriteOperator(TellsLineage, BaseOperator):
    """What the stages of all table formats have in common; see ``CheckpointedIcebergWriteOperator``."""

    #: Whether a commit lands the rows.
    _lands: ClassVar[bool] = True

    operator_extra_links = (CheckpointLink(), SparkUiLink())

    #: What ``CheckpointLink`` leads to.
    linked_checkpoints: Sequence[LinkedCheckpoint] = ()

    def __init__(
        self,
        *,
        source: Source | StoredSource | str | None,
        transform: Callable[..., Any] | str | None,
        transform_version: str | None,
        mode: str,
        evolve_schema: bool,
        idempotence_key: str | None,
        on_change: Literal["fail", "restart", "continue"] | None,
        on_rerun: Literal["reuse", "replace"],
        if_empty: Literal["succeed", "skip", "fail"] | None,
        missing_columns: Literal["null", "fail"] | None,
        save_every: int | timedelta | None,
        on_error: Literal["fail", "skip", "retry"],
        max_errors: float | None,
        spark_conn_id: str,
        spark_conf: Mapping[str, str] | None,
        checkpoint_conn_id: str,
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's
    ) -> None:
        super().__init__(**kwargs)
        self.on_change = cast("Literal['fail', 'restart', 'continue']", policy("on_change", on_change))
        self.if_empty = policy("if_empty", if_empty)
        require_policies(self.on_change, on_rerun, self.if_empty, missing_columns)
        self.evolve_schema = evolve_schema
        self.missing_columns = missing_columns
        require_save_every(save_every)
        self.save_every = save_every
        require_on_error(on_error, max_errors, transform)
        self.on_error = on_error
        self.max_errors = max_errors
        self._require_usable(mode, source, transform)
        require_version(transform, transform_version)
        # Airflow renders templates inside a source in place: a copy of its own keeps mapped tasks apart.
        self.source = copy.copy(source)
        self.transform = transform
        # For "Rendered Templates": Airflow calls whatever is callable in a templated field.
        self.transform_name = None if transform is None else shown_name_of(transform)
        self.transform_version = transform_version
        self.mode = mode
        self.idempotence_key = idempotence_key
        self.on_rerun = on_rerun
        self.spark_conn_id = spark_conn_id
        self.spark_conf = spark_conf
        self.checkpoint_conn_id = checkpoint_conn_id
        self._has_key = idempotence_key is not None
        self._rounds: Rounds | None = None
        self._engine: SparkEngine | None = None
        self._killed = False
        self._checkpoint: Checkpoint | None = None
        self._follow(source)

    def _follow(self, source: object) -> None:
        """Run after the tasks whose outputs a source takes: Airflow itself does not look into it."""
        # As Airflow does with the arguments that it knows of; one instance of a mapped task has no tasks before it.
        if getattr(self, "_BaseOperator__from_mapped", False):
            return
        for name in () if hasattr(source, "resolve") else getattr(source, "template_fields", ()):
            XComArg.apply_upstream_relationship(self, getattr(source, name))
            self._follow(getattr(source, name))

    @property
    def _table_conn_id(self) -> str:
        """Id of the connection that opens the table."""
        raise NotImplementedError

    @property
    def _connections(self) -> Connections:
        return Connections(table=self._table_conn_id, spark=self.spark_conn_id, checkpoint=self.checkpoint_conn_id)

    def _table(self, key: IdempotenceKey, store: CheckpointStore) -> Table:
        """The table, from its connection.

        :param key: of the write, and the store of its checkpoint: rows that no table gets lie there.
        """
        raise NotImplementedError

    def _parameters(self) -> JsonObject:
        """What the mode is told."""
        raise NotImplementedError

    def _require_usable(self, mode: str, source: object, transform: object) -> None:
        """Refuse what is no source or no transform."""
        del mode
        require_usable(source, transform)

    def _source(self) -> Source:
        """What is read, once templates are rendered."""
        if self.source is None:
            raise InvalidInputError(f"The task {self.task_id!r} has no source.")
        return Files(self.source) if isinstance(self.source, str) else opened_source(self.source)

    def _require_shared_table(self, target: SparkTarget) -> None:
        """Refuse a table that executors are known not to see."""

    def prepare_template(self) -> None:
        """Warn of rows that nothing commits. Airflow calls this for each task once its DAG is whole."""
        super().prepare_template()
        why = why_uncommitted(self) if self._lands and not self._has_key else None
        if why is not None:
            warnings.warn(why, UserWarning, stacklevel=2)

    def prepare_for_execution(self) -> CheckpointedWriteOperator:
        """Copy for one execution, with a source of its own, because its templates are rendered in place."""
        other = super().prepare_for_execution()
        object.__setattr__(other, "source", copy.copy(self.source))
        return other

    def execute(self, context: Context) -> Reference:
        """Stage what is missing, seal, and return the reference."""
        with airflow_errors():
            try:
                with said_of_a_stop(lambda: self._killed, lambda: staged_so_far(self._checkpoint)):
                    output = self._execute(context)
            except EmptyInputError as error:
                if self.if_empty == "skip":
                    raise AirflowSkipException(str(error)) from error
                raise
            self.log.info("This task hands on:\n%s", as_text(output))
            return output

    def on_kill(self) -> None:
        """Stop the Spark job (I12), or keep it from starting. What is staged stays."""
        self._killed = True
        if self._engine is not None:
            self._engine.cancel()
        if self._rounds is not None:
            # Airflow may kill the task before it can say what stays.
            self.log.info("Stopping the Spark job. Splits staged so far stay staged.")
            self._rounds.cancel()

    def _execute(self, context: Context) -> Reference:
        require_equal_pyspark()
        self._warn_if_uncommitted(context)
        key = self._key(context)
        context["ti"].xcom_push(key="idempotence_key", value=key.value)
        self.linked_checkpoints = [LinkedCheckpoint(key.value, self.checkpoint_conn_id)]
        show_checkpoint(context, self)
        target, says = spark_target(self.spark_conn_id, self.spark_conf or {}), StageLog(self.log, self.missing_columns)

        def ready(said: str) -> None:
            self.log.info(said)
            show_spark_ui(context, engine.web_ui)

        with SparkEngine(target, f"checkpoint {key}", self._starting, ready) as engine:
            self._engine = engine
            if self._killed:
                engine.cancel()
            attempt = self._open(context, key, engine)
            checkpoint = self._checkpoint = attempt.checkpoint
            says.opened(attempt)
            self.linked_checkpoints = [LinkedCheckpoint(key.value, self.checkpoint_conn_id, checkpoint.header.generation)]
            lineage = self._lineage = Lineage(self.log)
            lineage.reads(attempt)
            if attempt.commit is not None:
                return self._reused(context, attempt, says)
            if attempt.state is State.FREED:
                return self._freed(context, checkpoint)
            self._stage_missing(attempt, engine, context["ti"].try_number, says)
        self._require_staged(attempt)
        seal = attempt.seal()
        says.missing(attempt)
        source = self._source()
        if not attempt.planned_here and isinstance(source.read if isinstance(source, FrameTransform) else source, Files):
            says.unplanned(attempt)
        says.rejected(attempt, seal)
        says.sealed(attempt, seal)
        recovered = attempt.recovered(seal)
        metrics.sealed(checkpoint.header, seal, attempt.taken_up(seal))
        lineage.staged(attempt, seal)
        sealed_reference = reference(
            checkpoint, seal, State.SEALED,
            recovered=recovered, written=seal.splits - recovered,
            map_index=origin_of(context).map_index, instances=instances_of(context), connections=self._connections,
        )  # fmt: skip
        if engine.application is not None:
            sealed_reference["application"] = engine.application
        return self._unless_empty(context, seal, sealed_reference)

    def _warn_if_uncommitted(self, context: Context) -> None:
        """Warn of rows that nothing commits, of an instance of a mapped task."""
        if self._lands and not self._has_key and origin_of(context).map_index >= 0:
            why = why_uncommitted(context["dag"].get_task(self.task_id))
            if why is not None:
                self.log.warning("%s", why)

    def _require_staged(self, attempt: WriteAttempt) -> None:
        """Look at what is staged before it is sealed."""

    def _key(self, context: Context) -> IdempotenceKey:
        """The key of the write."""
        if self._has_key:
            # A template that renders to nothing must not fall back to the default in silence.
            return IdempotenceKey("None" if self.idempotence_key is None else self.idempotence_key)
        return default_key(context)

    def _stage_missing(self, attempt: WriteAttempt, engine: SparkEngine, try_number: int, says: StageLog) -> None:
        """Stage what is not staged yet, and say what that took."""
        self._rounds = Rounds(engine, try_number)
        if self._killed:
            self._rounds.cancel()
        self._rounds.run(attempt, lambda begun: says.announce(begun, attempt), says.report)
        says.ran(attempt, started=engine.started)

    def _open(self, context: Context, key: IdempotenceKey, engine: SparkEngine) -> WriteAttempt:
        source = planned_in(self._source(), engine.session)
        options = source_options(source)
        transform = transform_of(self.transform, source)
        if transform is not None and transform.aggregate is not None:
            source = GroupedRows(source, options, transform.aggregate)
        origin = origin_of(context)
        store = CheckpointHook(self.checkpoint_conn_id).get_conn()
        require_shared_store(store, engine.target)
        self._require_shared_table(engine.target)
        request = WriteRequest(
            key=key,
            source=source,
            options=options,
            transform=transform,
            transform_version=require_version(self.transform, self.transform_version),
            mode=self.mode,
            parameters=self._parameters(),
            connections=self._connections,
            origin=origin,
            on_change="continue" if continues(context) else self.on_change,
            on_rerun="replace" if self.on_rerun == "replace" else "reuse",
            evolve_schema=self.evolve_schema,
            missing_columns=self.missing_columns,
            save_every=require_save_every(self.save_every),
            on_error=require_on_error(self.on_error, self.max_errors, self.transform),
            sample=_sample(source, options, engine),
            restart_token=restart_token(context),
        )
        table = self._table(key, store)
        require_made_once(context, store, table, request)
        return WriteAttempt(store, table, request)

    def _starting(self, target: SparkTarget) -> None:
        self.log.info("Starting a session on %s.", target.name)

    def _reused(self, context: Context, attempt: WriteAttempt, says: StageLog) -> Reference:
        commit = attempt.commit
        seal = attempt.checkpoint.sealed()
        if commit is None or seal is None:
            raise InvalidInputError(f"{attempt.checkpoint!r} is recorded as committed, but it has no seal: its store was altered.")
        attempt.verify_commit()
        says.reused(attempt, commit)
        metrics.reused(attempt.checkpoint.header)
        committed = committed_reference(
            attempt.checkpoint, seal, commit, landed_now=False,
            map_index=origin_of(context).map_index, instances=instances_of(context), connections=self._connections,
        )  # fmt: skip
        says.uncommitted(attempt)
        return self._unless_empty(context, seal, committed)

    def _freed(self, context: Context, checkpoint: Checkpoint) -> Reference:
        """Hand over what was handed over before the rows were removed: whoever has read them finds that it is done."""
        seal = sealed_of(checkpoint)
        self.log.info(
            "All tasks that have read the %s rows of this key were done, and the rows were removed. Nothing is computed again.",
            f"{seal.rows:,}",
        )
        metrics.reused(checkpoint.header)
        freed = reference(
            checkpoint, seal, State.FREED,
            recovered=seal.splits, written=0, map_index=origin_of(context).map_index, instances=instances_of(context),
            connections=self._connections,
        )  # fmt: skip
        return self._unless_empty(context, seal, freed)

    def _unless_empty(self, context: Context, seal: Seal, output: Reference) -> Reference:
        """The reference, unless there are no rows and the task is not to succeed without.

        :raises EmptyInputError: if it is to fail.
        :raises AirflowSkipException: if it is to be skipped, with the reference in XCom.
        """
        if not seal.is_empty or self.if_empty == "succeed":
            return output
        looked_for = json.dumps(self._source().describe(), default=str)
        if self.if_empty == "fail":
            raise EmptyInputError(
                f"The write of the key {output['idempotence_key']!r} to {output['table']} has no rows, and if_empty='fail' "
                f"asks for some. It read {looked_for}, in {seal.splits} splits. Wait for the input and clear the task, "
                "which looks again."
            )
        if self.do_xcom_push:
            # Airflow keeps what a task pushes before it skips, but takes no return value.
            context["ti"].xcom_push(key="return_value", value=output)
        raise AirflowSkipException(f"There are no rows to write to {output['table']}. Looked for: {looked_for}.")


def transform_of(function: Callable[..., Any] | str | None, source: Source) -> Transform | None:
    """The transform of an argument, None for none."""
    if function is None:
        return None
    return Transform(function, beside=source.place_column if isinstance(source, SampledSource) else None)


def _sample(source: Source, options: Mapping[str, str], engine: SparkEngine) -> Callable[[], Iterable[pa.RecordBatch]] | None:
    """What gives a few rows of a source whose splits do not."""
    if isinstance(source, SessionSource):
        return lambda: source.session_sample(engine.session())
    return (lambda: source.sample(options)) if isinstance(source, SampledSource) else None
