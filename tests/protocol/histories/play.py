"""One history, played against the real product and told to the model at once: every step is checked against both."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
from protocol.crash.exactly_once import owner_of
from protocol.histories import conditions, owner
from protocol.histories.catalog import KILLED, SILENT, KilledError, MeddlingCatalog
from protocol.histories.model import Generation, History, Row, land, partitioning, rows_in
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from support import foreign
from support.readers import assert_same_everywhere
from support.world import ORIGIN, World

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Header
from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import CheckpointError, CommitRefusedError, InputChangedError, OutcomeUnknownError
from airflow_ckpt_provider.sources import Files, IcebergTable
from airflow_ckpt_provider.tables.iceberg.history import PROPERTY_PREFIX
from airflow_ckpt_provider.tables.iceberg.table import CatalogTable
from airflow_ckpt_provider.tables.summary import GROUP
from airflow_ckpt_provider.write import commit_loop, groups
from airflow_ckpt_provider.write.attempt import WriteAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from protocol.histories.conditions import Due
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table

    from airflow_ckpt_provider.checkpoint.documents import Commit

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "value", DoubleType()), NestedField(3, "kind", StringType())
)  # fmt: skip

ORDERS, LANDING, COPY, MADE = "shop.orders", "shop.landing", "shop.copy", "shop.made"

#: What a step returns that was refused or killed.
STOPPED = object()


@dataclass
class Write:
    """A task's write under one key: what stays the same in all of its attempts."""

    key: str
    mode: str
    parameters: dict[str, Any]
    source: str
    table: str
    branch: str
    note: bool = False
    evolve: bool = False
    files: list[list[Row]] = field(default_factory=list)
    generations: dict[int, Generation] = field(default_factory=dict)

    @property
    def latest(self) -> Generation | None:
        return self.generations[max(self.generations)] if self.generations else None

    @property
    def provisional(self) -> bool:
        """Whether what is staged depends on what the table held."""
        return self.mode == "upsert" or "overwrite_filter" in self.parameters


class Running:
    """An attempt between two of its steps. One that is left alone has crashed; one that is gone on with later is a zombie."""

    def __init__(self, write: Write, generation: Generation, attempt: WriteAttempt) -> None:
        self.write = write
        self.generation = generation
        self.attempt = attempt
        self.pending: list[Any] = []
        self.work: Any = None
        self.head: int | None = None
        self.complete = self.done = False


class SteadyWorld(World):
    """A world with one open catalog, which loads a table anew only if it has changed: histories look at tables all the time."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._catalog = World.catalog.fget(self)
        self._loaded: dict[str, Table] = {}

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    def locations(self) -> dict[str, str]:
        """Where each table's metadata is."""
        with contextlib.closing(sqlite3.connect(self.root / "catalog.db")) as connection:
            found = connection.execute("select table_namespace || '.' || table_name, metadata_location from iceberg_tables")
            return dict(found.fetchall())

    def table(self, name: str = ORDERS) -> Table:
        loaded = self._loaded.get(name)
        if loaded is None or loaded.metadata_location != self.locations().get(name):
            loaded = self._loaded[name] = self.catalog.load_table(name)
        return loaded


