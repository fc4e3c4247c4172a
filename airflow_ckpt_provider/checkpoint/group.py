"""Binding a generation to its commit group, before the table is touched, and reading which one that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.documents import Group, Members
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Member


def bound_group(checkpoint: Checkpoint) -> Group | None:
    """The commit group this generation is bound to; None proves that no commit was ever tried (I10).

    :raises CheckpointMissingError: if the list of its members is gone from the store.
    """
    group = checkpoint.store.read(checkpoint.paths.group, Group)
    if group is None or group.listed_by is None:
        return group
    name = _members_of(group.listed_by, group.id)
    listed = checkpoint.store.read(name, Members)
    if listed is None:
        raise checkpoint.store.vanished(name)
    return msgspec.structs.replace(group, members=listed.members, listed_by=None)


def list_members(checkpoint: Checkpoint, group: Group) -> None:
    """Put the list of a group's members, before any of them is bound to it; a group of one needs none."""
    if len(group.members) > 1:
        checkpoint.store.create(_members_of(min(group.members), group.id), Members(members=group.members))


def bind(checkpoint: Checkpoint, group: Group) -> Group:
    """Bind this generation to ``group`` unless it is bound already; what it is bound to is returned."""
    several = len(group.members) > 1
    bound_to = msgspec.structs.replace(group, members=(), listed_by=min(group.members)) if several else group
    if checkpoint.store.create(checkpoint.paths.group, bound_to):
        return group
    bound = bound_group(checkpoint)
    if bound is None:
        raise checkpoint.store.vanished(checkpoint.paths.group)
    return bound


def _members_of(first: Member, group_id: str) -> str:
    """Name of the list of a group's members."""
    return CheckpointPaths(IdempotenceKey(first.key).hash, first.generation).members(group_id)
