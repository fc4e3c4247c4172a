"""The stage: writes rows into files of an Iceberg table that no snapshot references yet, and remembers each split."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.checkpoint.checkpoint import State
from airflow_ckpt_provider.checkpoint.documents import Connections
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.reference import CommitFacts, reference
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.hooks.catalog import iceberg_catalog
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.hooks.sources import source_options
from airflow_ckpt_provider.hooks.spark import spark_target
from airflow_ckpt_provider.operators.identity import default_key, origin_of, restart_token
from airflow_ckpt_provider.operators.modes import PARAMETERS, parameters_of, require_policies, require_usable
from airflow_ckpt_provider.sources import Files, SparkDataFrame
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.spark.attempt import WriteAttempt, require_shared_store
from airflow_ckpt_provider.spark.request import WriteRequest
from airflow_ckpt_provider.spark.rounds import LazySession, StageRounds
from airflow_ckpt_provider.spark.session import require_equal_pyspark
from airflow_ckpt_provider.tables.iceberg.table import IcebergTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.sources import Source
    from airflow_ckpt_provider.spark.attempt import Round
    from airflow_ckpt_provider.spark.session import SparkTarget
    from airflow_ckpt_provider.spark.stage import Progress

Mode = Literal["create", "append", "overwrite", "overwrite_partitions", "upsert"]


class CheckpointedIcebergWriteOperator(BaseOperator):
    """Write a source into an Iceberg table, checkpointed: a retry recovers what was staged and writes only the rest.

    The rows land in the table when a ``CheckpointCommitOperator`` commits the reference that this returns.

    :param table: ``namespace.table`` in the catalog (templated)
    :param source: what to read: a source such as ``Files``, ``IcebergTable`` or ``SparkDataFrame``, or a path or glob of Parquet
        files (templated)
    :param transform: a function from a ``pyarrow.RecordBatch`` to a batch, a table, or an iterable of batches; or its name as
        ``"package.module:function"``; None to write the rows as they are
    :param mode: how the rows land, in one snapshot: ``"append"``; ``"create"`` makes the table, which must not exist;
        ``"overwrite"`` replaces all rows, or those of ``overwrite_filter``; ``"overwrite_partitions"`` replaces the partitions
        that occur in the rows; ``"upsert"`` updates rows that have the same ``upsert_keys`` and inserts the others (templated)
    :param overwrite_filter: with ``overwrite``: the rows to replace, such as ``"day = '2026-01-01'"``; all new rows have to match
        it (templated)
    :param upsert_keys: with ``upsert``: the columns that identify a row; null equals null (templated)
    :param when_matched: with ``upsert``: ``"update"`` (default) or ``"ignore"``
    :param when_not_matched: with ``upsert``: ``"insert"`` (default) or ``"ignore"``
    :param partition_by: with ``create``: terms such as ``"day(ts)"``, ``"bucket(16, id)"``, ``"region"`` (templated)
    :param sort_by: with ``create``: the sort order to record, such as ``"id"`` or ``"ts desc nulls last"`` (templated)
    :param table_properties: with ``create``: properties of the table (templated)
    :param location: with ``create``: where the table's files go; the catalog decides if None (templated)
    :param branch: branch of the table to write to; one that does not exist begins where ``main`` is (templated)
    :param evolve_schema: add columns that the table lacks, as optional ones, and promote types that are too narrow, in a commit of
        its own before anything is staged
    :param idempotence_key: the name under which this write is remembered, up to 512 characters. Default: DAG, task, run and map
        index (templated)
    :param on_change: what to do if the key belongs to a write with another table, source, mode or transform: ``"fail"``, or
        ``"restart"`` to discard what is staged and begin anew
    :param on_rerun: what to do if the key is committed already: ``"reuse"`` checks and reports the existing snapshot;
        ``"replace"`` writes anew, and its commit removes exactly the files that the earlier one committed for rows of this key
    :param iceberg_conn_id: connection of type ``iceberg``; an embedded catalog if ``iceberg_default`` does not exist
    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``; ``local[*]`` if ``spark_default`` does not exist
    :param spark_conf: Spark configuration of the session (templated)
    :param checkpoint_conn_id: connection of type ``checkpoint``; a folder below ``AIRFLOW_HOME`` if ``checkpoint_default`` does
        not exist
    :returns: the checkpoint reference, see ``airflow_ckpt_provider.checkpoint.reference.Reference``
    """

    template_fields: Sequence[str] = ("table", "source", "mode", *PARAMETERS, "branch", "idempotence_key", "spark_conf")
    template_fields_renderers = {"spark_conf": "json", "table_properties": "json"}  # noqa: RUF012 - Airflow's own attribute

    def __init__(
        self,
        *,
        table: str,
        source: Source | str,
        transform: Callable[..., Any] | str | None = None,
        mode: Mode = "append",
        overwrite_filter: str | None = None,
        upsert_keys: Sequence[str] | str | None = None,
        when_matched: Literal["update", "ignore"] | None = None,
        when_not_matched: Literal["insert", "ignore"] | None = None,
        partition_by: Sequence[str] | str | None = None,
        sort_by: Sequence[str] | str | None = None,
        table_properties: Mapping[str, str] | None = None,
        location: str | None = None,
        branch: str = "main",
        evolve_schema: bool = False,
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
        require_policies(on_change, on_rerun)
        require_usable(source, transform)
        self.table = table
        # Airflow renders templates inside a source in place: a copy of its own keeps mapped tasks apart.
        self.source = copy.copy(source)
        self.transform = transform
        self.mode = mode
        self.overwrite_filter = overwrite_filter
        self.upsert_keys = upsert_keys
        self.when_matched = when_matched
        self.when_not_matched = when_not_matched
        self.partition_by = partition_by
        self.sort_by = sort_by
        self.table_properties = table_properties
        self.location = location
        self.branch = branch
        self.evolve_schema = evolve_schema
        self.idempotence_key = idempotence_key
        self.on_change = on_change
        self.on_rerun = on_rerun
        self.iceberg_conn_id = iceberg_conn_id
        self.spark_conn_id = spark_conn_id
        self.spark_conf = spark_conf
        self.checkpoint_conn_id = checkpoint_conn_id
        parameters_of(self)
        self._has_key = idempotence_key is not None
        self._rounds: StageRounds | None = None
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
        if self._rounds is not None:
            self.log.info("Stopping the Spark job. Splits staged so far stay staged.")
            self._rounds.cancel()

    def _execute(self, context: Context) -> Reference:
        require_equal_pyspark()
        # A template that renders to nothing must not fall back to the default in silence.
        key = (
            IdempotenceKey("None" if self.idempotence_key is None else self.idempotence_key)
            if self._has_key
            else default_key(context)
        )
        context["ti"].xcom_push(key="idempotence_key", value=key.value)
        target = spark_target(self.spark_conn_id, self.spark_conf or {})
        with LazySession(target, f"checkpoint {key}", self._starting) as session:
            attempt = self._open(context, key, session)
            checkpoint = attempt.checkpoint
            self.log.info(
                "Idempotence key %s, generation %d, table %s, store %s: %s.",
                key, checkpoint.header.generation, checkpoint.header.table.identifier, checkpoint.store.uri, attempt.state,
            )  # fmt: skip
            for line in attempt.evolved:
                self.log.info("The schema of %s was evolved: %s.", self.table, line)
            if attempt.commit is not None:
                return self._reused(context, attempt)
            self._rounds = StageRounds(session, context["ti"].try_number)
            if self._killed:
                self._rounds.cancel()
            self._rounds.run(attempt, self._announce, self._report)
            if not session.started:
                self.log.info("Everything is staged. No Spark is started.")
        seal = attempt.seal()
        recovered = attempt.recovered(seal)
        self.log.info(
            "Sealed: %d splits (%d recovered, %d written now), %s rows in %d files%s. Ready to be committed.",
            seal.splits, recovered, seal.splits - recovered, f"{seal.rows:,}", seal.files, _counted(seal.counts),
        )  # fmt: skip
        map_index = origin_of(context).map_index
        return reference(checkpoint, seal, State.SEALED, recovered=recovered, written=seal.splits - recovered, map_index=map_index)

    def _open(self, context: Context, key: IdempotenceKey, session: LazySession) -> WriteAttempt:
        source = Files(self.source) if isinstance(self.source, str) else self.source
        origin = origin_of(context)
        store = CheckpointHook(self.checkpoint_conn_id).get_conn()
        require_shared_store(store, session.target)
        request = WriteRequest(
            key=key,
            source=source,
            options=source_options(source),
            transform=Transform(self.transform) if self.transform is not None else None,
            mode=self.mode,
            parameters=parameters_of(self),
            connections=Connections(table=self.iceberg_conn_id, spark=self.spark_conn_id, checkpoint=self.checkpoint_conn_id),
            origin=origin,
            on_change="restart" if self.on_change == "restart" else "fail",
            on_rerun="replace" if self.on_rerun == "replace" else "reuse",
            evolve_schema=self.evolve_schema,
            sample=(lambda: source.sample(session.get())) if isinstance(source, SparkDataFrame) else None,
            restart_token=restart_token(context),
        )
        table = IcebergTarget(iceberg_catalog(self.iceberg_conn_id), self.table, self.branch)
        return WriteAttempt(store, table, request)

    def _announce(self, found: Round) -> None:
        total, missing = len(found.plan.splits), len(found.missing)
        which = f"Round {found.number}: " if found.number > 1 else ""
        self.log.info("%s%d splits planned: %d are staged already, %d to write.", which, total, total - missing, missing)

    def _starting(self, target: SparkTarget) -> None:
        self.log.info("Starting a session on %s.", target.name)

    def _report(self, progress: Progress) -> None:
        self.log.info("%s", progress)

    def _reused(self, context: Context, attempt: WriteAttempt) -> Reference:
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
        found = reference(attempt.checkpoint, seal, State.COMMITTED, recovered=seal.splits, written=0, map_index=map_index)
        found["commit"] = CommitFacts(
            snapshot_id=commit.snapshot_id, committed_at=commit.committed_at.isoformat(), landed_now=False
        )
        return found


def _counted(counts: Mapping[str, int]) -> str:
    """What became of the rows, where a mode distinguishes: ``; inserted 5, unchanged 3``."""
    return "; " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) if counts else ""
