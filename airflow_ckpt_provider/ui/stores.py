"""From the id of a connection to a checkpoint store. Whoever asks may name any connection: only stores are opened, and known."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow.models.connection import Connection
from airflow.sdk.definitions.connection import Connection as NamedConnection
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook, connection_or_none

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore

DEFAULT = CheckpointHook.default_conn_name

_VARIABLE = "AIRFLOW_CONN_"


def open_store(conn_id: str) -> CheckpointStore:
    """The store of a connection of type ``checkpoint``.

    :raises InvalidInputError: if there is none. The message does not tell a connection of another type from one that is missing.
    """
    try:
        connection_or_none(conn_id, DEFAULT, {CheckpointHook.conn_type})
    except InvalidInputError:
        raise InvalidInputError(
            f"There is no connection {conn_id!r} of the type checkpoint that the API server can read."
        ) from None
    return CheckpointHook(conn_id).get_conn()


def known_stores() -> list[str]:
    """Ids of all connections of type ``checkpoint`` that can be listed: those of Airflow's database and of the environment."""
    with create_session() as session:
        kept = session.scalars(select(Connection.conn_id).where(Connection.conn_type == CheckpointHook.conn_type)).all()
    ids = {conn_id for conn_id in kept if conn_id} | {DEFAULT}
    ids |= {
        name.removeprefix(_VARIABLE).lower()
        for name, value in os.environ.items()
        if name.startswith(_VARIABLE) and _is_store(value)
    }
    return sorted(ids, key=lambda conn_id: (conn_id != DEFAULT, conn_id))


def _is_store(value: str) -> bool:
    """Whether a variable of the environment describes a store."""
    try:
        connection = NamedConnection.from_json(value) if value.lstrip().startswith("{") else NamedConnection.from_uri(value, "")
    except Exception:  # noqa: BLE001 - what cannot be read is no store
        return False
    return connection.conn_type == CheckpointHook.conn_type
