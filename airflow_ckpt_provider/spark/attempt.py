"""One attempt of a checkpointed write, from opening the checkpoint to its seal. Knows neither Airflow nor a table format.

This is where a retry becomes a recovery: what is committed is reported, what is sealed is handed on, and otherwise only the
missing splits run (I8).
"""

from __future__ import annotations

import hashlib
import os
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, State, now, this_host
from airflow_ckpt_provider.checkpoint.documents import READ, Attempt, Header, fingerprint
from airflow_ckpt_provider.exceptions import BindingMismatchError, InvalidInputError, RestartRefusedError
from airflow_ckpt_provider.sources.protocol import IncrementalSource, ReplanningSource
from airflow_ckpt_provider.spark.work import SplitWork
from airflow_ckpt_provider.tables import groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Commit, Connections, JsonObject, Origin, Plan, Seal, Split, TableBinding
    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.sources.transform import Transform
    from airflow_ckpt_provider.spark.session import SparkTarget
    from airflow_ckpt_provider.tables.protocol import Table

OnChange = Literal["fail", "restart"]
OnRerun = Literal["reuse", "replace"]


@dataclass(frozen=True)
class WriteRequest:
    """What the user asked for.

    :param options: storage options of the source; hold credentials.
    :param parameters: what the mode is told; only what the user set.
    :param on_change: what to do if the key is bound to something else.
    :param on_rerun: what to do if the key is committed.
    :param evolve_schema: let the table's schema grow before the first row is staged.
    :param sample: the first rows of a source that nothing but a Spark session can read; asked only if their columns are needed.
    :param restart_token: identifies an explicit wish to start anew; the same token is served once.
    """

    key: IdempotenceKey
    source: Source
    options: Mapping[str, str]
    transform: Transform | None
    mode: str
    connections: Connections
    origin: Origin
    parameters: JsonObject = field(default_factory=dict)
    on_change: OnChange = "fail"
    on_rerun: OnRerun = "reuse"
    evolve_schema: bool = False
    sample: Callable[[], Iterable[pa.RecordBatch]] | None = None
    restart_token: str | None = None


class Round(NamedTuple):
    """What is to be staged next.

    :param missing: splits of ``plan`` that are not staged, largest first, so that the last task to finish is a short one.
    """

    number: int
    plan: Plan
    missing: list[Split]


