"""Worlds that are made once and put back for each crash point, at the same place, because tables hold absolute paths."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Generic, TypeVar

from support.world import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

W = TypeVar("W", bound=World)


class Prepared(Generic[W]):
    """A world as it was when it was made, any number of times.

    :param root: where it is each time; what happened there before is gone then.
    :param make: makes it in an empty folder.
    """

    def __init__(self, root: Path, make: Callable[[Path], W]) -> None:
        self._root = root
        self._kept = root.with_name(f"{root.name} as it was")
        self._kind = type(make(root))
        root.rename(self._kept)

    def again(self) -> W:
        """The world, to be used until this is called once more."""
        if self._root.exists():
            shutil.rmtree(self._root)
        shutil.copytree(self._kept, self._root)
        return self._kind(self._root)
