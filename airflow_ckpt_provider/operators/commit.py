"""The commit: lands sealed checkpoints in one snapshot, once. Starts no Spark, unless a check of the staged rows needs it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.checkpoint.reference import pointers, require_whole
from airflow_ckpt_provider.exceptions import BindingMismatchError, CheckpointMissingError, UndoneError
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.hooks.lookup import OwnConnections, find_checkpoint, table_of
from airflow_ckpt_provider.hooks.spark import spark_target
from airflow_ckpt_provider.operators import metrics
from airflow_ckpt_provider.operators.assets import AssetEvents, partitions_of
from airflow_ckpt_provider.operators.handed_on import as_text
from airflow_ckpt_provider.operators.identity import origin_of
from airflow_ckpt_provider.operators.lineage.facts import Lineage
from airflow_ckpt_provider.operators.lineage.told import TellsLineage
from airflow_ckpt_provider.operators.links import CheckpointLink, LinkedCheckpoint, SparkUiLink, show_spark_ui
from airflow_ckpt_provider.operators.stopping import said_of_a_stop
from airflow_ckpt_provider.spark.checks.check import parse_checks
from airflow_ckpt_provider.spark.checks.run import CheckRun
from airflow_ckpt_provider.spark.engine import web_ui_of
from airflow_ckpt_provider.spark.jvm import Starting
from airflow_ckpt_provider.spark.session import spark_session
from airflow_ckpt_provider.tables.format import MAIN
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.grouping import adds_only
from airflow_ckpt_provider.write.outcome import commit_word, settled_reference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.reference import Reference
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.operators.assets import PartitionsOf
    from airflow_ckpt_provider.spark.checks.check import Check, CheckSpec
    from airflow_ckpt_provider.spark.checks.run import Outcome
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.staged_files import CheckCost

#: What stays of a commit that was stopped.
_STOPPED = "stopped; all that is staged stays; the next try looks into the table's history whether the commit has landed"


class CheckpointCommitOperator(TellsLineage, BaseOperator):
    """Commit what a stage sealed: one atomic snapshot, however often this runs.

    With ``checks``, the rows that the commit would add are looked at first (write, audit, publish). All checks are run; if one
    fails, the table is untouched and the rows stay staged, and a later try of this task looks at them again without writing
    anything. Rows that have landed already are not checked.

    A check is one of

    - SQL over the view ``staged``. Its one row's first column is the verdict: true, or a number other than zero, passes. Further
      columns are shown: ``"SELECT max(amount) < 100, max(amount) FROM staged"``. It is one query, with those functions of Spark
      that compute values; it reads no files. Values are bound:
      ``("SELECT count(*) = 0 FROM staged WHERE day <> :day", {"day": "{{ ds }}"})``.
    - A function, or its name as ``"package.module:function"``, that is called with the staged rows: as a Spark DataFrame
      (``staged.dataframe``), as Arrow (``staged.batches(columns=None)``, ``staged.schema``), and counted (``staged.rows``), with
      ``staged.table`` and ``staged.keys``. None or True passes; False, a text that says why, or a failed ``assert`` does not.
    - ``{"no negative amounts": check}``, which gives one of those a name for messages.

    An ``Asset`` among the ``outlets`` gets an event when something has landed, and none when nothing has: a commit that is cleared
    finds its snapshot, and starts no DAG that is scheduled on the asset. For an ``AssetAlias``, that is an event of the table's own
    asset, ``iceberg://<connection id>/<namespace>.<table>`` or ``lance://<scheme>/<path>``. The event has the snapshot id or
    version, rows, files, branch and key as its extra.

    :param checkpoint: a checkpoint reference, such as ``stage.output``; a list of them, such as the output of a mapped stage,
        for one snapshot of all; or an idempotence key (templated)
    :param checks: checks of the staged rows, run before the commit (templated)
    :param checkpoint_conn_id: connection of the checkpoint store; None for that of the reference, or ``checkpoint_default`` for a
        bare key. A reference of another one is refused
    :param iceberg_conn_id: connection of the table, where the checkpoint is a bare key of an Iceberg write; a reference has its own
    :param lance_conn_id: the same of a Lance write; None for the credentials of the environment
    :param table: the table, ``namespace.table`` or the dataset's URI; a checkpoint of another one is refused. A bare key does not
        say which table it is of, and the checkpoint store alone is not believed: name the table with it (templated)
    :param branch: the branch that the stage writes to; a checkpoint of another one is refused. Without it, a bare key lands on
        ``main`` only, unless the store is signed: the store alone is not believed that another one is meant (templated)
    :param mode: the mode of the stage, where the checkpoint is a bare key; a checkpoint of another one is refused. Without it, a
        bare key lands only what adds rows, unless the store is signed: the store alone is not believed that rows are to go. A
        replacement of an earlier generation takes the stage's output (templated)
    :param spark_conn_id: where checks run that need Spark, which is started for those only; if None, that of the reference, or
        ``spark_default`` for a bare key
    :param spark_conf: Spark configuration of that session (templated)
    :param partition_events: whether the assets in ``outlets`` get an event for each partition of the table that was written to,
        with its name as partition key, such as ``day=2026-01-01``, in place of one of all: for DAGs that a
        ``PartitionedAssetTimetable`` starts, and no others
    :returns: the reference with ``state`` ``committed`` and the member ``commit``; a list of them for a list, in its order
    """

    operator_extra_links = (CheckpointLink(), SparkUiLink())

    #: What ``CheckpointLink`` leads to.
    linked_checkpoints: Sequence[LinkedCheckpoint] = ()

    template_fields: Sequence[str] = ("checkpoint", "checks", "spark_conf", "table", "branch", "mode")
    template_fields_renderers = {"checks": "sql", "spark_conf": "json"}  # noqa: RUF012 - Airflow's own attribute

    def __init__(
        self,
        *,
        checkpoint: Any,  # noqa: ANN401 - a reference, a list of them, a key, or an XCom that is one of those
        checks: Sequence[CheckSpec] | None = None,
        checkpoint_conn_id: str | None = None,
        iceberg_conn_id: str = "iceberg_default",
        lance_conn_id: str | None = None,
        table: str | None = None,
        branch: str | None = None,
        mode: str | None = None,
        spark_conn_id: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        partition_events: bool = False,
        **kwargs: Any,  # noqa: ANN401 - BaseOperator's
    ) -> None:
        super().__init__(**kwargs)
        parse_checks(checks)
        self.checkpoint = checkpoint
        self.checks = checks
        self.checkpoint_conn_id = checkpoint_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.lance_conn_id = lance_conn_id
        self.table = table
        self.branch = branch
        self.mode = mode
        self.spark_conn_id = spark_conn_id
        self.spark_conf = spark_conf
        self.partition_events = partition_events
        self._run: CheckRun | None = None
        self._start: Starting | None = None
        self._killed = False

    def execute(self, context: Context) -> Reference | list[Reference]:
        """Commit, and return what was committed."""
        with airflow_errors(), said_of_a_stop(lambda: self._killed, lambda: _STOPPED):
            output = self._execute(context)
            self.log.info("This task hands on:\n%s", as_text(output))
            return output

    def on_kill(self) -> None:
        """Stop a check that is running (I12), or keep it from starting. What is staged stays."""
        self._killed = True
        if self._start is not None:
            self._start.stop()
        if self._run is not None:
            self.log.info("Stopping the checks. Nothing is committed; what is staged stays.")
            self._run.cancel()

    def _execute(self, context: Context) -> Reference | list[Reference]:
        given, is_list = pointers(self.checkpoint)
        # A mapped commit commits one instance in each of its own. Where all instances of a mapped group failed but one, Airflow
        # hands over that reference, and no list.
        if is_list or origin_of(context).map_index < 0:
            require_whole(given)
        checkpoints = []
        for pointer in given:
            checkpoint = find_checkpoint(pointer, self._own)
            if checkpoint is None:
                raise CheckpointMissingError(
                    f"There is no checkpoint under the key {pointer!r} in the store of the connection "
                    f"{self._own.store_of(pointer)!r}. Run its stage first, or correct the key."
                )
            checkpoints.append(checkpoint)
            if checkpoint.header.undoes is not None:
                raise UndoneError(
                    f"What generation {checkpoint.header.undoes} of the key {checkpoint.key.value!r} has committed to "
                    f"{checkpoint.header.table.identifier} was undone, or is about to be, and nothing was staged under the key "
                    f"since. To write it anew: clear the task {checkpoint.header.origin.task_id!r}, then this one."
                )
        header = checkpoints[0].header
        self.linked_checkpoints = [
            LinkedCheckpoint(checkpoint.key.value, self._own.store_of(pointer), checkpoint.header.generation)
            for checkpoint, pointer in zip(checkpoints, given, strict=True)
        ]
        table = table_of(checkpoints[0], given[0], self._own)
        for pointer, checkpoint in zip(given, checkpoints, strict=True):
            if isinstance(pointer, str):
                self._require_told(checkpoint)
        connections = [self._own.of(*pair) for pair in zip(checkpoints, given, strict=True)]
        spark_conn_id = self.spark_conn_id or connections[0].spark
        checks = parse_checks(self.checks)
        self.log.info("Committing %d checkpoint(s) to %s, key %s.", len(checkpoints), header.table.identifier, header.key)
        events = AssetEvents(self, context)
        lineage = self._lineage = Lineage(self.log)
        audit = (lambda writes: self._check(context, checks, writes, table, spark_conn_id)) if checks else None
        settled = groups.commit(checkpoints, table, audit, self._log_check, lambda tries: metrics.tried(header, tries))
        for commit_id in dict.fromkeys(member.commit.commit_id for member in settled):
            members = [member for member in settled if member.commit.commit_id == commit_id]
            self._log_outcome(commit_id, members)
            metrics.settled(members)
        lineage.committed(table, settled)
        references = [settled_reference(*facts) for facts in zip(settled, given, connections, strict=True)]
        told = events.emit(references, self._partitions_of(table, references, settled) if self.partition_events else None)
        if told:
            self.log.info("Told Airflow that something has landed in the assets %s.", ", ".join(told))
        return references if is_list else references[0]

    @staticmethod
    def _partitions_of(table: Table, references: Sequence[Reference], settled: Sequence[groups.Settled]) -> PartitionsOf:
        members = {reference["idempotence_key"]: member for reference, member in zip(references, settled, strict=True)}
        return lambda landed: partitions_of(table, [members[reference["idempotence_key"]] for reference in landed])

    def _require_told(self, checkpoint: Checkpoint) -> None:
        """Refuse to remove rows, or to write to a branch, because the store says so, where no reference and no DAG does (I15).

        :raises BindingMismatchError: if the store names another mode than the DAG, or a removal or branch that only it names.
        """
        header = checkpoint.header
        if self.mode not in {None, header.mode}:
            raise BindingMismatchError(
                f"The checkpoint of the key {header.key!r} is of the mode {header.mode!r}, and this task was given "
                f"mode={self.mode!r}. Correct the key or the mode; if both are right, the store was altered. Nothing was changed."
            )
        # What is signed was written by a stage, whoever else can write to the store; a recorded commit is looked for in the table.
        if checkpoint.store.signer is not None or checkpoint.committed() is not None:
            return
        if self.branch is None and header.table.branch != MAIN:
            raise BindingMismatchError(
                f"The checkpoint of the key {header.key!r} would be committed to the branch {header.table.branch!r} of "
                f"{header.table.identifier}, and a key alone means {MAIN!r}: the checkpoint store is not believed. Nothing was "
                f"changed. Pass the stage's output instead of its key, or name branch={header.table.branch!r} here if that is what "
                "the stage has."
            )
        is_replacement = header.replaces is not None
        if not is_replacement and (self.mode is not None or adds_only([header])):
            return
        how = "in place of an earlier generation" if is_replacement else f"with the mode {header.mode!r}"
        or_mode = "" if is_replacement else f", or name mode={header.mode!r} here if that is what the stage has"
        raise BindingMismatchError(
            f"The checkpoint of the key {header.key!r} would be committed to {header.table.identifier} {how}, which removes rows. "
            "A key alone does not say so, and the checkpoint store is not believed. Nothing was changed. Pass the stage's output "
            f"instead of its key{or_mode}."
        )

    @property
    def _own(self) -> OwnConnections:
        return OwnConnections.said_by(self)

    def _check(
        self, context: Context, checks: Sequence[Check], writes: Sequence[SealedWrite], table: Table, spark_conn_id: str
    ) -> None:
        """Run the checks over what is about to land."""
        rows = sum(write.seal.rows for write in writes)
        self.log.info("Running %d checks over %s staged rows of %s.", len(checks), f"{rows:,}", table.identifier)
        start = self._start = Starting()
        if self._killed:
            start.stop()
        with contextlib.ExitStack() as stack:

            def session() -> SparkSession:
                target = spark_target(spark_conn_id, self.spark_conf or {})
                self.log.info("A check needs Spark. Starting a session on %s.", target.name)
                spark = stack.enter_context(spark_session(target, f"checks {writes[0].header.key}", start))
                show_spark_ui(context, web_ui_of(spark))
                return spark

            self._run = CheckRun(checks, table, writes, session)
            try:
                if self._killed:
                    self._run.cancel()
                self._run.run(self._report)
            finally:
                self._run = None

    def _log_check(self, cost: CheckCost) -> None:
        if cost.is_long:
            self.log.info("Looking at %s staged files, before they land, took %.1f s.", f"{cost.files:,}", cost.seconds)

    def _report(self, outcome: Outcome) -> None:
        self.log.info("%s (%.1f s)", outcome, outcome.seconds)
        if self._lineage is not None:
            self._lineage.checked(outcome)

    def _log_outcome(self, commit_id: int | None, members: list[groups.Settled]) -> None:
        rows, files = sum(member.seal.rows for member in members), sum(member.seal.files for member in members)
        what = commit_word(members[0].checkpoint)
        if commit_id is None:
            self.log.info("There was nothing to write, so there is no %s.", what)
        elif any(member.landed_now for member in members):
            self.log.info("%s %d has landed: %s rows in %d files.", what.capitalize(), commit_id, f"{rows:,}", files)
        else:
            self.log.info("%s %d had landed before: %s rows. Nothing is repeated.", what.capitalize(), commit_id, f"{rows:,}")
