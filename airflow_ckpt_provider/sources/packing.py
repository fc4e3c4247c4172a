"""Cutting a list of inputs into splits: many small ones share a split, a large one has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError, escaped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Input bytes of a split, unless the user says otherwise.
DEFAULT_SPLIT_BYTES = 128 << 20

#: Splits of one plan. More would make the store's listing the slowest part; raise ``max_split_bytes`` instead.
MAX_SPLITS = 1_000_000

Item = TypeVar("Item")


def pack(items: Iterable[tuple[Item, int]], max_bytes: int, what: str) -> list[tuple[list[Item], int]]:
    """Items with their bytes, in order, gathered up to ``max_bytes``; an item larger than that stands alone.

    :param what: what is cut, for messages.
    :returns: the items of each split, and their bytes.
    :raises InvalidInputError: if there are more than ``MAX_SPLITS``.
    """
    splits: list[tuple[list[Item], int]] = []
    together: list[Item] = []
    size = 0
    for item, item_bytes in items:
        if together and size + item_bytes > max_bytes:
            splits.append((together, size))
            together, size = [], 0
        together.append(item)
        size += item_bytes
    if together:
        splits.append((together, size))
    if len(splits) > MAX_SPLITS:
        raise InvalidInputError(
            f"{what} would be cut into {len(splits)} splits; at most {MAX_SPLITS} are allowed. Raise max_split_bytes."
        )
    return splits


def require_each_once(read: Iterable[str], what: str, all_of: Collection[str] | None = None) -> None:
    """Refuse a plan from the store that reads one thing twice, or leaves one out: rows would be there twice, or be lost (I15).

    :param read: what the splits of the plan read, such as the names of files.
    :param what: the source, for messages.
    :param all_of: what they have to read; None if that is not known.
    :raises CorruptObjectError: naming one.
    """
    seen: set[str] = set()
    for unit in read:
        if unit in seen:
            raise strange_plan(f"reads {escaped(unit)} of {what} twice")
        seen.add(unit)
    left = () if all_of is None else sorted(set(all_of) - seen)
    if left:
        raise strange_plan(f"leaves out {escaped(left[0])} of {what}")


def strange_plan(what: str) -> CorruptObjectError:
    """The error for a plan from the store that no source has made.

    :param what: what it does.
    """
    return CorruptObjectError(
        f"The plan in the checkpoint store {what}. The store was altered; nothing was read. Redo the write: {how_to_restart()}."
    )
