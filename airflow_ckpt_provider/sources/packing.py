"""Cutting a list of inputs into splits: many small ones share a split, a large one has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

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
