"""The names of all objects in a checkpoint store. Nothing else joins paths, and this module reads or writes none.

Renaming anything here breaks checkpoints that are under way: see "Stored formats" in the changelog.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FILE = re.compile(r"^ckpt-[0-9a-f]+-g[1-9][0-9]*-s[^-]+-([^.-]+)\.")

_GENERATION = re.compile(r"^[0-9a-f]+/g([1-9][0-9]*)/")


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
    def ids_folder(self) -> str:
        return f"{self.root}ids/"

    def ids(self, split_id: str, writer: str) -> str:
        """Ids of the rows that ``writer`` staged for a split, where a recovery is by rows."""
        return f"{self.ids_folder}{split_id}-{writer}.parquet"

    def seal(self, number: int = 1) -> str:
        """The first seal, or the one that took the place of that before it."""
        return f"{self.root}seal{_suffix(number)}.json"

    @property
    def group(self) -> str:
        return f"{self.root}group.json"

    @property
    def commit(self) -> str:
        return f"{self.root}commit.json"

    @property
    def discard(self) -> str:
        return f"{self.root}discard.json"

    def file_stem(self, split_id: str, attempt_id: str) -> str:
        """Start of the name of every data file and manifest of one split in one attempt (I4)."""
        return f"{self.files}s{split_id}-{attempt_id}"

    @property
    def files(self) -> str:
        """Start of the name of every data file and manifest of this generation."""
        return f"ckpt-{self.key_hash}-g{self.generation}-"


def attempt_of(file: str) -> str | None:
    """Id of the attempt that a file of a table names (see ``file_stem``), by the file's name; None if it is none of ours."""
    match = _FILE.match(file)
    return match[1] if match else None


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


def id_of(name: str) -> str:
    """Split or attempt id in an object name such as ``…/staged/000012.json``."""
    return name.rsplit("/", 1)[-1].removesuffix(".json")
