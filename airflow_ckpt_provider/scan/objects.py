"""Objects in storage: as Python files, and the sizes of many at a time, with few requests where the storage lists ranges of names.

A store that lists by name, from one on, gives a thousand names and sizes for the time of one or two single looks. Names of one
key's files begin alike, so that nothing of another writer is between the first and the last of them in a folder.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from obstore import WritableFile
    from obstore.store import ObjectStore

#: Lists at the same time.
_LISTS = 16

#: Names of one folder that are worth a list, and that one list is asked for: as many as a reply holds.
_WORTH, _REPLY = 20, 1000


def listed_sizes(store: ObjectStore, names: Sequence[str]) -> dict[str, int]:
    """Sizes in bytes of objects that lists show. Of others nothing is known: a list only saves looks.

    :param names: below the store's root.
    """
    sizes: dict[str, int] = {}
    if _lists_from_a_name(store):
        parts = [part for folder in _by_folder(names) if len(folder) >= _WORTH for part in _parts(folder)]
        with ThreadPoolExecutor(_LISTS) as pool:
            for part_sizes in pool.map(lambda part: _listed(store, part), parts):
                sizes |= part_sizes
    return sizes


def _lists_from_a_name(store: ObjectStore) -> bool:
    """Whether the storage itself begins a list behind a name; of others the client asks for all and leaves some out."""
    from obstore.store import GCSStore, S3Store

    return isinstance(store, S3Store | GCSStore)


def _by_folder(names: Iterable[str]) -> Iterator[list[str]]:
    folders: dict[str, list[str]] = {}
    for name in names:
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    for folder in folders.values():
        yield sorted(folder)


def _parts(folder: list[str]) -> Iterator[list[str]]:
    return (folder[start : start + _REPLY] for start in range(0, len(folder), _REPLY))


def _listed(store: ObjectStore, part: Sequence[str]) -> dict[str, int]:
    """Sizes of those of these names, all of one folder and in their order, that a list shows."""
    import obstore

    wanted, last = set(part), part[-1]
    listed: dict[str, int] = {}
    folder = part[0].rpartition("/")[0]
    for chunk in obstore.list(store, folder or None, offset=part[0][:-1], chunk_size=_REPLY):
        listed |= {entry["path"]: entry["size"] for entry in chunk if entry["path"] in wanted}
        if not chunk or chunk[-1]["path"] >= last:
            break
    return listed


class RemoteFile(io.RawIOBase):
    """An object as a Python file. Arrow needs the whole protocol of one, which obstore's own reader lacks."""

    def __init__(self, objects: ObjectStore, path: str, size: int) -> None:
        super().__init__()
        self._objects = objects
        self._path = path
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        import obstore

        rest = max(self._size - self._position, 0)
        length = rest if size is None or size < 0 else min(size, rest)
        if not length:
            return b""
        data = bytes(obstore.get_range(self._objects, self._path, start=self._position, length=length))
        self._position += len(data)
        return data


class Upload(io.RawIOBase):
    """An object that is being written, as a Python file; see ``RemoteFile``.

    :param sink: what obstore's ``open_writer`` gives.
    """

    def __init__(self, sink: WritableFile) -> None:
        super().__init__()
        self._sink = sink
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:  # noqa: ANN401 - any readable buffer
        size = self._sink.write(bytes(data))
        self._position += size
        return size
