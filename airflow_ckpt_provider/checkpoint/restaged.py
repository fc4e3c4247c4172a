"""Splits that are staged again, because files that they had staged are lost: in a round of their own, under ids of their own.

Decision: what is published stays published (I3), also what lost its files. A later round lists another split in its place, with
the same work and another id: its own with ``z`` and the number of that round behind it. So an attempt that still works on an
earlier round publishes nothing that the later one takes for its own, and a seal, which names its round, says which records it is
made of. What was computed from lost rows gets other ids too: rows that are read again may come in another order.

Some splits are worked out from the table in each round, with ids that say what they are computed from. So plans remember, as
``restaged``, in which round each was last staged again; ``*`` stands for all that is not read from the source.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Plan, Split

#: What stands for all table splits there.
ALL = "*"

_BEHIND = re.compile(r"z\d+$")


def first_id(split_id: str) -> str:
    """The id that a split had when it was staged for the first time."""
    return _BEHIND.sub("", split_id)


def restaged(plan: Plan, lost: Collection[str], number: int) -> Plan:
    """``plan`` as the round ``number``, in which these of its splits are staged again.

    :param lost: their ids.
    """
    rounds = plan.restaged | {first_id(split.id): number for split in plan.splits if split.id in lost}
    splits = tuple(_renamed(split, number) if split.id in lost else split for split in plan.splits)
    return msgspec.structs.replace(plan, created_at=now(), restaged=rounds, splits=splits)


def reread(reading: Plan, lost: Collection[str], number: int, mode: JsonObject | None = None) -> Plan:
    """A round in which these splits of the source are staged again, and after it all that the table computes from them.

    :param reading: the last plan that lists the splits of the source.
    :param mode: what the mode has pinned and not computed from the source.
    """
    reads = tuple(_renamed(split, number) if split.id in lost else split for split in reading.splits if split.is_input)
    return msgspec.structs.replace(reading, created_at=now(), mode=mode, restaged={ALL: number}, splits=reads)


def as_named(splits: Iterable[Split], plan: Plan) -> dict[str, Split]:
    """Splits that were worked out from the table, by the ids that they have from a plan on."""
    rounds = plan.restaged
    numbered = ((split, max(rounds.get(split.id, 0), rounds.get(ALL, 0))) for split in splits)
    named = (_renamed(split, number) if number else split for split, number in numbered)
    return {split.id: split for split in named}


def _renamed(split: Split, number: int) -> Split:
    return msgspec.structs.replace(split, id=f"{first_id(split.id)}z{number}")
