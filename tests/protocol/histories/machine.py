"""The rules of histories: who may do what next. Hypothesis chooses; ``Play`` does it and checks it."""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from protocol.histories import conditions, owner
from protocol.histories.catalog import FAULTS
from protocol.histories.model import FILTERS
from protocol.histories.play import COPY, LANDING, MADE, ORDERS, SCHEMA, Play, Write
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, IdentityTransform

from airflow_ckpt_provider.write import commit_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table import Table

SPECS = (
    UNPARTITIONED_PARTITION_SPEC,
    PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind")),
    PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "by_id")),
)

MODES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("append", {}),
    ("overwrite", {}),
    ("overwrite", {"overwrite_filter": "id < 5"}),
    ("overwrite", {"overwrite_filter": "kind = 'k0'"}),
    ("overwrite_partitions", {}),
    ("upsert", {"upsert_keys": ["id"]}),
    ("upsert", {"upsert_keys": ["id"], "when_matched": "ignore"}),
    ("upsert", {"upsert_keys": ["id"], "when_not_matched": "ignore"}),
)

#: What happens to one write, and to its table meanwhile; some of it more often.
ACTS = (
    "open", "open", "advance", "advance", "finish", "stage", "stage", "restart", "replace", "replace", "commit", "commit", "commit",
    "commit", "overtaken", "overtaken", "killed_after", "killed_after", "killed_before", "applied_later", "apply", "lose",
    "append", "append", "delete", "overwrite", "compact", "column", "expire", "roll back", "forget",
)  # fmt: skip

#: Keys of one history; more of them would only dilute it.
MOST_WRITES = 4

picks = st.integers(0, 11)
ids = st.lists(st.integers(0, 9), max_size=4, unique=True)
some_acts = st.lists(st.tuples(st.sampled_from(ACTS), picks), min_size=2, max_size=10)
maybe_faults = st.sampled_from([None, None, None, *FAULTS[:-2]])
kinds = st.sampled_from(["k0", "k1", None])


