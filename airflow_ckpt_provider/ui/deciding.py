"""A decision of a user about a checkpoint: what it will do is said first, and Airflow's audit log keeps who has made it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from airflow.models.log import Log
from airflow.utils.session import create_session

from airflow_ckpt_provider.checkpoint.storage_problems import storage_failures_as_errors
from airflow_ckpt_provider.exceptions import InvalidInputError, panics_as_errors
from airflow_ckpt_provider.hooks.catalog import DEFAULT_CONN_ID
from airflow_ckpt_provider.hooks.lookup import OwnConnections, table_of
from airflow_ckpt_provider.overview.actions import Action, announce, perform
from airflow_ckpt_provider.ui.access import NotAllowedError
from airflow_ckpt_provider.ui.task_keys import Instance, pointed_by

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.ui.access import Viewer


class Decision(NamedTuple):
    """What a user has decided, or is about to.

    :param checkpoint: the newest generation of its key.
    :param conn_id: connection of the store.
    :param table_conn_id: connection of the table, as the user says; empty for what Airflow knows. The store is not asked (I15).
    """

    viewer: Viewer
    action: Action
    checkpoint: Checkpoint
    conn_id: str
    table_conn_id: str = ""

    def announce(self) -> str:
        """What it will do, in numbers.

        :raises CheckpointError: if it cannot be done.
        """
        with panics_as_errors("in the API server"), storage_failures_as_errors():
            return announce(self.action, self.checkpoint, self._table_of)

    def perform(self) -> str:
        """Do it, and say what to do next. It is in the audit log before it is done."""
        said = self.announce()
        self._log(said)
        with panics_as_errors("in the API server"), storage_failures_as_errors():
            return perform(self.action, self.checkpoint, self._table_of, self.viewer.name)

    @property
    def needs_table(self) -> bool:
        """Whether the table is asked, and so has to be opened."""
        return self.action is not Action.CONTINUE

    def _table_of(self, checkpoint: Checkpoint) -> Table:
        table_conn_id = self._table_connection()
        iceberg, lance = table_conn_id or DEFAULT_CONN_ID, table_conn_id or None
        return table_of(checkpoint, checkpoint.header.key, OwnConnections(self.conn_id, iceberg, lance))

    def _table_connection(self) -> str:
        """The connection that the user names, if they may; that of the reference in XCom; or none.

        :raises NotAllowedError: if they name one that they may not see.
        """
        known = self._known_connection()
        if not self.table_conn_id or self.table_conn_id in {known, DEFAULT_CONN_ID}:
            return self.table_conn_id or known
        if not self.viewer.may_read_connection(self.table_conn_id):
            raise NotAllowedError(f"You may not use the connection {self.table_conn_id!r}: that takes the permission to see it.")
        return self.table_conn_id

    def _known_connection(self) -> str:
        origin = self.checkpoint.header.origin
        if not origin.dag_id:
            return ""
        instance = Instance(origin.dag_id, origin.run_id, origin.task_id, origin.map_index)
        named = [pointed for pointed in pointed_by(instance) if pointed.key == self.checkpoint.header.key]
        return named[0].table_conn_id if named else ""

    def _log(self, said: str) -> None:
        header, origin = self.checkpoint.header, self.checkpoint.header.origin
        facts = {
            "idempotence_key": header.key,
            "generation": header.generation,
            "checkpoint_conn_id": self.conn_id,
            "table": header.table.identifier,
            "said": said,
        }
        entry = Log(
            event=f"checkpoint_{self.action}",
            owner=self.viewer.name,
            owner_display_name=self.viewer.name,
            extra=json.dumps(facts),
            dag_id=origin.dag_id or None,
            task_id=origin.task_id or None,
            run_id=origin.run_id or None,
            map_index=origin.map_index,
        )
        with create_session() as session:
            session.add(entry)


def action_of(name: str) -> Action:
    """The action of a name.

    :raises InvalidInputError: if there is none.
    """
    try:
        return Action(name)
    except ValueError:
        raise InvalidInputError(f"There is no action {name!r}; there are {', '.join(Action)}.") from None
