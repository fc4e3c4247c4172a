"""What a commit says of itself in the table's own history: for people, and for the search of later attempts (I1, I10).

A commit's **identity** is a list of **traces**, one of each member: 16 characters, of which the first half stands for the key and
the other for this generation of it and the moment it was begun, which no other checkpoint store has. So a key is found whatever
other keys it was committed with, and a checkpoint that only has the same key is told from the one that was committed.
"""

from __future__ import annotations

import base64
import hashlib
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from airflow_ckpt_provider.exceptions import BindingMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Group, Header, Member

GROUP = "airflow.checkpoint.group"
KEY = "airflow.checkpoint.key"
GENERATION = "airflow.checkpoint.generation"
KEYS = "airflow.checkpoint.keys"

#: Traces of the members.
IDENTITY = "airflow.checkpoint.identity"

#: How many splits each code has computed, where a write was gone on with under other code.
COMPUTED_BY = "airflow.checkpoint.computed_by"

#: Keys that an entry shows; the store has them all.
_SHOWN = 20


def summary_of(group: Group, identity: str | None, computed_by: Mapping[str, int] = MappingProxyType({})) -> dict[str, str]:
    """Entries of the group's commit.

    :param computed_by: how many splits each code has computed, where there were several.
    """
    first = group.members[0]
    entries = {GROUP: group.id}
    if computed_by:
        entries[COMPUTED_BY] = msgspec.json.encode(dict(computed_by)).decode()
    if identity is not None:
        entries[IDENTITY] = identity
    if len(group.members) == 1:
        return entries | {KEY: first.key, GENERATION: str(first.generation)}
    return entries | {KEYS: _brief(group.members)}


class Trace(NamedTuple):
    """What stands for a member of a commit: 48 bits of a digest of its key, and of its header, eight characters each."""

    key: str
    begun: str


#: Characters of a trace, and of its half.
TRACE, _HALF = 16, 8


def trace_of(header: Header) -> Trace:
    """The trace of a generation."""
    facts = f"{header.key}\0{header.generation}\0{header.created_at.isoformat()}"
    return Trace(key_trace(header.key), _digest(facts))


def key_trace(key: str) -> str:
    """The part of a trace that stands for the key, in all generations and checkpoint stores."""
    return _digest(key)


def identity_of(headers: Sequence[Header]) -> str:
    """The traces of these, one after the other."""
    return "".join(sorted("".join(trace_of(header)) for header in headers))


def traces_in(identity: str) -> Iterator[Trace]:
    """The traces in an identity."""
    for start in range(0, len(identity), TRACE):
        yield Trace(identity[start : start + _HALF], identity[start + _HALF : start + TRACE])


def require_ours(identity: str | None, landed: str | None, what: str, keys: str, table: str) -> None:
    """Refuse to take what was committed from another checkpoint store for ours: keys are unique in one store only.

    :param identity: of the checkpoints that are looked for, or of some of them; None if it is not known.
    :param landed: the identity that the commit shows; None if it shows none.
    :param what: the commit, for messages, such as ``snapshot 5``.
    :param keys: its keys, for messages.
    :param table: its table, for messages.
    :raises BindingMismatchError: if any of them is not among those that were committed.
    """
    if identity is not None and not set(traces_in(identity)) <= set(traces_in(landed or "")):
        raise not_ours(keys, what, table)


def not_ours(keys: str, what: str, table: str) -> BindingMismatchError:
    """The error of a key that was committed by a checkpoint which the store does not hold; see ``require_ours``."""
    return BindingMismatchError(
        f"{keys} was committed to {table} before, as {what}, from other staged files than these: another checkpoint store holds a "
        "checkpoint with the same key, or this one held it and has lost it. Nothing was changed and these rows are not in the "
        "table. If they are the same rows, mark the task as success; if not, use another idempotence_key."
    )


def keys_of(group: Group) -> str:
    """The keys of a group, for messages."""
    members = group.members
    return f"the key {members[0].key!r}" + (f" and {len(members) - 1} more" if len(members) > 1 else "")


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:6]).decode()


def _brief(members: tuple[Member, ...]) -> str:
    shown = [member.key for member in members[:_SHOWN]]
    if len(members) > len(shown):
        shown.append(f"and {len(members) - len(shown)} more")
    return msgspec.json.encode(shown).decode()
