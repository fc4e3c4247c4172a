"""Sizes of files of a table, many at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.io import FileIO

#: Files asked for in one call, and calls made at the same time: a call costs little locally and a round trip per file remotely.
_LOCAL, _REMOTE = (5000, 4), (100, 64)


def file_sizes(io: FileIO, paths: Sequence[str]) -> list[int | None]:
    """Sizes in bytes, None for files that are not there."""
    sizes: list[int | None] = [None] * len(paths)
    places: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        scheme, _, rest = path.rpartition("://")
        places.setdefault(f"{scheme}://{rest.partition('/')[0]}", []).append(index)
    for place, indexes in places.items():
        most, calls = _LOCAL if place in {"://", "file://"} else _REMOTE
        chunks = [indexes[start : start + most] for start in range(0, len(indexes), most)]
        with ThreadPoolExecutor(calls) as pool:
            answers = pool.map(lambda chunk: list(_sizes(io, [paths[index] for index in chunk])), chunks)
            for chunk, found in zip(chunks, answers, strict=True):
                for index, size in zip(chunk, found, strict=True):
                    sizes[index] = size
    return sizes


def _sizes(io: FileIO, paths: Sequence[str]) -> Iterator[int | None]:
    """Sizes of files in one place; in one call where Arrow has the file system."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO):
        for one in map(io.new_input, paths):
            yield len(one) if one.exists() else None
        return
    # All paths of one place are parsed alike: what is cut off the first is cut off all, which saves most of the time.
    scheme, netloc, plain = io.parse_location(paths[0], io.properties)
    cut = len(paths[0]) - len(plain)
    same = paths[0].endswith(plain)
    names = [path[cut:] if same else io.parse_location(path, io.properties)[2] for path in paths]
    for info in io.fs_by_scheme(scheme, netloc).get_file_info(names):
        yield info.size if info.is_file else None
