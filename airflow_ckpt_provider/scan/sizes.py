"""Sizes of files of a table, many at a time.

Decision: files in S3 are listed by a client of our own where the table's connection names the keys to use, because Arrow cannot
list a range of names. Whatever that does not show, and everything else, is asked of the table's own FileIO.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.scan.objects import listed_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.io import FileIO

#: Files asked for in one call, and calls made at the same time: a call costs little locally and a round trip per file remotely.
_LOCAL, _REMOTE = (5000, 4), (100, 64)

#: Files of a place that are worth a client for lists.
_WORTH = 100

#: What a client for lists is told of the properties of S3, and those that make no difference to it. With any other it is not made.
_OPTIONS = {
    "s3.endpoint": "endpoint",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "token",
    "s3.region": "region",
}
_HARMLESS = frozenset(
    {"s3.connect-timeout", "s3.request-timeout", "s3.resolve-region", "s3.server-side-encryption", "s3.sse-kms-key-id"}
)


def file_sizes(io: FileIO, paths: Sequence[str]) -> list[int | None]:
    """Sizes in bytes, None for files that are not there."""
    sizes: list[int | None] = [None] * len(paths)
    places: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        scheme, _, rest = path.rpartition("://")
        places.setdefault(f"{scheme}://{rest.partition('/')[0]}", []).append(index)
    for place, indexes in places.items():
        most, calls = _LOCAL if place in {"://", "file://"} else _REMOTE
        listed = _listed(io.properties, place, [paths[index] for index in indexes]) if len(indexes) >= _WORTH else {}
        for index in indexes:
            sizes[index] = listed.get(paths[index])
        indexes = [index for index in indexes if sizes[index] is None]  # noqa: PLW2901 - the rest of them
        chunks = [indexes[start : start + most] for start in range(0, len(indexes), most)]
        with ThreadPoolExecutor(calls) as pool:
            answers = pool.map(lambda chunk: list(_sizes(io, [paths[index] for index in chunk])), chunks)
            for chunk, chunk_sizes in zip(chunks, answers, strict=True):
                for index, size in zip(chunk, chunk_sizes, strict=True):
                    sizes[index] = size
    return sizes


def _sizes(io: FileIO, paths: Sequence[str]) -> Iterator[int | None]:
    """Sizes of files in one place; in one call where Arrow has the file system."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO):
        for file in map(io.new_input, paths):
            yield len(file) if file.exists() else None
        return
    # All paths of one place are parsed alike: what is cut off the first is cut off all, which saves most of the time.
    scheme, netloc, plain = io.parse_location(paths[0], io.properties)
    cut = len(paths[0]) - len(plain)
    same = paths[0].endswith(plain)
    names = [path[cut:] if same else io.parse_location(path, io.properties)[2] for path in paths]
    for info in io.fs_by_scheme(scheme, netloc).get_file_info(names):
        yield info.size if info.is_file else None


def _listed(properties: Mapping[str, object], place: str, paths: Sequence[str]) -> dict[str, int]:
    """Sizes of those of these files that a list shows; none where there is nothing to list with."""
    scheme, _, bucket = place.partition("://")
    given = {name: str(value) for name, value in properties.items() if name.startswith("s3.") and value is not None}
    options = {_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS}
    if scheme not in {"s3", "s3a", "s3n"} or not {"access_key_id", "secret_access_key"} <= options.keys():
        return {}
    if not given.keys() <= _OPTIONS.keys() | _HARMLESS:
        return {}
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    start = f"{place}/"
    try:
        plain = options.get("endpoint", "").startswith("http://")
        # Whatever is wrong with it, the look at each file is the better answer than many tries.
        tries: Any = {"max_retries": 1, "retry_timeout": timedelta(seconds=10)}
        store = S3Store(bucket, client_options={"allow_http": plain}, retry_config=tries, **options)  # type: ignore[arg-type]
        known = listed_sizes(store, [path.removeprefix(start) for path in paths])
    except (BaseError, OSError, ValueError):
        # Not allowed, or not understood: the look at each file tells.
        return {}
    return {f"{start}{name}": size for name, size in known.items()}
