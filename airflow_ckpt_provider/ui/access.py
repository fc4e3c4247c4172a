"""Who may see and change what: answered by Airflow's auth manager, for the Dag that a checkpoint's own header names.

Decision: never for a Dag that the address names. A page knows the Dag only once it has read the checkpoint, and a user who may see
one Dag must not see the checkpoint of another by naming the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.models.connection import Connection
from airflow.models.dag import DagModel

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser


class NotAllowedError(Exception):
    """The user may not do this. The message goes to them, and names nothing that they may not see."""


class Viewer:
    """A user who has asked for a page.

    :param user: as Airflow has authenticated them.
    :param conn_id: connection of the store that they look into. Checkpoints of programs, which no Dag runs, are for those who may
        read, or change, this connection.
    """

    def __init__(self, user: BaseUser, conn_id: str) -> None:
        self._user = user
        self._conn_id = conn_id
        self._answers: dict[tuple[str, str], bool] = {}

    def at(self, conn_id: str) -> Viewer:
        """The same user, who looks into another store."""
        return self if conn_id == self._conn_id else Viewer(self._user, conn_id)

    @property
    def name(self) -> str:
        """As Airflow's audit log has it."""
        return self._user.get_name()

    def may_see(self, dag_id: str) -> bool:
        """Whether the checkpoints of a Dag are theirs to see.

        :param dag_id: of the origin in a header; empty for a program.
        """
        return self._may("GET", dag_id)

    def may_change(self, dag_id: str) -> bool:
        """Whether they may decide what becomes of a Dag's checkpoints."""
        return self._may("PUT", dag_id)

    def may_read_connection(self, conn_id: str) -> bool:
        """Whether they may see a connection, and so name it."""
        return self._may_connection("GET", conn_id)

    def require_seeing(self, dag_id: str) -> None:
        """Refuse a user who may not see the checkpoints of a Dag.

        :raises NotAllowedError: without naming the Dag.
        """
        if not self.may_see(dag_id):
            raise NotAllowedError("You may not see this checkpoint: it belongs to a Dag, or a program, that you have no access to.")

    def require_changing(self, dag_id: str) -> None:
        """The same of a change.

        :raises NotAllowedError: naming the Dag only to those who may see it.
        """
        self.require_seeing(dag_id)
        if not self.may_change(dag_id):
            what = f"the Dag {dag_id!r}" if dag_id else "the checkpoint connection, as its program has no Dag"
            raise NotAllowedError(f"You may see this checkpoint and not change it: that takes the permission to edit {what}.")

    def _may(self, method: Literal["GET", "PUT"], dag_id: str) -> bool:
        answer = self._answers.get((method, dag_id))
        if answer is None:
            answer = self._may_dag(method, dag_id) if dag_id else self._may_connection(method, self._conn_id)
            self._answers[method, dag_id] = answer
        return answer

    def _may_dag(self, method: Literal["GET", "PUT"], dag_id: str) -> bool:
        return get_auth_manager().is_authorized_dag(
            method=method,
            access_entity=DagAccessEntity.TASK_INSTANCE,
            details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
            user=self._user,
        )

    def _may_connection(self, method: Literal["GET", "PUT"], conn_id: str) -> bool:
        return get_auth_manager().is_authorized_connection(
            method=method,
            details=ConnectionDetails(conn_id=conn_id, team_name=Connection.get_team_name(conn_id)),
            user=self._user,
        )
