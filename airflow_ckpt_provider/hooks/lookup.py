"""From a reference or key to its checkpoint, with nothing but connection ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, State
from airflow_ckpt_provider.checkpoint.reference import resolve
from airflow_ckpt_provider.hooks.catalog import iceberg_catalog
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook, storage_options
from airflow_ckpt_provider.tables import groups
from airflow_ckpt_provider.tables.iceberg.table import IcebergTarget
from airflow_ckpt_provider.tables.lance.binding import FORMAT as LANCE
from airflow_ckpt_provider.tables.lance.table import LanceTarget

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.reference import Reference


def find_checkpoint(pointer: str | Reference, checkpoint_conn_id: str) -> Checkpoint | None:
    """The checkpoint of a reference or bare key; None if a bare key is not known yet.

    :param checkpoint_conn_id: where to look up a bare key.
    """
    conn_id = checkpoint_conn_id if isinstance(pointer, str) else pointer["checkpoint_conn_id"]
    return resolve(CheckpointHook(conn_id).get_conn(), pointer)


def latest_of(pointer: str | Reference, checkpoint_conn_id: str) -> Checkpoint | None:
    """The newest generation of a reference's key, or of a bare one; None if that is not known yet.

    :param checkpoint_conn_id: where to look up a bare key.
    """
    found = find_checkpoint(pointer, checkpoint_conn_id)
    return None if found is None else Checkpoint.latest(found.store, found.key)


def target_of(checkpoint: Checkpoint) -> IcebergTarget | LanceTarget:
    """The table that a checkpoint is bound to, by the connection id its header remembers."""
    header = checkpoint.header
    if header.table.format == LANCE:
        return LanceTarget(header.table.identifier, storage_options(header.connections.table or None))
    return IcebergTarget(iceberg_catalog(header.connections.table), header.table.identifier, header.table.branch)


def reached(pointer: str | Reference, until: State, checkpoint_conn_id: str) -> bool:
    """Whether a checkpoint is sealed, or committed.

    A commit that landed and was not recorded counts: the table's history is asked if a commit was ever begun.

    :raises DiscardedError: if it was discarded, so that it never will be.
    """
    checkpoint = find_checkpoint(pointer, checkpoint_conn_id)
    if checkpoint is None:
        return False
    state = checkpoint.state()
    if state is State.COMMITTED or state is until:
        return True
    if checkpoint.group() is not None and groups.landed(checkpoint, target_of(checkpoint)) is not None:
        return True
    if state is State.DISCARDED and not isinstance(pointer, str):
        checkpoint.require_live()
    return False