class Play:
    def __init__(self, root: Path, spec: PartitionSpec) -> None:
        self.world = SteadyWorld(root)
        self.histories = {name: History() for name in (ORDERS, LANDING, COPY, MADE)}
        self.writes: list[Write] = []
        self.running: list[Running] = []
        self.catalog = MeddlingCatalog(self.world)
        self._values = itertools.count(1)
        self._objects: dict[str, bytes] = {}
        self._shown: dict[tuple[str, str], int | None] = {}
        # An upsert matches some of its files alone, and some together.
        sizes = {"read.split.target-size": "4096", "read.split.open-file-cost": "1"}
        self.world.create_table(ORDERS, SCHEMA, spec, sizes)
        self.world.create_table(LANDING, SCHEMA)
        self.world.create_table(COPY, SCHEMA)

    # -- what there is ------------------------------------------------------------------------------------------------

    def row(self, row_id: int, kind: str | None, note: str | None = None) -> Row:
        return Row(row_id, float(next(self._values)), kind, note)

    def checkpoint(self, write: Write, one: Generation) -> Checkpoint:
        return Checkpoint.at(self.world.store, IdempotenceKey(write.key), one.number)

    def bound_to(self, group_id: str) -> list[tuple[Write, Generation]]:
        everyone = ((write, one) for write in self.writes for one in write.generations.values())
        return [(w, one) for w, one in everyone if (group := bound_group(self.checkpoint(w, one))) and group.id == group_id]

    def is_empty(self, write: Write, one: Generation) -> bool:
        """Whether the newest seal adds nothing, removes nothing, and has read nothing."""
        at = self.checkpoint(write, one)
        reads_on = one.mark is not None and not one.replaces and one.mark[1] not in {None, one.mark[0]}
        if at.header.table.creation is not None or write.mode == "overwrite" or reads_on:
            return False
        seal = at.sealed()
        staged = at.staged([split.id for split in at.plan(seal.round).splits])
        return not seal.rows and not any(record.replaces for record in staged) and not (one.replaces and one.replaces.files)

    @staticmethod
    def live_files(table: Table, branch: str) -> dict[str, int]:
        """Live data files of a branch, each with its partition spec."""
        head = conditions.head_of(table, branch)
        manifests = table.metadata.snapshot_by_id(head).manifests(table.io) if head else []
        return {
            entry.data_file.file_path: manifest.partition_spec_id
            for manifest in manifests
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(table.io)
        }

    @staticmethod
    def has_note(table: Table, schema_id: int) -> bool:
        return "note" in table.schemas()[schema_id].column_names

    def increment_refused(self, write: Write) -> Due:
        """Whether what was appended to the source since the last commit can be told."""
        table, history = self.world.table(LANDING), self.histories[LANDING]
        since, head = self.read_up_to(write), conditions.head_of(table, "main")
        if since is None:
            return conditions.Due()
        between = history.between(since, head)
        if between is None or any(history.operations[one] not in {"append", "replace"} for one in between):
            return conditions.Due({InputChangedError})
        there = {snapshot.snapshot_id for snapshot in table.snapshots()}
        return conditions.Due(may=set() if there.issuperset({since, *between}) else {InputChangedError})

    def read_up_to(self, write: Write) -> int | None:
        """The snapshot of the source up to which this reading is committed in the table as it is."""
        history, table = self.histories[write.table], conditions.table_of(self, write)
        for snapshot_id in history.lineage(conditions.head_of(table, write.branch)):
            for one in history.members.get(snapshot_id, ()):
                if one.mark is not None and one.replaces is None:
                    return one.mark[1]
        return None

    def as_table(self, write: Write, catalog: Any = None) -> CatalogTable:
        return CatalogTable(catalog or self.world.catalog, write.table, write.branch)

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, due: Callable[[], Due], action: Callable[[], Any], *, meddled: bool = False, unsure: bool = False) -> Any:
        """Take a step of the product: it ends as it has to, and a refusal leaves all tables as they were."""
        before, expected = self.world.locations(), due()
        try:
            found = action()
        except KilledError:
            found = STOPPED
        except CheckpointError as error:
            after = due() if meddled else conditions.Due()
            possible = expected.possible | after.possible
            assert type(error) in possible, f"{type(error).__name__} is not due, but {possible}: {error}"
            assert meddled or unsure or self.world.locations() == before, f"refused, and yet changed: {error}"
            found = STOPPED
        else:
            assert meddled or unsure or not expected.must, f"went through, though {expected.must} was due"
        self.observe()
        return found

    def exists(self, name: str) -> bool:
        return name in self.world.locations()

    def begin(self, write: Write) -> Write:
        (self.world.input / write.key).mkdir()
        self.writes.append(write)
        return write

    def put_file(self, write: Write, rows: list[Row]) -> None:
        path = self.world.input / write.key / f"{len(write.files):03d}.parquet"
        pq.write_table(owner.arrow(rows, note=write.note), path)
        write.files.append(rows)

    def open(self, write: Write, *, restart: str | None = None, replace: bool = False, mode: str | None = None) -> Running | None:
        """A new attempt of a write, up to the moment at which its checkpoint is open."""
        mode = mode or write.mode
        parameters = write.parameters if mode == write.mode else {}
        source: Any = Files(f"{self.world.input}/{write.key}/*.parquet", max_split_bytes=1)
        if write.source != "files":
            name = write.table if write.source == "self" else LANDING
            source = IcebergTable(name, since="last_commit" if write.source == "since" else None, max_split_bytes=1)
        request = self.world.request(
            write.key,
            source=source,
            options={} if write.source == "files" else foreign.options_of(self.world),
            mode=mode,
            parameters=parameters,
            on_rerun="replace" if replace else "reuse",
            evolve_schema=write.evolve,
            restart_token=restart,
            origin=msgspec.structs.replace(ORIGIN, task_id="copy" if write.source == "since" else "write"),
        )
        due = conditions.of_open(self, write, restart=restart is not None, replace=replace, mode=mode)
        evolves = write.evolve
        attempt = self.step(
            lambda: due,
            lambda: WriteAttempt(self.world.store, self.as_table(write), request),
            unsure=evolves and bool(due.possible),
        )
        if attempt is STOPPED:
            return None
        one = write.generations[attempt.checkpoint.header.generation]
        if attempt.commit is not None:
            self._reported(write, one, attempt.commit)
            self.step(lambda: conditions.of_record(self, write, one), attempt.verify_commit)
            return None
        running = Running(write, one, attempt)
        self.running.append(running)
        return running

    def advance(self, running: Running) -> None:
        """One more step of an attempt: the next round, a split of it, or the seal."""
        attempt = running.attempt
        due = conditions.of_round(self, running)
        if running.pending:
            split = running.pending.pop(0)
            found = self.step(lambda: due, lambda: running.work.run(split, "0"))
        elif not running.complete:
            running.head = conditions.head_of(conditions.table_of(self, running.write), running.write.branch)
            found = self.step(lambda: due, lambda: self._next_round(running))
        else:
            found = self.step(lambda: due, attempt.seal)
            running.done = True
            if found is not STOPPED:
                self._sealed(running, found)
        running.done |= found is STOPPED

    def _next_round(self, running: Running) -> None:
        found = running.attempt.next_round()
        if found is None:
            running.complete = True
            return
        running.work = running.attempt.begin("none", 1)
        running.pending = sorted(found.missing, key=lambda split: split.id)

    def _sealed(self, running: Running, seal: Any) -> None:
        write, one = running.write, running.generation
        assert conditions.rows_fit(one), f"{write.key} is sealed with rows that its mode does not take"
        if not write.provisional:
            assert seal.rows == one.rows.total()
        if seal.round == len(running.attempt._write._plans or ()):
            one.complete_on = running.head

    def stage(self, write: Write, **how: Any) -> Running | None:
        """An attempt from beginning to end."""
        running = self.open(write, **how)
        while running is not None and not running.done:
            self.advance(running)
        return running

    def commit(
        self, picked: list[tuple[Write, Generation]], fault: str = "none", meanwhile: Callable[[], None] = lambda: None
    ) -> bool:
        """Commit these together; whether it was reported as committed."""
        write = picked[0][0]
        self.catalog.expect(fault, lambda: (meanwhile(), self.observe()))
        checkpoints = [self.checkpoint(w, one) for w, one in picked]
        numbers = self.histories[write.table].numbers
        # What was rolled back without a trace may land again: the same snapshot under another number.
        known = {numbers.get(one.landed) for _, one in picked}
        meddled = fault.startswith("overtaken")

        def due() -> Due:
            found = conditions.of_commit(self, picked)
            if fault == "forbidden":
                found.may.add(CommitRefusedError)
            if fault in SILENT:
                found.may.add(OutcomeUnknownError)
            return found

        commit_loop.PATIENCE_S = 0.0 if fault in SILENT else 30.0
        settled = self.step(
            due, lambda: groups.commit(checkpoints, self.as_table(write, self.catalog)), meddled=meddled, unsure=len(picked) > 1
        )
        if settled is STOPPED:
            return False
        for (w, one), found in zip(picked, settled, strict=True):
            self._reported(w, one, found.commit)
            assert not found.landed_now or numbers.get(one.landed) not in known, "what was there before is said to have landed now"
        assert fault not in {"forbidden", *SILENT, *KILLED} or {numbers.get(one.landed) for _, one in picked} <= known | {None}
        return True

    def apply_late(self) -> None:
        """Let the catalog get to requests that nobody waits for any more."""
        for apply in self.catalog.late:
            # Whatever the catalog says, nobody hears it.
            with contextlib.suppress(Exception):
                apply()
        self.catalog.late.clear()
        self.observe()

    def close(self) -> None:
        """Give back what would outlive this history."""
        self.catalog.close()
        self.world.catalog.close()

    def _reported(self, write: Write, one: Generation, commit: Commit) -> None:
        """A commit is reported as the table shows it, for ever (I1, I2)."""
        one.commits.add(commit.commit_id)
        assert len(one.commits) == 1, f"{write.key} is reported as {one.commits}"
        history = self.histories[write.table]
        if commit.commit_id is not None:
            assert commit.commit_id == one.landed, f"{write.key} is reported as committed, and never landed"
            if len(history.members[one.landed]) == 1:
                assert commit.rows == history.added[one.landed], "the record counts other rows than the snapshot"
            return
        assert not commit.rows
        assert one.mark is None or one.replaces or one.mark[1] in {None, one.mark[0]}, (
            "an increment was read, and is not carried on"
        )
        if write.mode != "upsert":
            assert not one.rows.total()
        else:
            assert any(land(history.rows[at], [one]) == history.rows[at] for at in history.rows), "its changes were left out"
            one.own.clear()

    # -- what others do -----------------------------------------------------------------------------------------------

    def foreign(self, name: str, branch: str, act: Callable[[Table], Any], effect: Callable[[Counter], Counter]) -> Any:
        """A commit of another writer, and what it does to the rows."""
        history = self.histories[name]
        before = history.rows[conditions.head_of(self.world.table(name), branch)]
        found = act(self.world.catalog.load_table(name))
        self.observe()
        after = history.rows[conditions.head_of(self.world.table(name), branch)]
        assert after == effect(before), "another writer's commit did something else"
        return found

    def forget_record(self, write: Write, one: Generation) -> None:
        path = self.checkpoint(write, one).paths.commit
        (self.world.root / "store" / path).unlink(missing_ok=True)
        self._objects.pop(path, None)
        if one.landed is None:
            # It changed nothing, and may find something to change next time.
            one.commits.clear()

    # -- what must hold -----------------------------------------------------------------------------------------------

    def observe(self) -> None:
        """Tell the model what is new in the store and in the tables, and compare all of it."""
        self._discover()
        for name in self.histories:
            if self.exists(name):
                self._compare(name, self.world.table(name))

    def _discover(self) -> None:
        root = self.world.root / "store"
        found = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        for name, data in self._objects.items():
            assert found.get(name) == data, f"{name} in the store has changed"
        self._objects = found
        for write in self.writes:
            folder = f"{IdempotenceKey(write.key).hash}/g"
            while f"{folder}{(number := len(write.generations) + 1)}/header.json" in found:
                self._new_generation(write, number)
            for one in write.generations.values():
                if one.rows is None and f"{folder}{one.number}/plan.json.zst" in found:
                    self._planned(write, one)

    def _new_generation(self, write: Write, number: int) -> None:
        header = Checkpoint.at(self.world.store, IdempotenceKey(write.key), number).header
        partition_of: Any = lambda _: ()  # noqa: E731
        if header.table.creation is None:
            partition_of = partitioning(self.world.table(write.table), header.table.spec_id)
        replaces = write.generations[header.replaces] if header.replaces else None
        write.generations[number] = Generation(number, write.mode, write.parameters, replaces, partition_of)

    def _planned(self, write: Write, one: Generation) -> None:
        """A plan is pinned: from now on it is known what the generation will write."""
        plan = self.checkpoint(write, one).plan()
        if write.source == "files":
            one.rows = Counter(itertools.chain.from_iterable(write.files[: plan.source["files"]]))
            return
        name = write.table if write.source == "self" else LANDING
        history = self.histories[name]
        one.pinned = plan.source["snapshot_id"]
        if write.source != "since":
            one.rows = Counter(history.rows[one.pinned])
            return
        reach = plan.increment
        one.mark = (reach.begin and reach.begin["snapshot_id"], reach.end["snapshot_id"])
        one.rows = Counter(history.appended(*one.mark))

    def _compare(self, name: str, table: Table) -> None:
        history = self.histories[name]
        new = [one for one in table.metadata.snapshots if history.numbers.get(one.snapshot_id) != one.sequence_number]
        for snapshot in sorted(new, key=lambda one: one.sequence_number):
            self._new_snapshot(name, table, snapshot)
        ours = {one.snapshot_id for one in new if one.snapshot_id in history.members}
        memories = [text for key, text in table.properties.items() if key.startswith(PROPERTY_PREFIX)]
        forgotten = {group for group in history.remembered if not any(group in text for text in memories)}
        assert not forgotten, f"{name} does not remember {forgotten}"
        for branch, ref in sorted(table.metadata.refs.items()):
            if self._shown.get((name, branch)) == ref.snapshot_id:
                continue
            before, self._shown[name, branch] = self._shown.get((name, branch)), ref.snapshot_id
            if ref.snapshot_id in ours and (before or branch == "main"):
                base = next((at for at in history.lineage(ref.snapshot_id) if at not in ours), None)
                assert base == before, f"{name}@{branch} was at {before}, and a commit was made on {base}"
            found, wanted = rows_in(table, ref.snapshot_id), history.rows[ref.snapshot_id]
            assert found == wanted, f"{name}@{branch}: too many {found - wanted}, missing {wanted - found}"
            snapshot = table.snapshot_by_id(ref.snapshot_id)
            total = snapshot.summary["total-records"]
            assert total is None or int(total) == wanted.total(), f"{snapshot.summary} for {wanted.total()} rows"
            landed = [one for at in history.lineage(ref.snapshot_id) for one in history.members.get(at, ())]
            assert len(landed) == len(set(map(id, landed))), "a generation is in the table twice"

    def _new_snapshot(self, name: str, table: Table, snapshot: Any) -> None:
        history, at, parent = self.histories[name], snapshot.snapshot_id, snapshot.parent_snapshot_id
        group_id = snapshot.summary[GROUP]
        assert parent is None or parent in history.rows
        assert at not in history.lineage(parent), "a snapshot is its own ancestor"
        history.parents[at], history.numbers[at] = parent, snapshot.sequence_number
        history.operations[at] = snapshot.summary.operation.value
        if group_id is None:
            history.rows[at] = rows_in(table, at)
            return
        pairs = self.bound_to(group_id)
        members = [one for _, one in pairs]
        history.remembered.add(group_id)
        # Once rolled back without a trace, a commit may land again; it has the id that it had.
        assert all(one.landed in {None, at} for one in members), "a generation has landed in two snapshots"
        history.rows[at] = land(history.rows[parent], members)
        history.members[at] = members
        history.added[at] = int(snapshot.summary["added-records"])
        manifests = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == at and m.content == ManifestContent.DATA]
        added = [
            entry.data_file.file_path for m in manifests for entry in m.fetch_manifest_entry(table.io) if entry.snapshot_id == at
        ]
        for write, one in pairs:
            one.landed = at
            if one.mark is not None and one.replaces is None:
                before = next((o.mark for o in self._readings(history, parent)), (None, None))
                assert before[1] == one.mark[0], f"rows between {before[1]} and {one.mark[0]} are left out or read twice"
            hashed = IdempotenceKey(write.key).hash
            own = [(path, owner_of(path)) for path in added]
            one.files = {
                p for p, o in own if (o.key, o.generation) == (hashed, one.number) and not o.split.startswith(("match", "boundary"))
            }

    @staticmethod
    def _readings(history: History, head: int | None) -> Iterable[Generation]:
        return (
            one
            for at in history.lineage(head)
            for one in history.members.get(at, ())
            if one.mark is not None and one.replaces is None
        )

    def look_closely(self) -> None:
        """What is too slow for every step: other readers, and every file on disk."""
        for name, history in self.histories.items():
            if self.exists(name):
                table = self.world.table(name)
                if (head := table.current_snapshot()) is not None:
                    names = table.schemas()[head.schema_id].column_names
                    wanted = [row._asdict() for row in history.rows[head.snapshot_id].elements()]
                    expected = [{name: row[name] for name in names if name in row} for row in wanted]
                    assert_same_everywhere(table, expected, snapshot_id=head.snapshot_id)
        self._require_known_files()

    def _require_known_files(self) -> None:
        """Every file of ours is of a recorded attempt, and what a table shows was published (I3, I4)."""
        store = self.world.store
        headers = [store.read(name, Header) for name in store.names("") if name.endswith("/header.json")]
        checkpoints = {(one.key.hash, one.header.generation): one for one in (Checkpoint(store, header) for header in headers)}
        attempts = {at: {attempt.id for attempt in one.attempts()} for at, one in checkpoints.items()}
        writers = {at: {one.writer for one in found.staged(sorted(found.staged_ids()))} for at, found in checkpoints.items()}
        for path in self.world.files_on_disk():
            mine = owner_of(path)
            assert mine.attempt in attempts[mine.key, mine.generation], f"{path} is of no recorded attempt"
        for name in self.histories:
            shown = self.live_files(self.world.table(name), "main") if self.exists(name) else {}
            for path in shown:
                if Path(path).name.startswith("ckpt-"):
                    mine = owner_of(path)
                    assert mine.writer in writers[mine.key, mine.generation], f"{path} is in the table and was not published"
