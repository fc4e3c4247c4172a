"""The names of all objects in a checkpoint store. Nothing else joins paths, and this module reads or writes none.

Renaming anything here breaks checkpoints that are under way: see "Stored formats" in the changelog.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Tables with ``write.object-storage.enabled`` may put digits in front of a file's name.
_FILE = re.compile(
    r"^(?:[01]{1,64}-)?ckpt-(?P<key_hash>[0-9a-f]+)-g(?P<generation>[1-9][0-9]{0,8})-s(?P<split>[^-/]+)-(?P<attempt>[^./-]+)\.(?P<task>[^./-]*)"
)

#: Ids of splits, and of the writers of their records: they become parts of object names.
_ID, _WRITER = re.compile(r"[0-9A-Za-z_]{1,200}"), re.compile(r"[0-9A-Za-z_.]{1,200}")

_PIECE = re.compile(r"/pieces/([0-9A-Za-z_]{1,200}\.[0-9a-f]{16})\.(0|[1-9][0-9]{0,6})\.json$")

_GENERATION = re.compile(r"^[0-9a-f]+/g([1-9][0-9]*)/")

_PLACE = re.compile(r"^(?P<key_hash>[0-9a-f]{20})/g(?P<generation>[1-9][0-9]{0,8})/(?P<rest>.+)$")

#: What stays of a generation for good: see "Compact records" on the protocol page.
_STAYS = re.compile(r"(?:header|group|commit|discard|compact)\.json|groups/[0-9a-f]+\.json|rejected/[^/]+\.parquet")

#: What a clean-up removes of a generation that is done. An object of a name that is in neither list is none of ours.
_RECORD = re.compile(
    r"plan(?:-[0-9]+)?\.json\.zst|seal(?:-[0-9]+)?\.json|(?:attempts|staged|codes)/[^/]+\.json|continue/[0-9]+\.json"
    r"|pieces/[^/]+\.json|ids/[^/]+\.parquet|readers/[^/]+\.json"
)

_LAST = re.compile(r"attempts/|seal-")

#: Rows for the next task, which are removed as the files of a table are.
_ROWS = re.compile(r"[0-9a-f]+/rows/data/ckpt-[^/]+")

_PROBE = re.compile(r"clock-[0-9a-f]{32}")


@dataclass(frozen=True)
class CheckpointPaths:
    """Object names of one generation of one key, relative to the store's root.

    :param key_hash: see ``IdempotenceKey.hash``.
    :param generation: 1 for the first; a deliberate redo counts up.
    """

    key_hash: str
    generation: int

    @property
    def root(self) -> str:
        """Folder of this generation, with a trailing slash."""
        return f"{self.key_hash}/g{self.generation}/"

    @property
    def header(self) -> str:
        return f"{self.root}header.json"

    def plan(self, number: int = 1) -> str:
        """The plan of a round, counted from 1."""
        return f"{self.root}plan{_suffix(number)}.json.zst"

    @property
    def attempts(self) -> str:
        return f"{self.root}attempts/"

    def attempt(self, attempt_id: str) -> str:
        return f"{self.attempts}{attempt_id}.json"

    @property
    def staged_folder(self) -> str:
        return f"{self.root}staged/"

    def staged(self, split_id: str) -> str:
        return f"{self.staged_folder}{split_id}.json"

    @property
    def codes_folder(self) -> str:
        return f"{self.root}codes/"

    def code(self, code: str) -> str:
        """Code with which the write is gone on with; see ``Code``."""
        return f"{self.codes_folder}{code}.json"

    def continuation(self, number: int) -> str:
        """A request to go on with other code, counted from 1."""
        return f"{self.root}continue/{number}.json"

    @property
    def pieces_folder(self) -> str:
        return f"{self.root}pieces/"

    def piece(self, input_id: str, number: int) -> str:
        """A piece of a split, counted from 0.

        :param input_id: see ``checkpoint.pieces.input_id``.
        """
        return f"{self.pieces_folder}{input_id}.{number}.json"

    @property
    def ids_folder(self) -> str:
        return f"{self.root}ids/"

    def ids(self, split_id: str, writer: str) -> str:
        """Ids of the rows that ``writer`` staged for a split, where a recovery is by rows."""
        return f"{self.ids_folder}{split_id}-{writer}.parquet"

    @property
    def readers_folder(self) -> str:
        return f"{self.root}readers/"

    def reader(self, key_hash: str, generation: int) -> str:
        """Who reads the rows of this generation: a generation of another key."""
        return f"{self.readers_folder}{key_hash}-g{generation}.json"

    @property
    def rejected_folder(self) -> str:
        return f"{self.root}rejected/"

    def rejected(self, split_id: str, writer: str) -> str:
        """Rows of a split's input at which the transform failed, as ``writer`` ran it."""
        return f"{self.rejected_folder}{split_id}-{writer}.parquet"

    def seal(self, number: int = 1) -> str:
        """The first seal, or the one that took the place of that before it."""
        return f"{self.root}seal{_suffix(number)}.json"

    @property
    def group(self) -> str:
        return f"{self.root}group.json"

    def members(self, group_id: str) -> str:
        """The list of the members of a commit group, in the folder of the first of them."""
        return f"{self.root}groups/{group_id}.json"

    @property
    def commit(self) -> str:
        return f"{self.root}commit.json"

    @property
    def discard(self) -> str:
        return f"{self.root}discard.json"

    @property
    def compact(self) -> str:
        """What stays of the records of a committed generation; see ``Compact``."""
        return f"{self.root}compact.json"

    def file_stem(self, split_id: str, attempt_id: str) -> str:
        """Start of the name of every data file and manifest of one split in one attempt (I4)."""
        return f"{self.files}s{split_id}-{attempt_id}"

    @property
    def files(self) -> str:
        """Start of the name of every data file and manifest of this generation."""
        return f"ckpt-{self.key_hash}-g{self.generation}-"


