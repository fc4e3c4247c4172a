"""Globs over paths, part by part: no wildcard and no bracket reaches over a slash.

Decision: the standard library's ``fnmatch`` for each part. ``glob.translate`` is there from Python 3.13 on only, and its bracket
of characters that are not wanted, such as ``[!a]``, takes a slash.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError, escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Any number of folders.
_ANY_DEPTH = "**"


def glob_matcher(glob: str) -> Callable[[str], bool]:
    """Tell whether a path fits a glob of ``*``, ``?``, ``[…]``, and ``**`` for any depth.

    :raises InvalidInputError: if ``**`` is only a piece of a part.
    """
    parts: list[Callable[[str], object] | None] = []
    for part in glob.split("/"):
        if _ANY_DEPTH in part and part != _ANY_DEPTH:
            raise InvalidInputError(
                f"The glob {escaped(glob)!r} has '**' within {escaped(part)!r}. It stands for folders of any depth, alone between "
                "two slashes: write **/*.parquet for all Parquet files below a folder."
            )
        # An empty name is none that a star stands for.
        pattern = "?*" if part == "*" else part
        parts.append(None if part == _ANY_DEPTH else re.compile(fnmatch.translate(pattern)).match)
    return lambda path: _fits(parts, path.split("/"))


def _fits(parts: Sequence[Callable[[str], object] | None], names: Sequence[str]) -> bool:
    for at, fits in enumerate(parts):
        if fits is None:
            rest = parts[at + 1 :]
            return any(_fits(rest, names[skip:]) for skip in range(at, len(names))) if rest else at < len(names)
        if at >= len(names) or not fits(names[at]):
            return False
    return len(names) == len(parts)
