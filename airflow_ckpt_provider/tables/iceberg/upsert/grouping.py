"""Which files of the table are matched together: an upsert has a split for about so many bytes, not for each file.

A file of more than half a split's size is matched by itself. Small ones share a split. A group says of its files no more than a
task needs to read them, column by column: a table has a hundred thousand small files before anybody compacts them.

Decision: groups are found by hashes of the files' partitions and paths, not by counting through a list, so that a file that is
added or removed changes no group but its own: all files are in one set, which is halved by the next bit of the hash until it
fits into a split. If groups were cut from a list, each later one would change too, and all that is staged of it would be lost.

Decision: sizes are those by which Iceberg's engines combine small files when they read: the table properties
``read.split.target-size`` and ``read.split.open-file-cost``. Each small file counts as the latter, because opening it takes time.

Decision: each file is rewritten into files of its own, although its neighbours in the group are rewritten too. An upsert is no
compaction: rows that lie together because they came together stay so, and what a file's bounds say stays as narrow. The names of
the new files say which file of the group they take the place of, and the id of a split says of which files the group consists.
So what the store says that a commit removes is held against names that nobody can change who can only write to the store (I15).
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the types of members
from airflow_ckpt_provider.checkpoint.documents import Part
from airflow_ckpt_provider.scan.data_files import DeleteFile, ScanFile, identity_of  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_ckpt_provider.scan.iceberg import Scanned

#: Table properties, and what Iceberg takes for them.
TARGET_SIZE, TARGET_SIZE_DEFAULT = "read.split.target-size", 128 << 20
OPEN_FILE_COST, OPEN_FILE_COST_DEFAULT = "read.split.open-file-cost", 4 << 20

#: Files of a group, however little opening one may cost: a split is what a retry repeats.
_MOST_FILES = 1024

#: Bits of the hash of a partition, and of that of a path.
_BITS = 64

_NUMBER = re.compile(r"-f(0|[1-9][0-9]{0,8})-[0-9]{5}\.parquet$")


class FileGroup(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Data files of the table that one split matches, as a plan stores them. They have one partition spec and one format.

    :param folder: what all paths begin with.
    :param names: the rest of each path; what follows is in their order.
    :param constants: the different ``ScanFile.constants`` of the files.
    :param constants_of: which of them each file has; empty if all have the first, or there are none.
    :param deletes: the delete files of any.
    :param deletes_of: number of each file that has some, with the numbers of its delete files.
    """

    folder: str
    names: tuple[str, ...]
    bytes: tuple[Count, ...]
    rows: tuple[Count, ...]
    spec_id: int
    format: str = "PARQUET"
    constants: tuple[tuple[tuple[int, str | int | float | bool], ...], ...] = ()
    constants_of: tuple[Count, ...] = ()
    deletes: tuple[DeleteFile, ...] = ()
    deletes_of: tuple[tuple[Count, tuple[Count, ...]], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no plan of ours has.

        :raises ValueError: saying what is wrong.
        """
        count = len(self.names)
        if not count or len({*self.names}) != count or {len(self.bytes), len(self.rows)} != {count}:
            raise ValueError("a group of files has each name once, with its bytes and rows")
        if self.constants_of and (len(self.constants_of) != count or max(self.constants_of) >= len(self.constants)):
            raise ValueError("a group of files has other constants than its files")
        if any(file >= count or max(deletes, default=0) >= len(self.deletes) for file, deletes in self.deletes_of):
            raise ValueError("a group of files has other delete files than its files")

    @classmethod
    def of(cls, files: Sequence[ScanFile]) -> FileGroup:
        """The group of these files."""
        folder = files[0].path
        while folder and not (folder.endswith("/") and all(file.path.startswith(folder) for file in files)):
            folder = folder[: folder.rfind("/", 0, -1) + 1]
        constants = {known: number for number, known in enumerate(dict.fromkeys(file.constants for file in files))}
        every = {delete: number for number, delete in enumerate(dict.fromkeys(one for file in files for one in file.deletes))}
        return cls(
            folder=folder,
            names=tuple(file.path[len(folder) :] for file in files),
            bytes=tuple(file.bytes for file in files),
            rows=tuple(file.rows for file in files),
            spec_id=files[0].spec_id,
            format=files[0].format,
            constants=() if list(constants) == [()] else tuple(constants),
            constants_of=tuple(constants[file.constants] for file in files) if len(constants) > 1 else (),
            deletes=tuple(every),
            deletes_of=tuple((n, tuple(every[one] for one in file.deletes)) for n, file in enumerate(files) if file.deletes),
        )

    @property
    def paths(self) -> list[str]:
        """Of the files."""
        return [self.folder + name for name in self.names]

    @property
    def id(self) -> str:
        """A digest of what the group consists of: the files, and their deletes."""
        deletes = dict(self.deletes_of)
        facts = (
            identity_of(path, [self.deletes[one] for one in deletes.get(number, ())]) for number, path in enumerate(self.paths)
        )
        return hashlib.sha256("\0\0".join(facts).encode()).hexdigest()[:16]

    def files(self) -> list[ScanFile]:
        """The files, to be read."""
        deletes = dict(self.deletes_of)
        constants = self.constants_of or (0,) * len(self.names)
        return [
            ScanFile(
                path=path,
                bytes=self.bytes[number],
                rows=self.rows[number],
                spec_id=self.spec_id,
                format=self.format,
                constants=self.constants[constants[number]] if self.constants else (),
                deletes=tuple(self.deletes[one] for one in deletes.get(number, ())),
            )
            for number, path in enumerate(self.paths)
        ]


class GroupSize(NamedTuple):
    """Bytes by which groups are made.

    :param target: bytes of a group.
    :param open_cost: bytes that a file counts as if it has fewer.
    """

    target: int = TARGET_SIZE_DEFAULT
    open_cost: int = OPEN_FILE_COST_DEFAULT

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> GroupSize:
        """The sizes that a table's properties say.

        :raises ValueError: if one of them is no number.
        """
        from pyiceberg.utils.properties import property_as_int

        target = property_as_int(dict(properties), TARGET_SIZE, TARGET_SIZE_DEFAULT) or 0
        cost = property_as_int(dict(properties), OPEN_FILE_COST, OPEN_FILE_COST_DEFAULT) or 0
        return cls(max(target, 1), max(cost, 1))

    def weight(self, file_bytes: int) -> int:
        """What a file counts as."""
        return max(file_bytes, self.open_cost, self.target // _MOST_FILES)


def grouped(scanned: Iterable[Scanned], size: GroupSize) -> Iterator[FileGroup]:
    """The groups of files; no file is left out, and none is in two."""
    small: dict[tuple[int, str], list[tuple[int, ScanFile]]] = {}
    for file, entry in scanned:
        if size.weight(file.bytes) * 2 > size.target:
            yield FileGroup.of([file])
            continue
        # Two partitions of one text are no harm: they stand together.
        partition = str(entry.data_file.partition)
        # Files of one partition stand together, as far as they fit.
        place = _hash(partition) << _BITS | _hash(file.path)
        small.setdefault((file.spec_id, file.format), []).append((place, file))
    for of_kind in small.values():
        of_kind.sort(key=lambda placed: placed[0])
        places = [place for place, _ in of_kind]
        ends = [0, *itertools.accumulate(size.weight(file.bytes) for _, file in of_kind)]
        for start, stop in _halved(places, ends, size.target):
            yield FileGroup.of([file for _, file in of_kind[start:stop]])


def stem_of_rewritten(stem: str, number: int) -> str:
    """How the names begin of files that take the place of one file of a group.

    :param stem: of the split.
    :param number: of the file in its group.
    """
    return f"{stem}-f{number}"


def number_of_rewritten(path: str) -> int | None:
    """Which file of its group a file takes the place of, by its name; None if the name does not say."""
    found = _NUMBER.search(path)
    return None if found is None else int(found[1])


def _halved(places: Sequence[int], ends: Sequence[int], target: int) -> Iterator[tuple[int, int]]:
    """Where groups begin and end.

    :param places: of all files, sorted.
    :param ends: weight of all files before each.
    """
    waiting = [(0, len(places), 2 * _BITS)]
    while waiting:
        start, stop, bits = waiting.pop()
        if start == stop:
            continue
        if ends[stop] - ends[start] <= target or not bits:
            yield start, stop
            continue
        middle = bisect.bisect_left(places, ((places[start] >> bits) << bits) | (1 << (bits - 1)), start, stop)
        waiting += [(middle, stop, bits - 1), (start, middle, bits - 1)]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: _BITS // 8])
