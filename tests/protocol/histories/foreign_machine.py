"""Whatever others do between any two steps of a write, green means readable.

The one property: when a commit, or a stage that reports one, is green, exactly its rows are there, once, for a reader that is not
ours; and anything else is an error of this provider that names its cause and has changed nothing, or something whose outcome it
calls unknown. Unlike ``machine``, this one does not say which error is due, and so it can go further in what happens: to tables of
both formats, to the checkpoint store, to the clock, to objects.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import shutil
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from protocol.histories import owner
from protocol.histories.catalog import KILLED, SILENT, SLOW, KilledError
from protocol.histories.places import Fault, IcebergPlace, LancePlace
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from support.columns import columns_request

from airflow_ckpt_provider.checkpoint import checkpoint as checkpoints
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import CheckpointError, CheckpointMissingError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.write import commit_loop, groups
from airflow_ckpt_provider.write.attempt import WriteAttempt
from airflow_ckpt_provider.write.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from protocol.histories.model import Row
    from protocol.histories.places import Found
    from protocol.histories.places import IcebergPlace as Place

FAULTS = (
    "none", "none", "none", "reply_lost_after_landing", "landed_but_reported_as_conflict", *sorted(SILENT), *sorted(KILLED),
    "overtaken", "overtaken", "overtaken", "overtaken_and_lost", *SLOW,
)  # fmt: skip

#: What the owner of the table and other writers do.
HANDS = ("append", "append", "delete", "overwrite", "compact", "compact", "cut history", "cut history", "restore", "column", "type")

MOST_WRITES = 3

#: Ids that several writers use; those of appended rows are counted from ``_OWN`` on.
_SHARED, _OWN = 8, 100

picks = st.integers(0, 23)


#: A partition of the table: that of a row with this id.
BY_KIND = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind"))


class Stage(NamedTuple):
    """One checkpoint: a generation of a key, in a store that had not lost it."""

    key: str
    generation: int
    created_at: datetime


class Bound(NamedTuple):
    """What a checkpoint is bound to.

    :param replaces: the generation whose place it takes.
    :param partition_of: of a row, by its id.
    """

    replaces: int | None
    partition_of: Callable[[int], tuple[Any, ...]]


@dataclass
class Write:
    key: str
    mode: str
    folder: Path
    rows: list[Row] = field(default_factory=list)
    files: int = 0


class State(NamedTuple):
    """A table at one moment: its rows, and the checkpoints in its lineage."""

    rows: Found
    landed: frozenset[Stage] = frozenset()
    #: Rows that have a value in a column that a write has added, by its key.
    computed: Mapping[str, frozenset[tuple[int, float]]] = MappingProxyType({})


class ForeignHands(RuleBasedStateMachine):
    """Writes, and what happens around them."""

    place_of: Callable[[Path, int], Place]

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="foreign-"))
        numbers = random.Random(0)
        self._now = 0
        real = time.time
        self.patches = [
            mock.patch("uuid.uuid4", lambda: uuid.UUID(int=numbers.getrandbits(128), version=4)),
            mock.patch.object(commit_loop, "FIRST_WAIT_S", 0.0005),
            mock.patch.object(commit_loop, "PATIENCE_S", 0.05),
            mock.patch.object(checkpoints, "datetime", _shifted(lambda: self._now)),
            mock.patch("time.time", lambda: real() + 3600 * self._now),
        ]
        for patch in self.patches:
            patch.start()
        self.writes: list[Write] = []
        self.rows_of: dict[Stage, list[Row]] = {}
        self.bound: dict[Stage, Bound] = {}
        #: Rows that a checkpoint has inserted, which a replacement of it takes away.
        self.own: dict[Stage, Found] = {}
        self.states: dict[Any, State] = {}
        self.state = State(Counter())
        self.hours = 0
        self.ids, self.values, self.tokens = itertools.count(_OWN), itertools.count(1), itertools.count(1)
        self.late: list[tuple[Stage, Callable[[], Any]]] = []

    @initialize(kind=st.integers(0, 1), seed=st.integers(0, 3))
    def begin(self, kind: int, seed: int) -> None:
        self.place = type(self).place_of(self.root, kind)
        if seed:
            self.hand("append", seed)

    # -- writes -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.writes) < MOST_WRITES)
    @rule(mode=picks, files=st.integers(1, 2), commit=st.booleans())
    def write(self, mode: int, files: int, *, commit: bool) -> None:
        folder = self.root / "in" / f"w{len(self.writes)}"
        folder.mkdir(parents=True)
        write = Write(folder.name, self.place.modes[mode % len(self.place.modes)], folder)
        self.writes.append(write)
        for _ in range(files if write.mode != "add_columns" else 0):
            self._put(write)
        self._stage(write)
        if commit:
            self._commit(write, Fault())

    @precondition(lambda self: self.writes)
    @rule(pick=picks)
    def the_source_gets_more(self, pick: int) -> None:
        write = self._picked(pick)
        if write.mode != "add_columns":
            self._put(write)

    @precondition(lambda self: self.writes)
    @rule(pick=picks, splits=st.sampled_from([None, None, 0, 1]), restart=st.integers(0, 4))
    def stage(self, pick: int, splits: int | None, restart: int) -> None:
        self._stage(self._picked(pick), splits, restart=restart == 0)

    @precondition(lambda self: self.writes)
    @rule(pick=picks, hand=st.sampled_from(("none", "none", *HANDS)), number=picks)
    def replace_what_has_landed(self, pick: int, hand: str, number: int) -> None:
        write = self._picked(pick)
        if write.mode == "add_columns":
            return
        # What takes the place of the same rows could not be told from them.
        self._put(write)
        self._stage(write, replace=True)
        if hand != "none":
            self.hand(hand, number)
        self._commit(write, Fault())

    @precondition(lambda self: self.writes)
    @rule(pick=picks, fault=st.sampled_from(FAULTS), hand=st.sampled_from(HANDS), number=picks, again=st.booleans())
    def commit(self, pick: int, fault: str, hand: str, number: int, *, again: bool) -> None:
        write = self._picked(pick)
        self._commit(write, Fault(fault, lambda: self.hand(hand, number)))
        if again:
            self._commit(write, Fault())

    @precondition(lambda self: self.writes)
    @rule(pick=picks, hand=st.sampled_from(HANDS), number=picks)
    def stage_and_commit_with_a_hand_between(self, pick: int, hand: str, number: int) -> None:
        write = self._picked(pick)
        self._stage(write)
        self.hand(hand, number)
        self._commit(write, Fault())

    @precondition(lambda self: self.late)
    @rule()
    def requests_that_nobody_waits_for_are_applied(self) -> None:
        for stage, apply in self.late:
            # Nobody hears what becomes of it.
            with contextlib.suppress(Exception):
                apply()
            self._look({stage})
        self.late = []

    # -- others -------------------------------------------------------------------------------------------------------

    @rule(hand=st.sampled_from(HANDS), number=picks)
    def others(self, hand: str, number: int) -> None:
        self.hand(hand, number)

    @precondition(lambda self: self.writes)
    @rule(pick=picks, impostor=st.booleans())
    def the_table_is_away_for_a_while(self, pick: int, *, impostor: bool) -> None:
        write, before = self._picked(pick), dict(self.rows_of)
        with self.place.away(impostor=impostor):
            for act in (lambda: self._commit_only(write), lambda: self._stage_only(write)):
                try:
                    act()
                except CheckpointError as error:
                    _require_cause(error)
        # What was begun on another table is none of this one.
        self.rows_of |= {stage: self._planned(write) for stage in self._stages() if stage not in before}
        self._look(set())

    @precondition(lambda self: self.writes)
    @rule(pick=picks, everything=st.integers(0, 2))
    def the_store_is_lost(self, pick: int, everything: int) -> None:
        store = self.root / "store"
        folder = store if everything == 0 else store / IdempotenceKey(self._picked(pick).key).hash
        shutil.rmtree(folder, ignore_errors=True)

    @precondition(lambda self: self.writes)
    @rule(pick=picks, number=st.integers(0, 200), truncate=st.booleans(), staged=st.booleans())
    def an_object_is_damaged(self, pick: int, number: int, *, truncate: bool, staged: bool) -> None:
        """A staged file, or a document of the store that a retention or a hand took away."""
        folder = self.root / "store" / IdempotenceKey(self._picked(pick).key).hash
        there = self.place.unreferenced() if staged else sorted(path for path in folder.rglob("*") if path.is_file())
        if there:
            path = there[number % len(there)]
            if truncate:
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            else:
                path.unlink()

    @precondition(lambda self: self.writes)
    @rule(
        discard=st.booleans(), of_all=st.integers(0, 3), pick=picks, then=st.sampled_from(["nothing", "stage", "replace", "commit"])
    )
    def weeks_later_the_store_is_swept(self, *, discard: bool, of_all: int, pick: int, then: str) -> None:
        """With all that is in it, or one key; at times the sweep is killed after the first generation."""
        store = self.place.world.store
        for path in (self.root / "store").rglob("*.*"):
            modified = path.stat().st_mtime - 15 * 86_400
            os.utime(path, (modified, modified))
        write = self._picked(pick)
        sweep = Sweep(
            store,
            lambda _: self.place.as_table(),
            older_than=timedelta(days=14),
            keys="*" if of_all else write.key,
            abandoned="discard" if discard else "keep",
        )
        for _ in itertools.islice(sweep.run(), 1 if of_all == 1 else None):
            self._look(set())
        self._look(set())
        if then in {"stage", "replace"}:
            self._stage(write, replace=then == "replace")
        if then != "nothing":
            self._commit(write, Fault())

    @rule(hours=st.sampled_from([-25, -2, 0, 0, 7]))
    def the_clock_of_the_worker_is_off(self, hours: int) -> None:
        self.hours = hours

    def hand(self, hand: str, number: int) -> None:
        """What another writer, or the owner, does, with a clock that is right."""
        hours, self._now = self._now, 0
        rows, landed, computed = self.state
        present = {row_id for row_id, _ in rows}
        match hand:
            case "append" | "overwrite":
                free = [n for n in range(_SHARED) if hand == "overwrite" or n not in present]
                new = [self._row((free[number % len(free)]) if free and number % 3 else next(self.ids))]
                getattr(self.place, hand)(new)
                found = Counter((row.id, row.value) for row in new)
                # An overwrite of a dataset makes its columns anew.
                self.state = State(found, landed) if hand == "overwrite" else State(rows + found, landed, computed)
            case "delete":
                self.place.delete_below(4)
                self.state = State(Counter({row: n for row, n in rows.items() if row[0] >= 4}), landed, computed)
            case "restore":
                earlier = [version for version in self.place.earlier_generations() if version in self.states]
                if earlier:
                    version = earlier[number % len(earlier)]
                    self.place.restore(version)
                    self.state = self.states[version]
            case _:
                self.place.acts[hand](number)
        self._look(set())
        self._now = hours

    # -- steps of ours ------------------------------------------------------------------------------------------------

    def _stage(self, write: Write, splits: int | None = None, *, restart: bool = False, replace: bool = False) -> None:
        try:
            attempt = self._stage_only(write, splits, restart=restart, replace=replace)
        except CheckpointError as error:
            _require_cause(error)
        else:
            if attempt.commit is not None:
                stage = _named(attempt.checkpoint)
                assert stage in self.state.landed, f"the stage of {write.key} reports a commit that is not in the table's lineage"
        for stage in self._stages():
            if stage.key == write.key and stage not in self.rows_of and self._is_planned(stage):
                self.rows_of[stage] = self._planned(write)
        self._look(set())

    def _stage_only(self, write: Write, splits: int | None = None, *, restart: bool = False, replace: bool = False) -> WriteAttempt:
        world = self.place.world
        asked: dict[str, Any] = {
            "restart_token": f"run {next(self.tokens)}" if restart else None,
            "on_rerun": "replace" if replace else "reuse",
        }
        if write.mode == "add_columns":
            read, function = ("value",), functools.partial(_ten_times, f"tens_{write.key}")
            request = columns_request(world, write.key, function, read, rows_per_split=2, transform_version="1", **asked)
        else:
            request = world.request(
                write.key,
                source=Files(f"{write.folder}/*.parquet", max_split_bytes=1),
                mode=write.mode,
                parameters={"upsert_keys": ["id"]} if write.mode == "upsert" else {},
                **asked,
            )
        self._now = self.hours
        try:
            attempt = WriteAttempt(world.store, self.place.as_table(), request)
            if attempt.commit is not None:
                attempt.verify_commit()
                return attempt
            while (found := attempt.next_round()) is not None:
                work = attempt.begin("none", 1)
                for split in sorted(found.missing, key=lambda split: split.id):
                    if splits == 0:
                        return attempt
                    work.run(split, "0")
                    splits = None if splits is None else splits - 1
            attempt.seal()
        finally:
            self._now = 0
        return attempt

    def _commit(self, write: Write, fault: Fault) -> None:
        mine = [stage for stage in self._stages() if stage.key == write.key]
        newest = max(mine, key=lambda stage: stage.generation, default=None)
        error: BaseException | None = None
        try:
            with self.place.faulty(fault):
                self._commit_only(write)
        except (CheckpointError, KilledError) as problem:
            error = problem
        self.late += [(newest, apply) for apply in self.place.late()]
        landed_before = newest in self.state.landed
        changed = self._look({newest} if newest in self.rows_of else set())
        if error is None:
            others = [one for one in self.state.landed if one.key == write.key and one != newest]
            assert newest is not None
            assert newest in self.state.landed, f"the commit of {write.key} is green, and its rows are not there"
            assert not others, f"the commit of {write.key} is green, and other rows of the key are in the table's lineage: {others}"
            self.place.require_sound()
        elif not isinstance(error, KilledError):
            _require_cause(error)
            assert not (changed and "othing was " in str(error)), f"it is said that nothing was changed: {error}"
        assert not (landed_before and changed), f"{write.key} has landed again"

    def _commit_only(self, write: Write) -> None:
        self._now = self.hours
        try:
            checkpoint = Checkpoint.latest(self.place.world.store, IdempotenceKey(write.key))
            if checkpoint is None:
                raise CheckpointMissingError(f"There is none under the key {write.key!r}.")
            groups.commit([checkpoint], self.place.as_table())
        finally:
            self._now = 0

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _look(self, may_land: set[Stage]) -> bool:
        """Compare the table with the model: nothing has changed, or one of these has landed.

        :returns: whether one has.
        """
        found, head = self.place.read(), self.place.head()
        counts = Counter(row_id for row_id, _ in found.elements())
        # A replacement of an overwrite leaves the rows that others have appended since, whatever their ids.
        twice = [row_id for row_id, count in counts.items() if count > 1 and row_id >= _OWN]
        assert not twice, f"ids that are there twice: {twice}"
        computed = {write.key: self.place.computed(f"tens_{write.key}") for write in self.writes if write.mode == "add_columns"}
        computed = {key: rows for key, rows in computed.items() if rows is not None}
        landed = [stage for stage in may_land if stage.key in computed.keys() - self.state.computed.keys()]
        if found != self.state.rows:
            landed = [stage for stage in may_land if found == self._effect(stage)]
            assert landed, f"too many {found - self.state.rows}, missing {self.state.rows - found}; may land: {may_land}"
        for key, rows in computed.items():
            was = self.state.computed.get(key)
            if was is not None:
                # A replacement may write the same rows again, which are new ones.
                wrote = [one for one in landed[:1] if self._mode(one) != "add_columns"]
                new = {(row.id, row.value) for one in wrote for row in self.rows_of[one]}
                kept = (was & found.keys()) - new
                assert kept <= rows <= was, f"rows lost their values in the column of {key}, or got some: {kept ^ rows}"
            else:
                assert key in {stage.key for stage in landed}, f"the column of {key} came into being"
                there = {(row.id, row.value) for row in self.rows_of[landed[0]]} & found.keys()
                assert there <= rows, f"rows have no values in the column of {key}: {there - rows}"
        assert self.state.computed.keys() <= computed.keys(), "a column that was added is gone"
        before = self._landed(landed[0]) if landed else self.state.landed
        self.state = self.states[head] = State(found, before, computed)
        return bool(landed)

    def _effect(self, stage: Stage) -> Found:
        """The rows of the table after this checkpoint has landed on what it is now."""
        new = Counter((row.id, row.value) for row in self.rows_of[stage])
        mode, bound, base = self._mode(stage), self.bound[stage], self._base(stage)
        if mode == "upsert":
            ids = {row_id for row_id, _ in new}
            return Counter({row: n for row, n in base.items() if row[0] not in ids}) + new
        if mode == "append" or bound.replaces is not None:
            return base + new
        if mode == "overwrite":
            return new
        gone = {bound.partition_of(row_id) for row_id, _ in new}
        return Counter({row: n for row, n in base.items() if bound.partition_of(row[0]) not in gone}) + new

    def _base(self, stage: Stage) -> Found:
        """What there is without what the generation had inserted whose place it takes."""
        replaced = self._predecessor(stage)
        return self.state.rows - (self.own.get(replaced, Counter()) if replaced else Counter())

    def _predecessor(self, stage: Stage) -> Stage | None:
        number = self.bound[stage].replaces
        return next((one for one in self.state.landed if (one.key, one.generation) == (stage.key, number)), None)

    def _landed(self, stage: Stage) -> frozenset[Stage]:
        """Note what a checkpoint that lands inserts; the checkpoints in the table's lineage once it has."""
        taken = {row_id for row_id, _ in self._base(stage)} if self._mode(stage) == "upsert" else set()
        new = () if self._mode(stage) == "add_columns" else self.rows_of[stage]
        self.own[stage] = Counter((row.id, row.value) for row in new if row.id not in taken)
        return frozenset(self.state.landed - {self._predecessor(stage)} | {stage})

    def _mode(self, stage: Stage) -> str:
        return next(write.mode for write in self.writes if write.key == stage.key)

    def _stages(self) -> list[Stage]:
        """Checkpoints whose headers can be read."""
        store, found = self.place.world.store, []
        for write in self.writes:
            key = IdempotenceKey(write.key)
            for path in sorted((self.root / "store" / key.hash).glob("g*/header.json")):
                try:
                    checkpoint = Checkpoint.at(store, key, int(path.parent.name[1:]))
                except CheckpointError:
                    continue
                stage, header = _named(checkpoint), checkpoint.header
                found.append(stage)
                if stage not in self.bound:
                    self.bound[stage] = Bound(header.replaces, self.place.partition_of(header.table))
        return found

    def _is_planned(self, stage: Stage) -> bool:
        folder = self.root / "store" / IdempotenceKey(stage.key).hash / f"g{stage.generation}"
        return (folder / "plan.json.zst").exists()

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _put(self, write: Write) -> None:
        known = {row.id for row in write.rows}
        if write.mode == "append":
            ids = [next(self.ids), next(self.ids)]
        else:
            ids = [n for n in range(_SHARED) if n not in known][write.files % 3 :: 3][:2] or [next(self.ids)]
        rows = [self._row(row_id) for row_id in ids]
        pq.write_table(owner.arrow(rows), write.folder / f"{write.files:03d}.parquet")
        write.files += 1
        write.rows += rows

    def _row(self, row_id: int) -> Row:
        return owner.row(row_id, float(next(self.values)))

    def _planned(self, write: Write) -> list[Row]:
        """What is read when a write is planned: its files, or the rows that get values in a new column."""
        if write.mode == "add_columns":
            return [owner.row(*row) for row in self.state.rows]
        return list(write.rows)

    def _picked(self, pick: int) -> Write:
        return self.writes[pick % len(self.writes)]

    # -- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if hasattr(self, "place"):
                self.hours = 0
                for write in self.writes:
                    self._stage(write)
                    self._commit(write, Fault())
        finally:
            for patch in self.patches:
                patch.stop()
            if hasattr(self, "place"):
                self.place.close()
            shutil.rmtree(self.root)


class ForeignHandsOnIceberg(ForeignHands):
    place_of = staticmethod(lambda root, kind: IcebergPlace(root, BY_KIND if kind else UNPARTITIONED_PARTITION_SPEC))


class ForeignHandsOnLance(ForeignHands):
    place_of = staticmethod(lambda root, kind: LancePlace(root, stable=bool(kind)))


def _ten_times(column: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({column: pc.multiply(batch["value"], 10)})


def _named(checkpoint: Checkpoint) -> Stage:
    header = checkpoint.header
    return Stage(header.key, header.generation, header.created_at)


def _require_cause(error: BaseException) -> None:
    text = str(error)
    assert any(word in text for word in ("'w", "orders", "ckpt-", ".json")), f"it names neither key, nor table, nor object: {text}"


def _shifted(hours: Callable[[], int]) -> type[datetime]:
    """A clock that is off."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(hours=hours())

    return Shifted