class Histories(RuleBasedStateMachine):
    """Writes of all modes, crashes, retries, zombies, and what owners do to their tables, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="histories-"))
        # File names and snapshot ids of a history are the same each time that it is played, so that it can be made shorter.
        numbers = random.Random(0)
        self.patches = [
            mock.patch("uuid.uuid4", lambda: uuid.UUID(int=numbers.getrandbits(128), version=4)),
            mock.patch.object(commit_loop, "FIRST_WAIT_S", 0.0005),
            mock.patch.object(commit_loop, "PATIENCE_S", 30.0),
        ]
        # A catalog of its own for each look at a source would be one more engine, with connections and caches.
        self.patches.append(mock.patch("pyiceberg.catalog.load_catalog", lambda *_, **__: self.play.world.catalog))
        for patch in self.patches:
            patch.start()
        self.tokens = 0

    @initialize(spec=st.sampled_from(SPECS), seed=st.lists(st.integers(0, 9), max_size=6, unique=True))
    def begin(self, spec: PartitionSpec, seed: list[int]) -> None:
        self.play = Play(self.root, spec)
        if seed:
            self.append_foreign(ORDERS, seed, "k1")
            self.append_foreign(LANDING, seed, "k0")

    # -- writes -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.play.writes) < MOST_WRITES)
    @rule(
        mode=st.sampled_from(MODES),
        files=st.lists(ids, min_size=1, max_size=2),
        kind=kinds,
        audit=st.integers(0, 4),
        note=st.integers(0, 5),
        wrong=st.integers(0, 6),
        fault=maybe_faults,
        mapped=st.integers(0, 3),
        acts=some_acts,
    )
    def write_files(
        self,
        mode: tuple[str, dict[str, Any]],
        files: list[list[int]],
        kind: str | None,
        audit: int,
        note: int,
        wrong: int,
        fault: str | None,
        mapped: int,
        acts: list[tuple[str, int]],
    ) -> None:
        name, parameters = mode
        if name == "overwrite_partitions" and wrong < 6 and self.play.world.table().spec().is_unpartitioned():
            name = "overwrite"
        writes = []
        for numbers in files if mapped == 3 and name != "upsert" else [None]:
            write = Write(
                f"w{len(self.play.writes)}", name, parameters, "files", ORDERS, "audit" if audit == 4 else "main",
                note=note >= 4, evolve=note == 5,
            )  # fmt: skip
            self.play.begin(write)
            for own in files if numbers is None else [numbers]:
                self._put(write, own, kind, fits=wrong < 6)
            self.play.stage(write)
            writes.append(write)
        if fault is not None and all(write.generations for write in writes):
            self.play.commit([(write, write.latest) for write in writes], fault)
        for act, number in acts:
            self._act(writes[-1], act, number)

    @precondition(lambda self: len(self.play.writes) < MOST_WRITES)
    @rule(mode=st.sampled_from(MODES[:3] + MODES[5:7]), source=st.sampled_from(["landing", "self"]), acts=some_acts)
    def write_table(self, mode: tuple[str, dict[str, Any]], source: str, acts: list[tuple[str, int]]) -> None:
        write = self.play.begin(Write(f"w{len(self.play.writes)}", *mode, source, ORDERS, "main"))
        self._begin(write, acts)

    @precondition(lambda self: len(self.play.writes) < MOST_WRITES)
    @rule(mode=st.sampled_from([MODES[0], MODES[5]]), more=ids, acts=some_acts)
    def write_increment(self, mode: tuple[str, dict[str, Any]], more: list[int], acts: list[tuple[str, int]]) -> None:
        if more:
            self.append_foreign(LANDING, more, "k1")
        write = self.play.begin(Write(f"w{len(self.play.writes)}", *mode, "since", COPY, "main"))
        self._begin(write, acts)

    @precondition(lambda self: sum(write.mode == "create" for write in self.play.writes) < 2)
    @rule(numbers=ids, partition_by=st.sampled_from([[], ["kind"]]))
    def write_new_table(self, numbers: list[int], partition_by: list[str]) -> None:
        parameters = {"partition_by": partition_by} if partition_by else {}
        write = self.play.begin(Write(f"w{len(self.play.writes)}", "create", parameters, "files", MADE, "main"))
        self._put(write, numbers, "k0", fits=True)
        self._begin(write, [])

    def _begin(self, write: Write, acts: list[tuple[str, int]]) -> None:
        self.play.stage(write)
        for act, number in acts:
            self._act(write, act, number)

    def _put(self, write: Write, numbers: list[int], kind: str | None, *, fits: bool) -> None:
        known = {row.id for file in write.files for row in file}
        rows = [self.play.row(number, kind, "n" if write.note else None) for number in numbers]
        if fits and write.mode == "upsert":
            rows = [row for row in rows if row.id not in known]
        if fits and "overwrite_filter" in write.parameters:
            rows = list(filter(FILTERS[write.parameters["overwrite_filter"]], rows))
        self.play.put_file(write, rows)

    @precondition(lambda self: self.play.writes)
    @rule(pick=picks, numbers=ids, kind=kinds)
    def put_more_input(self, pick: int, numbers: list[int], kind: str | None) -> None:
        write = self._write(pick)
        if write.source == "files":
            self._put(write, numbers, kind, fits=True)

    @precondition(lambda self: self.play.writes)
    @rule(pick=picks, acts=some_acts)
    def work_on_one(self, pick: int, acts: list[tuple[str, int]]) -> None:
        """Attempts at one write, commits of it, and what happens to its table meanwhile, one after the other."""
        write = self._write(-1 - pick)
        for act, number in acts:
            self._act(write, act, number)

    def _act(self, write: Write, act: str, number: int) -> None:
        mine = [one for one in self.play.running if one.write is write and not one.done]
        match act:
            case "open":
                self.play.open(write)
            case "stage" | "restart" | "replace":
                self.play.stage(write, **self._asked(act))
            case "advance" if mine:
                running = mine[number % len(mine)]
                for _ in range(1 + number % 8):
                    if not running.done:
                        self.play.advance(running)
            case "finish" if mine:
                while not mine[0].done:
                    self.play.advance(mine[0])
            case "commit" | "killed_after" | "killed_before" | "applied_later" if write.generations:
                one = write.latest if number < 10 else write.generations[1]
                self.play.commit([(write, one)], "none" if act == "commit" else act)
            case "overtaken" if write.generations:
                self.play.commit([(write, write.latest)], "overtaken", self._meanwhile(write, number, number))
            case "apply":
                self.play.apply_late()
            case "lose":
                for one in write.generations.values():
                    self.play.forget_record(write, one)
            case "append" | "delete" | "overwrite" | "compact" | "column" | "expire" | "roll back" | "forget":
                table = LANDING if write.table == COPY and act in {"append", "delete", "compact"} else write.table
                branch = write.branch if write.branch in self.play.world.table(ORDERS).metadata.refs else "main"
                if act == "append" and table != MADE:
                    self.append_foreign(table, [number % 10, (number + 3) % 10], "k0", branch=branch if table == ORDERS else "main")
                elif table != MADE:
                    self.own(act, table, [number % 10], "k1", number)

    # -- stages -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.play.writes)
    @rule(pick=picks, how=st.sampled_from(["", "", "restart", "replace", "replace", "both", "other mode"]))
    def stage(self, pick: int, how: str) -> None:
        write = self._write(pick)
        if how != "other mode":
            self.play.stage(write, **self._asked(how))
        elif write.mode not in {"append", "create"}:
            self.play.open(write, mode="append", replace=pick % 2 == 0)

    @precondition(lambda self: self.play.writes)
    @rule(pick=picks, how=st.sampled_from(["", "", "restart", "replace"]), steps=st.integers(0, 4))
    def stage_and_crash(self, pick: int, how: str, steps: int) -> None:
        running = self.play.open(self._write(pick), **self._asked(how))
        for _ in range(steps):
            if running is not None and not running.done:
                self.play.advance(running)

    @precondition(lambda self: any(not one.done for one in self.play.running))
    @rule(pick=picks, steps=st.integers(1, 12))
    def let_a_zombie_go_on(self, pick: int, steps: int) -> None:
        alive = [one for one in self.play.running if not one.done]
        running = alive[pick % len(alive)]
        for _ in range(steps):
            if not running.done:
                self.play.advance(running)

    def _asked(self, how: str) -> dict[str, Any]:
        self.tokens += 1
        return {"restart": f"run {self.tokens}" if how in {"restart", "both"} else None, "replace": how in {"replace", "both"}}

    # -- commits ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(write.generations for write in self.play.writes))
    @rule(pick=picks, older=st.integers(0, 5), fault=st.sampled_from(FAULTS), between=picks, other=picks, again=st.booleans())
    def commit(self, pick: int, older: int, fault: str, between: int, other: int, *, again: bool) -> None:
        write = self._begun(pick)
        numbers = sorted(write.generations)
        one = write.generations[numbers[-2 if older == 5 and len(numbers) > 1 else -1]]
        self.play.commit([(write, one)], fault, self._meanwhile(write, between, other))
        if again:
            self.play.commit([(write, one)])

    @precondition(lambda self: any(write.generations for write in self.play.writes))
    @rule(pick=picks, how=st.sampled_from(["", "replace", "restart"]), fault=st.sampled_from(FAULTS[:-2]))
    def stage_and_commit(self, pick: int, how: str, fault: str) -> None:
        write = self._begun(pick)
        self.play.stage(write, **self._asked(how))
        self.play.commit([(write, write.latest)], fault)

    @precondition(lambda self: sum(bool(write.generations) for write in self.play.writes) > 1)
    @rule(picked=st.lists(picks, min_size=2, max_size=3), fault=st.sampled_from((*FAULTS[:4], "killed_before", "killed_after")))
    def commit_together(self, picked: list[int], fault: str) -> None:
        writes = list({id(write): write for write in map(self._begun, picked)}.values())
        first = writes[0]
        # Mostly those that can land together.
        alike = [
            w for w in self.play.writes if w.generations and (w.mode, w.table, w.branch) == (first.mode, first.table, first.branch)
        ]
        self.play.commit([(write, write.latest) for write in (alike[:3] if len(alike) > 1 else writes)], fault)

    @precondition(lambda self: self.play.catalog.late)
    @rule()
    def let_the_catalog_apply_old_requests(self) -> None:
        self.play.apply_late()

    @precondition(lambda self: any(one.commits for write in self.play.writes for one in write.generations.values()))
    @rule(pick=picks)
    def lose_the_record(self, pick: int) -> None:
        pairs = [(write, one) for write in self.play.writes for one in write.generations.values() if one.commits]
        self.play.forget_record(*pairs[pick % len(pairs)])

    def _meanwhile(self, write: Write, between: int, other: int) -> Callable[[], None]:
        def restart() -> None:
            self.play.stage(write, **self._asked("restart"))

        def commit_other() -> None:
            another = self._begun(other)
            if another is not write:
                self.play.commit([(another, another.latest)])

        def append() -> None:
            self.append_foreign(write.table, [other % 10], "k0")

        def roll_back() -> None:
            # The only one after which a snapshot on the former head still has the next number.
            if self._head(write.table):
                self.roll_back(write.table, other)

        acts: list[Callable[[], Any]] = [
            append,
            append,
            commit_other,
            commit_other,
            restart,
            lambda: self.play.stage(write),
            roll_back,
            roll_back,
            roll_back,
            lambda: self.expire(write.table),
            lambda: self.delete_foreign("id < 5", ORDERS) if self._head(ORDERS) else None,
            lambda: self.play.commit([(write, write.latest)]),
        ]
        return acts[between % len(acts)]

    # -- owners and other writers -------------------------------------------------------------------------------------

    @rule(
        act=st.sampled_from(
            ["append", "append", "delete", "overwrite", "compact", "column", "buckets", "expire", "roll back", "forget", "create"]
        ),
        table=st.sampled_from([ORDERS, ORDERS, ORDERS, LANDING, LANDING, COPY]),
        numbers=ids.filter(bool),
        kind=kinds,
        pick=picks,
    )
    def others(self, act: str, table: str, numbers: list[int], kind: str | None, pick: int) -> None:
        self.own(act, table, numbers, kind, pick)

    def own(self, act: str, table: str, numbers: list[int], kind: str | None, pick: int) -> None:
        """What another writer, or its owner, does to a table."""
        if act == "append":
            branch = "audit" if pick == 1 and "audit" in self.play.world.table(ORDERS).metadata.refs else "main"
            self.append_foreign(ORDERS if table == COPY else table, numbers, kind, branch=branch if table == ORDERS else "main")
        elif act == "overwrite":
            rows = [self.play.row(number, kind) for number in numbers]
            self._foreign(ORDERS, lambda at: owner.overwrite(at, rows, "main"), lambda _: Counter(rows))
        elif act == "column":
            self._foreign(ORDERS, lambda at: owner.add_column(at, ("note", "extra")[pick % 2]))
        elif act == "buckets":
            self._foreign(ORDERS, owner.turn_buckets)
        elif act == "create":
            if not self.play.exists(MADE) and pick % 3 == 0:
                self.play.world.create_table(MADE, SCHEMA)
        elif self._head(table) is None:
            return
        elif act == "delete":
            self.delete_foreign(sorted(FILTERS)[pick % 2], ORDERS if table == COPY else table)
        elif act == "compact":
            self._foreign(table, lambda at: owner.compact(at, "main"))
        elif act == "expire":
            self.expire(table)
        elif act == "roll back":
            self.roll_back(table, pick)
        elif act == "forget":
            self.play.histories[table].remembered.clear()
            self._foreign(table, owner.forget)

    def append_foreign(self, table: str, numbers: list[int], kind: str | None, *, branch: str = "main") -> None:
        if not self.play.exists(table):
            return
        rows = [self.play.row(number, kind) for number in numbers]
        self._foreign(table, lambda at: owner.append(at, rows, branch), lambda before: before + Counter(rows), branch)

    def delete_foreign(self, text: str, table: str) -> None:
        matches = FILTERS[text]
        self._foreign(
            table,
            lambda at: owner.delete(at, text, "main"),
            lambda before: Counter({row: count for row, count in before.items() if not matches(row)}),
        )

    def expire(self, table: str) -> None:
        if self._head(table) is not None:
            self.play.histories[table].expired |= self._foreign(table, owner.expire)

    def roll_back(self, table: str, pick: int) -> None:
        head = self._head(table)
        history = self.play.histories[table]
        there = {one.snapshot_id for one in self.play.world.table(table).snapshots()} if head else set()
        earlier = [at for at in history.lineage(head) if at in there][1:]
        if earlier:
            to = earlier[pick % len(earlier)]
            self._foreign(table, lambda at: owner.roll_back(at, to), lambda _: history.rows[to])

    def _foreign(
        self,
        table: str,
        act: Callable[[Table], Any],
        effect: Callable[[Counter], Counter] = lambda before: before,
        branch: str = "main",
    ) -> Any:
        return self.play.foreign(table, branch, act, effect)

    def _head(self, table: str) -> int | None:
        return conditions.head_of(self.play.world.table(table), "main") if self.play.exists(table) else None

    # -- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if hasattr(self, "play"):
                self._finish()
        finally:
            for patch in self.patches:
                patch.stop()
            if hasattr(self, "play"):
                self.play.close()
                del self.play
            shutil.rmtree(self.root)

    def _finish(self) -> None:
        """Every write is retried to its end: it lands, or it is refused for a reason that is due."""
        self.play.apply_late()
        for write in self.play.writes:
            self.play.stage(write)
            if write.generations:
                self.play.commit([(write, write.latest)])
        self.play.look_closely()

    def _write(self, pick: int) -> Write:
        return self.play.writes[pick % len(self.play.writes)]

    def _begun(self, pick: int) -> Write:
        begun = [write for write in self.play.writes if write.generations]
        return begun[pick % len(begun)]
