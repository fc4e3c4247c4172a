"""Somebody who can write to the checkpoint store, and to nothing else: documents changed at will, each with a valid checksum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Group, Header, to_json
from airflow_ckpt_provider.tables.groups import group_id_of

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Document, Member
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore


def forge(store: CheckpointStore, name: str, document: Document) -> None:
    """Put ``document`` under ``name``, whatever is there."""
    import obstore

    obstore.put(store.location.open(create=True), name, to_json(name, document))


def forge_header(checkpoint: Checkpoint, *, table: dict[str, Any] | None = None, connections: Any = None, **changes: Any) -> None:
    """Change what a generation says that it is bound to.

    :param table: members of the table binding.
    :param connections: ids of connections.
    """
    header = checkpoint.store.read(checkpoint.paths.header, Header)
    assert header is not None
    if table is not None:
        changes["table"] = msgspec.structs.replace(header.table, **table)
    if connections is not None:
        changes["connections"] = msgspec.structs.replace(header.connections, **connections)
    forge(checkpoint.store, checkpoint.paths.header, msgspec.structs.replace(header, **changes))


def forge_group(checkpoint: Checkpoint, *members: Member, group_id: str | None = None) -> None:
    """Bind a generation to a commit of these members.

    :param group_id: that of the members if None.
    """
    at, stream = checkpoint.header.created_at, checkpoint.header.stream
    group = Group(id=group_id or group_id_of(members), members=members, stream=stream, bound_at=at, horizon=0)
    forge(checkpoint.store, checkpoint.paths.group, group)
