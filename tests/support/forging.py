"""Somebody who can write to the checkpoint store, and to nothing else: documents changed at will, each with a valid checksum."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pytest
import zstandard

from airflow_ckpt_provider.checkpoint.documents import Group, Header
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.groups import group_id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Document, Member
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from support.world import World


def refused(world: World, checkpoint: Checkpoint, named: str) -> None:
    """Nothing lands, and the error names the file."""
    before, commits = world.read(), world.commits()
    with pytest.raises(CorruptObjectError, match=named):
        groups.commit([checkpoint], world.as_table())
    assert world.read() == before
    assert world.commits() == commits


def forge(store: CheckpointStore, name: str, document: Document, **changes: Any) -> None:
    """Put ``document`` under ``name``, with other members, whatever is there, and though no writer of ours would."""
    import obstore

    body = msgspec.json.encode(msgspec.to_builtins(document) | changes)[:-1]
    data = body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    if name.endswith(".zst"):
        data = zstandard.ZstdCompressor().compress(data)
    obstore.put(store.location.open(create=True), name, data)


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
    forge(checkpoint.store, checkpoint.paths.header, header, **changes)


def forge_group(checkpoint: Checkpoint, *members: Member, group_id: str | None = None) -> None:
    """Bind a generation to a commit of these members.

    :param group_id: that of the members if None.
    """
    at, stream = checkpoint.header.created_at, checkpoint.header.stream
    group = Group(id=group_id or group_id_of(members), members=members, stream=stream, bound_at=at, horizon=0)
    forge(checkpoint.store, checkpoint.paths.group, group)


def forge_seal(checkpoint: Checkpoint, change: Callable[[Any], Any]) -> None:
    """Change the record of each manifest that is sealed."""
    seal = checkpoint.sealed()
    assert seal is not None
    manifests = tuple(change(dict(manifest)) for manifest in seal.manifests)
    forge(checkpoint.store, checkpoint.paths.seal(), msgspec.structs.replace(seal, manifests=manifests))


def forge_staged(checkpoint: Checkpoint, split_id: str, **changes: Any) -> None:
    """Change the published record of a split."""
    (staged,) = checkpoint.staged([split_id])
    forge(checkpoint.store, checkpoint.paths.staged(split_id), msgspec.structs.replace(staged, **changes))


def forge_plan(checkpoint: Checkpoint, number: int = 1, **changes: Any) -> None:
    """Change what is pinned for a round."""
    plan = checkpoint.plan(number)
    assert plan is not None
    forge(checkpoint.store, checkpoint.paths.plan(number), msgspec.structs.replace(plan, **changes))


class PlantedIO:
    """Code that somebody else has put where Python finds it. It notes that it was run, and with what."""

    ran_with: ClassVar[list[dict[str, str]]] = []

    def __init__(self, *facts: Any) -> None:
        self.ran_with.append(dict(facts[-1]))