def rows_folder(store_uri: str, key_hash: str) -> str:
    """URI of the folder of rows that a key stages for the next task, below the store: of all its generations."""
    return f"{store_uri.rstrip('/')}/{key_hash}/rows"


class Author(NamedTuple):
    """Who wrote a file of a table, as its name says: see ``file_stem``."""

    key_hash: str
    generation: int
    split: str
    attempt: str
    task: str


def author_of(file: str) -> Author | None:
    """Who wrote a file, by its name without folders; None if it is none of ours."""
    match = _FILE.match(file)
    if match is None:
        return None
    return Author(match["key_hash"], int(match["generation"]), match["split"], match["attempt"], match["task"])


@dataclass(frozen=True)
class OwnedNames:
    """Which files are those of one generation: their names bear its key, its number and an attempt that is recorded (I4, I15).

    A record in the store alone makes no file anybody's: the id of another key's attempt may be written there.
    """

    key_hash: str
    generation: int
    attempts: frozenset[str]

    def __contains__(self, file: str) -> bool:
        """Whether the file of this name, without folders, is one of them."""
        begin = f"ckpt-{self.key_hash}-g{self.generation}-s"
        if file.startswith(begin) and "/" not in file:
            # As the expression has it, and several times as fast: a commit may have a hundred thousand of them.
            split, _, rest = file[len(begin) :].partition("-")
            attempt, dot, _ = rest.partition(".")
            return bool(split and dot) and attempt in self.attempts
        author = author_of(file)
        return (
            author is not None
            and (author.key_hash, author.generation) == (self.key_hash, self.generation)
            and author.attempt in self.attempts
        )

    def beginnings(self, split_id: str, writer: str) -> tuple[str, ...]:
        """Prefixes of file names that a writer gives to the files of one split; none, if the writer is of no recorded attempt.

        A file whose name begins with one of them needs no closer look, and a commit may have a hundred thousand files. A writer may
        put digits in front of the prefix: those names are looked at by ``of_split``.
        """
        attempt, dot, _ = writer.partition(".")
        if not dot or attempt not in self.attempts or not is_id(split_id) or not is_writer(writer):
            return ()
        stem = CheckpointPaths(self.key_hash, self.generation).file_stem(split_id, writer)
        return (f"{stem}-", f"{stem}.")

    def of_split(self, file: str, split_id: str, writer: str) -> bool:
        """Whether the name of a file says that it was written for this split, by the writer whose record of it is published.

        Two attempts may have written a split, and one of them has published its record: files of the other are not part of the
        write.
        """
        start = CheckpointPaths(self.key_hash, self.generation).file_stem(split_id, writer)
        begin = file.find("ckpt-")
        return file in self and file.startswith((f"{start}-", f"{start}."), max(begin, 0))