class WriteAttempt:
    """One attempt at a write.

    :param store: the checkpoint store.
    :param table: the table to write to.
    """

    def __init__(self, store: CheckpointStore, table: Table, request: WriteRequest) -> None:
        self._store = store
        self._table = table
        self._request = request
        self._first_plan: Plan | None = None
        self._plans: list[Plan] = []
        self._has_own_round = False
        self._id = uuid.uuid4().hex[:12]
        #: What an evolution of the table's schema changed, one readable line each.
        self.evolved: list[str] = []
        table.validate(request.mode, request.parameters)
        self.checkpoint = self._open(Checkpoint.latest(store, request.key))
        self.commit: Commit | None = groups.landed(self.checkpoint, table)
        self._recovered = self.checkpoint.staged_ids()

    @property
    def source(self) -> Source:
        """What is read."""
        return self._request.source

    @property
    def check_fit(self) -> Callable[[pa.Schema], None] | None:
        """Refuses rows that do not fit the table; None if a transform stands between."""
        if self._request.transform is not None:
            return None
        return lambda rows: self._table.check_fit(rows, self.checkpoint.header.table)

    @property
    def state(self) -> State:
        """How far the checkpoint is, the table's history included."""
        return State.COMMITTED if self.commit is not None else self.checkpoint.state()

    def verify_commit(self) -> None:
        """Check that the commit that was found is still in the table's history."""
        if self.commit is not None:
            groups.verify(self.checkpoint, self.commit, self._table)

    def next_round(self) -> Round | None:
        """What is to be staged next; None once the write is complete as the table is now.

        :raises SchemaMismatchError: if the input is known not to fit the table.
        :raises InputChangedError: if the input of a missing split changed (I6).
        """
        checkpoint, table, header = self.checkpoint, self._table, self.checkpoint.header
        sealed = checkpoint.sealed()
        if sealed is not None and not sealed.provisional:
            return None
        self._plans = self._plans or checkpoint.plans() or [self._pin_first()]
        while True:
            plan = self._plans[-1]
            staged = checkpoint.staged_ids()
            missing = [split for split in plan.splits if split.id not in staged]
            if missing and self._replanned(staged):
                continue
            if missing:
                self._request.source.verify([split for split in missing if split.task == READ], self._request.options)
                return Round(len(self._plans), plan, sorted(missing, key=lambda split: -split.bytes))
            following = table.following(header, self._plans, checkpoint.staged, groups.replaced_files(checkpoint))
            if following is None:
                return None
            self._plans.append(checkpoint.pin(following, len(self._plans) + 1))

    def _replanned(self, staged: set[str]) -> bool:
        """Open a round of this attempt's own, for sources that plan anew in each attempt; once."""
        source = self._request.source
        if self._has_own_round or not isinstance(source, ReplanningSource):
            return False
        if any(split.task != READ for split in self._plans[-1].splits):
            # The source is staged; what is missing is the table's own work.
            return False
        planned = source.replan(self._plans, staged, self._id)
        if planned is None:
            return False
        pinned = self.checkpoint.pin(planned, len(self._plans) + 1)
        self._plans.append(pinned)
        # If another attempt's was first, the next one is opened on top of it.
        self._has_own_round = pinned is planned
        return True

    def begin(self, engine: str, try_number: int) -> SplitWork:
        """Record this attempt, before it may write any file, and return what the tasks of the round do."""
        self._begin(engine, try_number)
        return SplitWork(
            store=self._store,
            paths=self.checkpoint.paths,
            attempt_id=self._id,
            reader=self._request.source.reader(self._request.options),
            transform=self._request.transform,
            writer=self._table.writer(self.checkpoint.header, self._plans, self.checkpoint.staged),
        )

    def seal(self) -> Seal:
        """Close the checkpoint, once there is no further round."""
        header = self.checkpoint.header
        self._plans = self._plans or self.checkpoint.plans()

        def stem() -> str:
            self._begin("none", 0)
            return self.checkpoint.paths.file_stem("merged", f"{self._id}.0")

        return self.checkpoint.seal(
            self._plans[-1],
            number=len(self._plans),
            provisional=self._table.provisional(header),
            gather=lambda manifests: self._table.gather(header, manifests, stem),
        )

    def recovered(self, seal: Seal) -> int:
        """How many of the sealed splits were staged before this attempt."""
        plan = self._plans[-1] if self._plans else self.checkpoint.plan(seal.round)
        return sum(split.id in self._recovered for split in plan.splits) if plan else 0

    def _begin(self, engine: str, try_number: int) -> None:
        self.checkpoint.begin(
            Attempt(
                id=self._id,
                started_at=now(),
                origin=self._request.origin,
                try_number=try_number,
                host=this_host(),
                pid=os.getpid(),
                engine=engine,
            )
        )

    # -- planning -----------------------------------------------------------------------------------------------------

    def _pin_first(self) -> Plan:
        """Plan the source and pin the plan, after the checks that can be made before Spark starts."""
        request, header = self._request, self.checkpoint.header
        plan = self._plan(header)
        if request.transform is None:
            schema = request.source.schema(plan, request.options)
            if schema is not None:
                self._table.check_fit(schema, header.table)
        pinned = self.checkpoint.pin(plan)
        self._has_own_round = pinned is plan
        return pinned

    def _plan(self, header: Header | None) -> Plan:
        """The source's plan; made once by an attempt, because the first rows may be needed before the header is."""
        if self._first_plan is None:
            self._first_plan = self._planned(header)
        return self._first_plan

    def _planned(self, header: Header | None) -> Plan:
        request = self._request
        source = request.source
        if not isinstance(source, IncrementalSource) or not source.incremental:
            return source.plan(request.options)
        if header is not None and header.replaces is not None:
            # The same increment again: what came after it belongs to later commits.
            replaced = Checkpoint.at(self._store, request.key, header.replaces).plan()
            if replaced is not None:
                return replaced
        reading = reading_of(request.origin, source.reading)
        mark = None if header is None and request.mode == "create" else self._table.mark(reading)
        plan = source.plan_since(request.options, mark)
        return msgspec.structs.replace(plan, inputs=plan.inputs | {"reading": reading})

    def _output_schema(self) -> pa.Schema:
        """Schema of the rows that will be staged, from the source itself or the first rows that come out of the transform.

        :raises InvalidInputError: if there are no rows to tell it from.
        """
        request = self._request
        plan = self._plan(None)
        schema = request.source.schema(plan, request.options)
        if request.transform is None and schema is not None:
            return schema
        for batches in self._samples(plan):
            for batch in batches if request.transform is None else request.transform.apply(batches):
                return batch.schema
        raise InvalidInputError(
            f"The input of the key {request.key.value!r} has no rows, so that the columns of {self._table.identifier} cannot be "
            "told from them. Create the table first and use mode='append', or wait for input."
        )

    def _samples(self, plan: Plan) -> Iterator[Iterable[pa.RecordBatch]]:
        request = self._request
        if request.sample is not None:
            yield request.sample()
            return
        reader = request.source.reader(request.options)
        for split in plan.splits:
            yield reader.read(split, None)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self, latest: Checkpoint | None) -> Checkpoint:
        """The generation to work on: the newest, or the next one if a restart or a replacement was asked for."""
        request = self._request
        if latest is None:
            return Checkpoint.create(self._store, self._new_header(None))
        if latest.discarded() is not None:
            self._require_settled(latest)
            return self._create_after(latest)
        restart = request.restart_token is not None and not self._served(latest, request.restart_token)
        committed = groups.landed(latest, self._table) if request.on_rerun == "replace" and self._same_table(latest) else None
        if restart and committed is None:
            self._discard(latest, "restart was asked for")
            return self._create_after(latest)
        wanted = self._wanted_header(latest)
        changes = latest.header.differences(wanted)
        if committed is not None and (restart or not changes or request.on_change == "restart"):
            self._require_replaceable(latest, wanted)
            groups.verify(latest, committed, self._table)
            return self._create_after(latest, replaces=latest.header.generation)
        if changes and request.on_change == "restart":
            self._discard(latest, "; ".join(changes))
            return self._create_after(latest)
        latest.require_binding(wanted)
        if latest.header.table.creation is not None and latest.group() is None:
            self._table.require_creatable(latest.header.table)
        return latest

    def _create_after(self, latest: Checkpoint, replaces: int | None = None) -> Checkpoint:
        """The next generation. One that takes the place of a discarded replacement replaces what that was to replace."""
        replaces = latest.header.replaces if replaces is None else replaces
        return Checkpoint.create(self._store, self._new_header(latest, replaces))

    def _require_replaceable(self, latest: Checkpoint, wanted: Header) -> None:
        if (latest.header.mode, latest.header.parameters) != (wanted.mode, wanted.parameters):
            raise BindingMismatchError(
                f"The key {latest.key.value!r} was committed with the mode {latest.header.mode!r} and other parameters, so that "
                "its files cannot be replaced one for one. Use another idempotence key."
            )

    def _same_table(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.header.table.identifier == self._table.identifier

    def _new_header(self, latest: Checkpoint | None, replaces: int | None = None) -> Header:
        """Header of a new generation, bound to the table as it is now."""
        request, table = self._request, self._table
        if request.mode == "create" and replaces is None:
            binding = table.creation(self._output_schema(), request.parameters)
        else:
            if request.evolve_schema:
                self.evolved = table.evolve(self._output_schema())
            binding = table.binding()
        return self._header(1 if latest is None else latest.header.generation + 1, binding, replaces)

    def _wanted_header(self, latest: Checkpoint) -> Header:
        """What the request binds the newest generation to."""
        pinned = latest.header.table
        if self._request.mode == "create" and pinned.creation is not None:
            # Not created yet, or by this very write: its identity is the pinned one.
            binding = msgspec.structs.replace(pinned, identifier=self._table.identifier, branch=self._table.branch)
        elif self._request.mode == "create" and not self._same_table(latest):
            binding = msgspec.structs.replace(pinned, identifier=self._table.identifier)
        else:
            binding = self._table.binding()
        return self._header(latest.header.generation, binding, latest.header.replaces)

    def _served(self, latest: Checkpoint, token: str) -> bool:
        """Whether this restart opened a generation already; a newer one may belong to somebody else since."""
        older = (Checkpoint.at(self._store, latest.key, generation) for generation in range(1, latest.header.generation))
        return any(checkpoint.header.restart_token == token for checkpoint in (latest, *older))

    def _discard(self, checkpoint: Checkpoint, why: str) -> None:
        """Give up a generation that did not land. One that landed is not given up: its rows are in the table."""
        sibling, mine = checkpoint.header.origin, self._request.origin
        if sibling != mine and msgspec.structs.replace(sibling, map_index=mine.map_index) == mine:
            raise RestartRefusedError(
                f"The key {checkpoint.key.value!r} is used by map index {sibling.map_index} and {mine.map_index} of one mapped "
                "task in one run, which would discard each other's work. Put something of each into idempotence_key."
            )
        same_table = self._same_table(checkpoint)
        recorded = checkpoint.committed() if not same_table else groups.landed(checkpoint, self._table)
        if recorded is None and not same_table and checkpoint.group() is not None:
            raise RestartRefusedError(
                f"A commit of the key {checkpoint.key.value!r} to {checkpoint.header.table.identifier} was begun. Run its commit "
                "task first, or use another idempotence key for the other table."
            )
        if recorded is not None:
            raise RestartRefusedError(
                f"The key {checkpoint.key.value!r}, generation {checkpoint.header.generation}, is committed"
                + (f" as snapshot {recorded.snapshot_id}" if recorded.snapshot_id else "")
                + f" of {checkpoint.header.table.identifier}; a restart would land its rows a second time. To replace them, "
                "clear the task with on_rerun='replace'; to have them twice, use another idempotence key."
            )
        checkpoint.discard(why)
        self._require_settled(checkpoint)

    def _require_settled(self, checkpoint: Checkpoint) -> None:
        """Look a second time, after the tombstone: a commit that began in between is seen here, or sees the tombstone.

        One in this table is looked for again when the newer generation is committed; one in another table is not.
        """
        if checkpoint.group() is None or self._same_table(checkpoint):
            return
        raise RestartRefusedError(
            f"A commit of the key {checkpoint.key.value!r} to {checkpoint.header.table.identifier} was under way while it was "
            "discarded. Use another idempotence key for the other table."
        )

    def _header(self, generation: int, binding: TableBinding, replaces: int | None) -> Header:
        request = self._request
        described = request.source.describe()
        return Header(
            key=request.key.value,
            generation=generation,
            created_at=now(),
            table=binding,
            mode=request.mode,
            parameters=request.parameters,
            source=described,
            source_fingerprint=fingerprint(described),
            transform=request.transform.name if request.transform else "",
            transform_fingerprint=request.transform.fingerprint if request.transform else "",
            connections=request.connections,
            origin=request.origin,
            restart_token=request.restart_token,
            replaces=replaces,
        )


def reading_of(origin: Origin, source: str) -> str:
    """Who reads what, increment by increment: 16 hex digits for a task and the name of its source."""
    return hashlib.sha256(f"{origin.dag_id}\0{origin.task_id}\0{source}".encode()).hexdigest()[:16]


def require_shared_store(store: CheckpointStore, target: SparkTarget) -> None:
    """Refuse a checkpoint store that executors cannot see.

    :raises InvalidInputError: saying what to use instead.
    """
    scheme = store.location.scheme
    if scheme == "memory" or (store.location.is_local and not target.on_this_machine):
        raise InvalidInputError(
            f"The checkpoint store {store.uri} is on this machine only, but the stage runs on {target.name}, whose executors "
            "cannot see it. Point the checkpoint connection at object storage (s3://, gs://, az://)."
        )
