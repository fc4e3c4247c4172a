"""The wait of a deferred sensor. It holds references and connection ids only; everything it found goes into its event."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.checkpoint.storage_problems import storage_failures_as_errors
from airflow_ckpt_provider.exceptions import RetryableError, TerminalError, panics_as_errors, terminal_error
from airflow_ckpt_provider.hooks.lookup import OwnConnections, reached

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_ckpt_provider.checkpoint.reference import Reference


class CheckpointTrigger(BaseTrigger):
    """Fires when all checkpoints are sealed or committed.

    The event's payload is ``{"status": "success"}``, or ``{"status": "error", "error": <type>, "message": <text>}`` for what no
    waiting can cure. A store that does not answer is asked again at the next look.

    :param checkpoints: references or idempotence keys
    :param until: ``sealed`` or ``committed``
    :param checkpoint_conn_id: see ``CheckpointSensor``; so ``iceberg_conn_id``, ``lance_conn_id``, ``table`` and ``branch``
    :param poll_interval: seconds between looks
    """

    def __init__(
        self,
        checkpoints: list[str | Reference],
        until: str,
        checkpoint_conn_id: str | None = None,
        poll_interval: float = 60.0,
        iceberg_conn_id: str = "iceberg_default",
        lance_conn_id: str | None = None,
        table: str | None = None,
        branch: str | None = None,
    ) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.until = until
        self.checkpoint_conn_id = checkpoint_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.lance_conn_id = lance_conn_id
        self.table = table
        self.branch = branch
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What the triggerer is started with."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "checkpoints": self.checkpoints,
                "until": self.until,
                "checkpoint_conn_id": self.checkpoint_conn_id,
                "iceberg_conn_id": self.iceberg_conn_id,
                "lance_conn_id": self.lance_conn_id,
                "table": self.table,
                "branch": self.branch,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until all are reached. Looking blocks, so it is done in a thread."""
        waiting = list(self.checkpoints)
        while True:
            try:
                waiting = [pointer for pointer in waiting if not await asyncio.to_thread(self._reached, pointer)]
            except TerminalError as error:
                yield TriggerEvent({"status": "error", "error": type(error).__name__, "message": str(error)})
                return
            except RetryableError as error:
                self.log.warning("%s Looking again in %.0f s.", error, self.poll_interval)
            if not waiting:
                yield TriggerEvent({"status": "success"})
                return
            await asyncio.sleep(self.poll_interval)

    def _reached(self, pointer: str | Reference) -> bool:
        connections = OwnConnections.said_by(self)
        with panics_as_errors("while a checkpoint was looked at"), storage_failures_as_errors():
            return reached(pointer, State(self.until), connections)


def raise_event_error(event: dict[str, Any] | None) -> None:
    """Raise the error that an event carries, as the type it had in the triggerer."""
    if event is None:
        raise RetryableError("The trigger ended without an event.")
    if event["status"] != "success":
        raise terminal_error(event["error"], event["message"])
