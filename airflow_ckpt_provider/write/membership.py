"""Who lands together with whom, as the store says it and as far as that is believed (I15).

A record in the store may name the members of a commit, because any task that goes on with it has to see the same ones. It cannot
make the commit of one key that of another, nor lead it to another table, connection or mode than the task was told.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.exceptions import BindingMismatchError, CommitUnderWayError, CorruptObjectError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Group, Member


def group_id_of(members: Sequence[Member]) -> str:
    """Id of the group of exactly these members."""
    return hashlib.sha256(msgspec.json.encode(sorted(members))).hexdigest()[:32]


def group_of(checkpoint: Checkpoint) -> Group | None:
    """The group that a generation is bound to; None proves that no commit was ever tried (I10).

    :raises CorruptObjectError: if it is not a member of that group, or the group's id is not that of its members: another commit
        would be taken for its own (I15).
    """
    group = bound_group(checkpoint)
    if group is not None and (checkpoint.member not in group.members or group.id != group_id_of(group.members)):
        raise CorruptObjectError(
            f"Object {checkpoint.paths.group} in the checkpoint store {checkpoint.store.uri} binds the key "
            f"{checkpoint.key.value!r} to a commit that it is no part of. The store was altered; nothing was changed. Restore the "
            "object, or use another idempotence key."
        )
    return group


def destination_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Where a checkpoint lies, and where it lands."""
    header = checkpoint.header
    table = header.table
    return (checkpoint.store.uri, header.connections.table, table.format, table.identifier, table.uuid, table.branch)


def require_one_way(named: Checkpoint, members: Sequence[Checkpoint]) -> None:
    """Refuse a group that the store extends to what could never have been begun together with the named checkpoint (I15)."""
    header = named.header
    for member in members:
        other = member.header
        if (destination_of(member), other.mode, other.parameters) != (destination_of(named), header.mode, header.parameters):
            raise BindingMismatchError(
                f"The store {named.store.uri} says that a commit of the key {named.key.value!r}, mode {header.mode!r}, to "
                f"{header.table.identifier} (branch {header.table.branch!r}, connection {header.connections.table!r}) was begun "
                f"together with the key {member.key.value!r}, mode {other.mode!r}, to {other.table.identifier} (branch "
                f"{other.table.branch!r}, connection {other.connections.table!r}). No commit task does that: the store was "
                "altered. Nothing was changed."
            )


def not_asked_for(named: Checkpoint, more: Sequence[Checkpoint]) -> CommitUnderWayError:
    """The error of a commit that would land further checkpoints, which the task was not told to commit and does not check (I15).

    :param more: those checkpoints.
    """
    keys = ", ".join(repr(checkpoint.key.value) for checkpoint in more[:10]) + (
        f" and {len(more) - 10} more" if len(more) > 10 else ""
    )
    return CommitUnderWayError(
        f"The store {named.store.uri} says that a commit of the key {named.key.value!r} to {named.header.table.identifier} was "
        f"begun together with {keys}, and this task was not told to commit more than {named.key.value!r} of those. Nothing was "
        "changed. If another commit task has begun it, let that one end, or clear it if it has failed; or commit all of them "
        "together here. If none has, the store was altered: see who can write to it, and run the stages under other "
        "idempotence keys."
    )
