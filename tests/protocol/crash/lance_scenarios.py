"""The writes into Lance datasets that are stopped at every effect: every mode, and two mapped tasks in one commit."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.crash.run_to import growing
from support.foreign import rows
from support.lance_world import FOREIGN, LanceWorld

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class LanceScenario:
    """A world to be, and what is written in it.

    :param before: how many rows of others are in the dataset before; None if there is no dataset.
    :param first: id of the first of them.
    :param kept: whether those are there after.
    :param kept_ids: which of them are, if not all or none.
    :param landed_ids: which rows of the input land, if not all.
    :param written_again: how many files are written besides one for each input file: without some rows, or as pieces.
    :param stable: whether the rows of others have stable row ids. Then every other one of them is deleted before, so that rows that
        are there and new ones take turns in the input, and they are in several fragments.
    :param growing: whether the rows are those that an Iceberg table has got since the last commit, one data file for each file.
    """

    name: str
    files: int
    rows_each: int
    writes: tuple[dict[str, Any], ...]
    before: int | None = 3
    kept: bool = True
    first: int = FOREIGN
    kept_ids: tuple[int, ...] | None = None
    landed_ids: tuple[int, ...] | None = None
    written_again: int = 0
    stable: bool = False
    growing: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(facts.get("key", "orders") for facts in self.writes)

    @property
    def ids(self) -> list[int]:
        there = self.kept_ids or range(self.first, self.first + (self.before or 0))
        kept = there if self.kept else ()
        landed = range(self.files * self.rows_each) if self.landed_ids is None else self.landed_ids
        return [*landed, *kept]

    def world(self, root: Path) -> LanceWorld:
        world = LanceWorld(root)
        if self.before is not None:
            settings = {"enable_stable_row_ids": True, "max_rows_per_file": 4} if self.stable else {}
            world.create_dataset(self.first, self.before, **settings)
            if self.stable:
                world.dataset.delete("id % 2 = 1")
        world.put_files(self.files, self.rows_each)
        if self.growing:
            source = growing(world)
            source.create_table()
            for start in range(0, self.files * self.rows_each, self.rows_each):
                source.table().append(rows(start, self.rows_each))
        return world


CREATE = LanceScenario("create", 2, 4, ({"mode": "create"},), before=None)
CREATE_EMPTY = LanceScenario(
    "create without rows",
    1,
    0,
    ({"mode": "create", "parameters": {"storage_version": "2.1", "stable_row_ids": True}},),
    before=None,
)
#: The dataset comes into being with the rows, as with ``create``, because there is none.
MAKES = dataclasses.replace(
    CREATE, name="append to a dataset that is missing", writes=({"parameters": {"create_if_missing": True}},)
)
APPEND = LanceScenario("append", 2, 4, ({},))
APPEND_TO_NOTHING = LanceScenario("append to a dataset without rows", 2, 4, ({},), before=0)
PIECES = LanceScenario("append in pieces", 2, 5, ({"save_every": 2},), written_again=6)
OVERWRITE = LanceScenario("overwrite", 2, 4, ({"mode": "overwrite"},), kept=False)
MAPPED = LanceScenario(
    "two mapped tasks, one commit",
    2,
    4,
    ({"key": "orders/0", "input": "0.parquet"}, {"key": "orders/1", "input": "1.parquet"}),
)
#: Of the rows that are there, some are replaced; others stay, and new ones are added.
UPSERT = LanceScenario(
    "upsert", 2, 2, ({"mode": "upsert", "parameters": {"upsert_keys": ["id"]}},), before=4, first=2, kept_ids=(4, 5)
)
UPSERT_PIECES = dataclasses.replace(
    UPSERT, name="upsert, in pieces", writes=({**UPSERT.writes[0], "save_every": 1},), written_again=4
)
#: As the upsert above, with but one new row, which is in the first file.
UPSERT_AGAIN = dataclasses.replace(UPSERT, first=1, kept_ids=(4,))
#: Of three staged files one lands as it is, one without a row that is there, or without one that is not, and one not at all.
UPSERT_INSERTS = LanceScenario(
    "upsert that only inserts",
    3,
    2,
    ({"mode": "upsert", "parameters": {"upsert_keys": ["id"], "when_matched": "ignore"}},),
    before=4,
    first=3,
    landed_ids=(0, 1, 2),
    written_again=1,
)
UPSERT_UPDATES = LanceScenario(
    "upsert that only updates",
    3,
    2,
    ({"mode": "upsert", "parameters": {"upsert_keys": ["id"], "when_not_matched": "ignore"}},),
    before=4,
    first=3,
    kept_ids=(6,),
    landed_ids=(3, 4, 5),
    written_again=1,
)
#: Of three staged files the first has only new rows and lands as it is; the others are split into what is there and what is new.
STABLE = LanceScenario(
    "upsert with stable row ids",
    3,
    4,
    ({"mode": "upsert", "parameters": {"upsert_keys": ["id"]}},),
    before=10,
    first=6,
    kept_ids=(12, 14),
    written_again=4,
    stable=True,
)
STABLE_UPDATES = dataclasses.replace(
    STABLE,
    name="upsert with stable row ids that only updates",
    writes=({"mode": "upsert", "parameters": {"upsert_keys": ["id"], "when_not_matched": "ignore"}},),
    landed_ids=(6, 8, 10),
    written_again=2,
)
GROWING = LanceScenario("append of what is new", 2, 4, ({"growing": True},), growing=True)
EVERY = [
    CREATE,
    CREATE_EMPTY,
    MAKES,
    APPEND,
    APPEND_TO_NOTHING,
    PIECES,
    UPSERT_PIECES,
    OVERWRITE,
    MAPPED,
    UPSERT,
    UPSERT_INSERTS,
    UPSERT_UPDATES,
    STABLE,
    STABLE_UPDATES,
    GROWING,
]

#: One of each kind: with and without rows before, in pieces, of several tasks, with row ids that last, of what is new.
SUSPENDED = [CREATE, APPEND, UPSERT_PIECES, OVERWRITE, MAPPED, STABLE, GROWING]


class Replacement(NamedTuple):
    """What is committed, and then replaced by the same without its first input file.

    :param do: which part of the replacement is stopped: ``stage`` or ``land``.
    :param own: ids of the rows that it has written, and of the others.
    """

    scenario: LanceScenario
    do: str
    own: set[int]
    others: set[int]

    @property
    def name(self) -> str:
        return f"{self.scenario.name}-{self.do}"


REPLACEMENTS = [
    *(Replacement(APPEND, do, {4, 5, 6, 7}, {FOREIGN, FOREIGN + 1, FOREIGN + 2}) for do in ("stage", "land")),
    # Of 0 to 3, all but the first took the place of rows of others.
    *(Replacement(UPSERT_AGAIN, do, {2, 3}, {1, 4}) for do in ("stage", "land")),
    # Of 0 to 11, three took the place of rows of others.
    *(Replacement(STABLE, do, {*range(4, 12)}, {12, 14}) for do in ("stage", "land")),
]
