"""What a commit says of itself in the table's own history: for people, and for the search of later attempts (I1, I10)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ckpt_provider.checkpoint.documents import Group, Header, Member

GROUP = "airflow.checkpoint.group"
KEY = "airflow.checkpoint.key"
GENERATION = "airflow.checkpoint.generation"
KEYS = "airflow.checkpoint.keys"

#: Digest of the members' headers: tells commits of one key from two checkpoint stores apart.
IDENTITY = "airflow.checkpoint.identity"

#: Keys that an entry shows; the store has them all.
_SHOWN = 20


def summary_of(group: Group, identity: str | None) -> dict[str, str]:
    """Entries of the group's commit."""
    first = group.members[0]
    entries = {GROUP: group.id}
    if identity is not None:
        entries[IDENTITY] = identity
    if len(group.members) == 1:
        return entries | {KEY: first.key, GENERATION: str(first.generation)}
    return entries | {KEYS: _brief(group.members)}


def identity_of(headers: Sequence[Header]) -> str:
    """Digest of these headers' keys and times, which no other store has."""
    lines = sorted(f"{header.key}\0{header.generation}\0{header.created_at.isoformat()}" for header in headers)
    return hashlib.sha256("\0".join(lines).encode()).hexdigest()[:32]


def _brief(members: tuple[Member, ...]) -> str:
    shown = [member.key for member in members[:_SHOWN]]
    if len(members) > len(shown):
        shown.append(f"and {len(members) - len(shown)} more")
    return msgspec.json.encode(shown).decode()