def _suffix(number: int) -> str:
    return "" if number == 1 else f"-{number}"


def generation_of(name: str) -> int | None:
    """Generation that an object name belongs to, or None if it is no name of ours."""
    match = _GENERATION.match(name)
    return int(match[1]) if match else None


def root_of(name: str) -> str:
    """Folder of the generation that an object name belongs to (see ``CheckpointPaths.root``); empty if it is no name of ours."""
    match = _GENERATION.match(name)
    return match[0] if match else ""


class Place(NamedTuple):
    """Where an object of ours lies: in which generation of which key, and under which name there."""

    key_hash: str
    generation: int
    rest: str

    @property
    def stays(self) -> bool:
        """Whether it stays when the generation is done."""
        return _STAYS.fullmatch(self.rest) is not None


def place_of(name: str) -> Place | None:
    """Where an object lies, or None if its name is none of ours."""
    match = _PLACE.match(name)
    if match is None or not (_STAYS.fullmatch(match["rest"]) or _RECORD.fullmatch(match["rest"])):
        return None
    return Place(match["key_hash"], int(match["generation"]), match["rest"])


def in_order_of_removal(names: Iterable[str]) -> list[list[str]]:
    """The records among these names, in lots that are removed one after the other.

    The first seal goes first: as long as it is there, all records are. Then all that it seals, and the attempts last, because they
    say which files of the table are the generation's own. Later seals go with those: nobody looks for them without the first.
    """
    first: list[str] = []
    middle: list[str] = []
    last: list[str] = []
    for name in sorted(names):
        place = place_of(name)
        if place is not None and not place.stays:
            (first if place.rest == "seal.json" else last if _LAST.match(place.rest) else middle).append(name)
    return [lot for lot in (first, middle, last) if lot]


def is_rows(name: str) -> bool:
    """Whether an object holds rows that a stage has staged for the next task."""
    return _ROWS.fullmatch(name) is not None


def probe(id_: str) -> str:
    """An object that is put to read the store's clock, and removed; in no folder, which would be its maker's own in a local store.

    :param id_: 32 hex digits.
    """
    return f"clock-{id_}"


def is_probe(name: str) -> bool:
    """Whether an object was put to read the store's clock."""
    return _PROBE.fullmatch(name) is not None


def is_id(text: str) -> bool:
    """Whether a split may have this id."""
    return _ID.fullmatch(text) is not None


def is_writer(text: str) -> bool:
    """Whether a staged record may name this writer."""
    return _WRITER.fullmatch(text) is not None


def piece_of(name: str) -> tuple[str, int] | None:
    """Input and number in the name of a piece's record, or None if it is no name of ours."""
    match = _PIECE.search(name)
    return (match[1], int(match[2])) if match else None


def id_of(name: str) -> str:
    """Split or attempt id in an object name such as ``…/staged/000012.json``."""
    return name.rsplit("/", 1)[-1].removesuffix(".json")
