"""What lies in a checkpoint store, by generations, as one listing shows it: names, sizes and times. No object is read.

Times are those of the store's clock (I13). How much is kept in memory grows with the number of generations, not of objects.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.layout import CheckpointPaths, is_probe, is_rows, place_of

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_ckpt_provider.checkpoint.store import CheckpointStore


@dataclass
class GenerationObjects:
    """The objects of one generation.

    :param records: those that a clean-up removes once the generation is done, and their bytes.
    :param stays: the others, by their names below the generation's folder.
    :param kinds: how many there are of each kind: by their folder, such as ``staged``, or their own name, such as ``seal.json``.
    :param modified: when the newest of all was put; None if there is none but the compact record, which a clean-up puts.
    """

    paths: CheckpointPaths
    records: int = 0
    bytes: int = 0
    stays: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    modified: datetime | None = None

    def is_older_than(self, moment: datetime) -> bool:
        """Whether no object of the generation was put since a moment of the store's clock."""
        return self.modified is None or self.modified < moment

    @property
    def is_committed(self) -> bool:
        """Whether the generation has a record of its commit."""
        return self._has(self.paths.commit)

    @property
    def is_compact(self) -> bool:
        """Whether it has a compact record."""
        return self._has(self.paths.compact)

    def _has(self, name: str) -> bool:
        return name.removeprefix(self.paths.root) in self.stays


@dataclass
class Inventory:
    """The generations in a store, or of one key.

    :param folder: what was listed; empty for the whole store.
    :param generations: by the hash of the key, then by number.
    :param foreign: objects whose names are none of ours.
    :param probes: objects that a killed clean-up has left when it read the store's clock, and when they were put.
    """

    folder: str
    generations: dict[str, dict[int, GenerationObjects]] = field(default_factory=dict)
    foreign: int = 0
    probes: dict[str, datetime] = field(default_factory=dict)

    @classmethod
    def of(cls, store: CheckpointStore, key_hash: str = "") -> Inventory:
        """List a store once.

        :param key_hash: of the one key to list; all, if empty.
        """
        inventory = cls(f"{key_hash}/" if key_hash else "")
        for listed in store.listed(inventory.folder):
            place = place_of(listed.name)
            if place is None:
                if is_probe(listed.name):
                    inventory.probes[listed.name] = listed.modified
                elif not is_rows(listed.name):
                    inventory.foreign += 1
                continue
            of_key = inventory.generations.setdefault(place.key_hash, {})
            generation = of_key.get(place.generation)
            if generation is None:
                paths = CheckpointPaths(place.key_hash, place.generation)
                generation = of_key[place.generation] = GenerationObjects(paths)
            generation.kinds[place.rest.partition("/")[0]] += 1
            if place.stays:
                generation.stays.add(place.rest)
            else:
                generation.records += 1
                generation.bytes += listed.bytes
            if listed.name != generation.paths.compact:
                generation.modified = listed.modified if generation.modified is None else max(generation.modified, listed.modified)
        return inventory

    def covers(self, key_hash: str) -> bool:
        """Whether the generations of a key were listed, if it has any."""
        return self.folder in {"", f"{key_hash}/"}

    def get(self, key_hash: str, generation: int) -> GenerationObjects | None:
        """One generation; None if it was not there."""
        return self.generations.get(key_hash, {}).get(generation)
