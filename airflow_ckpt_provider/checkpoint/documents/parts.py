"""What documents are made of, and their free-form members: what a source, a mode or a writer stores in terms of its own."""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from airflow_ckpt_provider.checkpoint.known_types import known
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError

AnyPart = TypeVar("AnyPart")

JsonObject = dict[str, object]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of what documents are made of. There are many of them, and none is part of a cycle."""


class Pinned(Part, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of what a source, or a mode, keeps for later: in a plan beside the splits, or in the record of a split.

    Each is a struct of its own, and is stored with its kind.
    """

    def to_json(self) -> JsonObject:
        """As a plan or a record stores it."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


AnyPinned = TypeVar("AnyPinned", bound=Pinned)


def part_of(value: object, kind: type[AnyPart], where: str = "") -> AnyPart:
    """A free-form member of a document, such as what a split reads, as what it was when it was stored.

    :param where: the member, such as ``table.base of the header``.
    :raises CorruptObjectError: if it is nothing of that kind: no writer of ours puts that there (I7).
    """
    try:
        return msgspec.convert(value, known(kind))
    except (msgspec.ValidationError, OverflowError) as error:
        name = getattr(kind, "__name__", str(kind))
        what = f"The member {where}" if where else f"A record, a {name.lower()},"
        raise CorruptObjectError(
            f"{what} in the checkpoint store cannot be read ({error}). The store was altered, or another "
            f"version wrote it; nothing was changed. Redo the write: {how_to_restart()}."
        ) from error


def fingerprint(value: object) -> str:
    """SHA-256 of a JSON-able value, independent of the order of its members."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
