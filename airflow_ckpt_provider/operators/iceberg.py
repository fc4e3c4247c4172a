"""The stage: writes rows into files of an Iceberg table that no snapshot references yet, and remembers each split."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.checkpoint.checkpoint import State
from airflow_ckpt_provider.checkpoint.documents import Connections
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.reference import CommitFacts, reference
from airflow_ckpt_provider.exceptions import InvalidInputError, NotSupportedYetError
from airflow_ckpt_provider.hooks.catalog import iceberg_catalog
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook, storage_options
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.hooks.spark import spark_target
from airflow_ckpt_provider.operators.identity import default_key, origin_of, restart_token
from airflow_ckpt_provider.sources import Files, Source
from airflow_ckpt_provider.sources.transform import Transform, parse_name
from airflow_ckpt_provider.spark.attempt import WriteAttempt, WriteRequest, require_shared_store
from airflow_ckpt_provider.spark.session import require_equal_pyspark, spark_session
from airflow_ckpt_provider.spark.stage import StageRun
from airflow_ckpt_provider.tables.iceberg.table import IcebergTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.documents import Plan, Split
    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.spark.stage import Progress

Mode = Literal["create", "append", "overwrite", "overwrite_partitions", "upsert"]

_MODES = ("create", "append", "overwrite", "overwrite_partitions", "upsert")


class CheckpointedIcebergWriteOperator(BaseOperator):
    """Write a source into an Iceberg table, checkpointed: a retry recovers what was staged and writes only the rest.

    The rows land in the table when a ``CheckpointCommitOperator`` commits the reference that this returns.

    :param table: ``namespace.table`` in the catalog; must exist (templated)
    :param source: what to read: a ``Files`` source, or a path or glob of Parquet files (templated)
    :param transform: a function from a ``pyarrow.RecordBatch`` to a batch, a table, or an iterable of batches; or its name as
        ``"package.module:function"``; None to write the rows as they are
    :param mode: ``"append"``; the other modes are not supported yet (templated)
    :param partition_by: partitioning of a table to create; not supported yet
    :param idempotence_key: the name under which this write is remembered, up to 512 characters. Default: DAG, task, run and map
        index (templated)
    :param on_change: what to do if the key belongs to a write with another table, source, mode or transform: ``"fail"``, or
        ``"restart"`` to discard what is staged and begin anew
    :param on_rerun: what to do if the key is committed already: ``"reuse"`` checks and reports the existing snapshot
    :param iceberg_conn_id: connection of type ``iceberg``; an embedded catalog if ``iceberg_default`` does not exist
    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``; ``local[*]`` if ``spark_default`` does not exist
    :param spark_conf: Spark configuration of the session (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint``; a folder below ``AIRFLOW_HOME`` if ``checkpoint_default`` does
        not exist
    :returns: the checkpoint reference, see ``airflow_ckpt_provider.checkpoint.reference.Reference``
    """

    template_fields: Sequence[str] = ("table", "source", "mode", "idempotence_key", "spark_conf")
    template_fields_renderers = {"spark_conf": "json"}  # noqa: RUF012 - Airflow's own attribute

    def __init__(
        self,
        *,
        table: str,
        source: Source | str,
        transform: Callable[..., Any] | str | None = None,
        mode: Mode = "append",
        partition_by: Sequence[str] | None = None,
        idempotence_key: str | None = None,
        on_change: Literal["fail", "restart", "continue"] = "fail",
        on_rerun: Literal["reuse", "replace"] = "reuse",
        iceberg_conn_id: str = "iceberg_default",
        spark_conn_id: str = "spark_default",
        spark_conf: Mapping[str, str] | None = None,
        checkpoint_conn_id: str = "checkpoint_default",
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's
    ) -> None:
        super().__init__(**kwargs)
        _require_supported(mode, partition_by, on_change, on_rerun)
        _require_usable(source, transform)
        self.table = table
        # Airflow renders templates inside a source in place: a copy of its own keeps mapped tasks apart.
        self.source = copy.copy(source)
        self.transform = transform
        self.mode = mode
        self.partition_by = partition_by
        self.idempotence_key = idempotence_key
        self.on_change = on_change
        self.on_rerun = on_rerun
        self.iceberg_conn_id = iceberg_conn_id
        self.spark_conn_id = spark_conn_id
        self.spark_conf = spark_conf
        self.checkpoint_conn_id = checkpoint_conn_id
        self._has_key = idempotence_key is not None
        self._run: StageRun | None = None
        self._killed = False

    def prepare_for_execution(self) -> CheckpointedIcebergWriteOperator:
        """Copy for one execution, with a source of its own, because its templates are rendered in place."""
        other = super().prepare_for_execution()
        object.__setattr__(other, "source", copy.copy(self.source))
        return other

    def execute(self, context: Context) -> Reference:
        """Stage what is missing, seal, and return the reference."""
        with airflow_errors():
            return self._execute(context)

    def on_kill(self) -> None:
        """Stop the Spark job (I12), or keep it from starting. What is staged stays."""
        self._killed = True
        if self._run is not None:
            self.log.info("Stopping the Spark job. Splits staged so far stay staged.")
            self._run.cancel()

    def _execute(self, context: Context) -> Reference:
        _require_supported(self.mode, self.partition_by, self.on_change, self.on_rerun)
        require_equal_pyspark()
        # A template that renders to nothing must not fall back to the default in silence.
        key = (
            IdempotenceKey("None" if self.idempotence_key is None else self.idempotence_key)
            if self._has_key
            else default_key(context)
        )
        context["ti"].xcom_push(key="idempotence_key", value=key.value)
        attempt = self._open(context, key)
        checkpoint = attempt.checkpoint
        self.log.info(
            "Idempotence key %s, generation %d, table %s, store %s: %s.",
            key, checkpoint.header.generation, checkpoint.header.table.identifier, checkpoint.store.uri, attempt.state,
        )  # fmt: skip
        plan = attempt.plan()
        if attempt.commit is not None:
            return self._reused(context, attempt, plan)
        if checkpoint.sealed() is not None:
            self.log.info("All %d splits are staged and sealed. No Spark is started.", len(plan.splits))
            missing: list[Split] = []
        else:
            missing = attempt.missing(plan)
            self._stage(context, attempt, plan, missing)
        seal = attempt.seal(plan)
        self.log.info(
            "Sealed: %d splits (%d recovered, %d written now), %s rows in %d files. Ready to be committed.",
            seal.splits, len(plan.splits) - len(missing), len(missing), f"{seal.rows:,}", seal.files,
        )  # fmt: skip
        recovered = len(plan.splits) - len(missing)
        map_index = origin_of(context).map_index
        return reference(checkpoint, seal, State.SEALED, recovered=recovered, written=len(missing), map_index=map_index)

    def _open(self, context: Context, key: IdempotenceKey) -> WriteAttempt:
        source = Files(self.source) if isinstance(self.source, str) else self.source
        origin = origin_of(context)
        store = CheckpointHook(self.checkpoint_conn_id).get_conn()
        require_shared_store(store, spark_target(self.spark_conn_id, self.spark_conf or {}))
        request = WriteRequest(
            key=key,
            source=source,
            options=storage_options(source.conn_id),
            transform=Transform(self.transform) if self.transform is not None else None,
            mode=self.mode,
            connections=Connections(table=self.iceberg_conn_id, spark=self.spark_conn_id, checkpoint=self.checkpoint_conn_id),
            origin=origin,
            on_change="restart" if self.on_change == "restart" else "fail",
            restart_token=restart_token(context),
        )
        table = IcebergTarget(iceberg_catalog(self.iceberg_conn_id), self.table)
        return WriteAttempt(store, table, request)

    def _stage(self, context: Context, attempt: WriteAttempt, plan: Plan, missing: list[Split]) -> None:
        recovered = len(plan.splits) - len(missing)
        self.log.info(
            "%d splits planned: %d recovered from earlier attempts, %d to write.", len(plan.splits), recovered, len(missing)
        )
        if not missing:
            return
        target = spark_target(self.spark_conn_id, self.spark_conf or {})
        self.log.info("Starting a session on %s.", target.name)
        with spark_session(target, f"checkpoint {attempt.checkpoint.key}") as spark:
            work = attempt.begin(engine=target.name, try_number=context["ti"].try_number)
            self._run = StageRun(spark, attempt.checkpoint, work, missing, recovered)
            try:
                if self._killed:
                    # The signal came while the session was starting.
                    self._run.cancel()
                self._run.run(self._report)
            finally:
                self._run = None

    def _report(self, progress: Progress) -> None:
        self.log.info("%s", progress)

    def _reused(self, context: Context, attempt: WriteAttempt, plan: Plan) -> Reference:
        commit = attempt.commit
        seal = attempt.checkpoint.sealed()
        if commit is None or seal is None:
            raise InvalidInputError(f"{attempt.checkpoint!r} is recorded as committed, but it has no seal: its store was altered.")
        attempt.verify_commit()
        self.log.info(
            "The key is committed already as snapshot %s, at %s. Nothing is written; no Spark is started.",
            commit.snapshot_id, commit.committed_at.isoformat(),
        )  # fmt: skip
        map_index = origin_of(context).map_index
        found = reference(attempt.checkpoint, seal, State.COMMITTED, recovered=len(plan.splits), written=0, map_index=map_index)
        found["commit"] = CommitFacts(
            snapshot_id=commit.snapshot_id, committed_at=commit.committed_at.isoformat(), landed_now=False
        )
        return found


def _require_usable(source: object, transform: object) -> None:
    """Refuse what is no source or no transform when the DAG is parsed. References to XComs are known at run time only."""
    if isinstance(transform, str):
        parse_name(transform)
    elif transform is not None and not callable(transform):
        raise InvalidInputError(f"transform={transform!r} is neither a function nor a name like 'package.module:function'.")
    if not isinstance(source, str | Source) and not hasattr(source, "resolve"):
        raise InvalidInputError(f"source={source!r} is neither a source, such as Files(...), nor a path or glob.")


def _require_supported(mode: str, partition_by: object, on_change: str, on_rerun: str) -> None:
    """Refuse what this version does not have: when the DAG is parsed, and again after templates are rendered."""
    if "{{" not in mode and mode not in _MODES:
        raise InvalidInputError(f"mode={mode!r}: the modes are {', '.join(_MODES)}.")
    later = {
        f"mode={mode!r}": mode in _MODES and mode != "append",
        "partition_by": partition_by is not None,
        "on_change='continue'": on_change == "continue",
        "on_rerun='replace'": on_rerun == "replace",
    }
    for what, wanted in later.items():
        if wanted:
            raise NotSupportedYetError(f"{what} is not supported yet. This version appends to an existing table.")
    if on_change not in {"fail", "restart"}:
        raise InvalidInputError(f"on_change={on_change!r}: the values are 'fail' and 'restart'.")
    if on_rerun != "reuse":
        raise InvalidInputError(f"on_rerun={on_rerun!r}: the only value is 'reuse'.")
