"""Waiting for a checkpoint: in poke, reschedule or deferrable form."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import BaseSensorOperator, conf

from airflow_ckpt_provider.checkpoint.reference import pointers, require_whole
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.hooks.errors import airflow_errors
from airflow_ckpt_provider.hooks.lookup import OwnConnections, reached, said_of_unknown
from airflow_ckpt_provider.triggers.checkpoint import CheckpointTrigger, raise_event_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class CheckpointSensor(BaseSensorOperator):
    """Wait until a checkpoint is sealed or committed.

    :param checkpoint: a checkpoint reference, such as ``stage.output``; a list of them, to wait for all; or an idempotence key,
        which need not exist yet (templated)
    :param until: ``"committed"``, or ``"sealed"`` for staged but not necessarily committed
    :param checkpoint_conn_id: connection of the checkpoint store; None for that of the reference, or ``checkpoint_default`` for a
        bare key. A reference of another one is refused
    :param iceberg_conn_id: connection of the table, where the checkpoint is a bare key of an Iceberg write; a reference has its own
    :param lance_conn_id: the same of a Lance write; None for the credentials of the environment
    :param table: the table, ``namespace.table`` or the dataset's URI; a checkpoint of another one is refused. A bare key does not
        say which table it is of, and the checkpoint store alone is not believed: name the table with it (templated)
    :param branch: the branch that the stage writes to; a checkpoint of another one is refused (templated)
    :param deferrable: wait in the triggerer, without a worker slot
    """

    template_fields: Sequence[str] = ("checkpoint", "table", "branch")

    def __init__(
        self,
        *,
        checkpoint: Any,  # noqa: ANN401 - whatever XCom holds; checked when it is known
        until: Literal["sealed", "committed"] = "committed",
        checkpoint_conn_id: str | None = None,
        iceberg_conn_id: str = "iceberg_default",
        lance_conn_id: str | None = None,
        table: str | None = None,
        branch: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,  # noqa: ANN401 - BaseSensorOperator's
    ) -> None:
        super().__init__(**kwargs)
        if until not in {"sealed", "committed"}:
            raise InvalidInputError(f"until={until!r}: the values are 'sealed' and 'committed'.")
        self.checkpoint = checkpoint
        self.until = until
        self.checkpoint_conn_id = checkpoint_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.lance_conn_id = lance_conn_id
        self.table = table
        self.branch = branch
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:  # noqa: ANN401, RET503 - BaseSensorOperator's; defer() raises
        """Wait here, or in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        with airflow_errors():
            if self._reached(context):
                return None
        self.defer(  # raises
            trigger=CheckpointTrigger(
                checkpoints=pointers(self.checkpoint)[0],
                until=self.until,
                checkpoint_conn_id=self.checkpoint_conn_id,
                iceberg_conn_id=self.iceberg_conn_id,
                lance_conn_id=self.lance_conn_id,
                table=self.table,
                branch=self.branch,
                poll_interval=float(self.poke_interval),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> bool:
        """Look once."""
        with airflow_errors():
            return self._reached(context)

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> None:
        """Go on after the triggerer saw the checkpoint, or could not go on."""
        del context
        with airflow_errors():
            raise_event_error(event)
        self.log.info("Reached: %s.", self.until)

    def _reached(self, context: Context) -> bool:
        connections = OwnConnections.said_by(self)
        given, is_list = pointers(self.checkpoint)
        # As in the commit: a sensor that is mapped itself waits for one instance in each of its own.
        if is_list or context["ti"].map_index in {None, -1}:
            require_whole(given)
        waiting = [pointer for pointer in given if not reached(pointer, State(self.until), connections)]
        if waiting:
            first = waiting[0]
            key = first if isinstance(first, str) else first["idempotence_key"]
            self.log.info("%d of %d checkpoint(s) not %s yet, among them key %s.", len(waiting), len(given), self.until, key)
            unknown = said_of_unknown(first, connections)
            if unknown is not None:
                self.log.info("%s", unknown)
        else:
            self.log.info("Reached: %s.", self.until)
        return not waiting
