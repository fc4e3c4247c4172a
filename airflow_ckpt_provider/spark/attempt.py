"""One attempt of a checkpointed write, from opening the checkpoint to its seal. Knows neither Airflow nor a table format.

This is where a retry becomes a recovery: what is committed is reported, what is sealed is handed on, and otherwise only the
missing splits run (I8).
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, State, now, this_host
from airflow_ckpt_provider.checkpoint.documents import Attempt, Header, fingerprint
from airflow_ckpt_provider.exceptions import InvalidInputError, RestartRefusedError
from airflow_ckpt_provider.spark.work import SplitWork
from airflow_ckpt_provider.tables import groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_ckpt_provider.checkpoint.documents import Commit, Connections, Origin, Plan, Seal, Split
    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.sources.transform import Transform
    from airflow_ckpt_provider.spark.session import SparkTarget
    from airflow_ckpt_provider.tables.protocol import Table

OnChange = Literal["fail", "restart"]


@dataclass(frozen=True)
class WriteRequest:
    """What the user asked for.

    :param options: storage options of the source; hold credentials.
    :param on_change: what to do if the key is bound to something else.
    :param restart_token: identifies an explicit wish to start anew; the same token is served once.
    """

    key: IdempotenceKey
    source: Source
    options: Mapping[str, str]
    transform: Transform | None
    mode: str
    connections: Connections
    origin: Origin
    on_change: OnChange = "fail"
    restart_token: str | None = None


class WriteAttempt:
    """One attempt at a write.

    :param store: the checkpoint store.
    :param table: the table to write to.
    """

    def __init__(self, store: CheckpointStore, table: Table, request: WriteRequest) -> None:
        self._store = store
        self._table = table
        self._request = request
        self._binding = table.binding()
        self.checkpoint = self._open()
        self.commit: Commit | None = groups.landed(self.checkpoint, table)

    @property
    def state(self) -> State:
        """How far the checkpoint is, the table's history included."""
        return State.COMMITTED if self.commit is not None else self.checkpoint.state()

    def verify_commit(self) -> None:
        """Check that the commit that was found is still in the table's history."""
        if self.commit is not None:
            groups.verify(self.checkpoint, self.commit, self._table)

    def plan(self) -> Plan:
        """The pinned plan; pins one if there is none, after the checks that can be made before Spark starts.

        :raises SchemaMismatchError: if the input is known not to fit the table.
        """
        pinned = self.checkpoint.plan()
        if pinned is not None:
            return pinned
        plan = self._request.source.plan(self._request.options)
        if self._request.transform is None:
            schema = self._request.source.schema(plan, self._request.options)
            if schema is not None:
                self._table.check_fit(schema)
        return self.checkpoint.pin(plan)

    def missing(self, plan: Plan) -> list[Split]:
        """Splits that are not staged, largest first, so that the last task to finish is a short one.

        :raises InputChangedError: if the input of one of them changed (I6).
        """
        staged = self.checkpoint.staged_ids()
        splits = [split for split in plan.splits if split.id not in staged]
        self._request.source.verify(splits, self._request.options)
        return sorted(splits, key=lambda split: -split.bytes)

    def begin(self, engine: str, try_number: int) -> SplitWork:
        """Record this attempt, before it may write any file, and return what its tasks do."""
        attempt = Attempt(
            id=uuid.uuid4().hex[:12],
            started_at=now(),
            origin=self._request.origin,
            try_number=try_number,
            host=this_host(),
            pid=os.getpid(),
            engine=engine,
        )
        self.checkpoint.begin(attempt)
        return SplitWork(
            store=self._store,
            paths=self.checkpoint.paths,
            attempt_id=attempt.id,
            reader=self._request.source.reader(self._request.options),
            transform=self._request.transform,
            writer=self._table.writer(self.checkpoint.header.table),
        )

    def seal(self, plan: Plan) -> Seal:
        """Close the checkpoint."""
        return self.checkpoint.seal(plan)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> Checkpoint:
        """The generation to work on: the newest, or the next one if a restart was asked for."""
        request = self._request
        latest = Checkpoint.latest(self._store, request.key)
        if latest is None:
            return Checkpoint.create(self._store, self._header(1))
        wanted = self._header(latest.header.generation)
        following = latest.header.generation + 1
        if latest.discarded() is not None:
            self._require_settled(latest)
            return Checkpoint.create(self._store, self._header(following))
        if request.restart_token is not None and not self._served(latest, request.restart_token):
            self._discard(latest, "restart was asked for")
            return Checkpoint.create(self._store, self._header(following))
        changes = latest.header.differences(wanted)
        if changes and request.on_change == "restart":
            self._discard(latest, "; ".join(changes))
            return Checkpoint.create(self._store, self._header(following))
        latest.require_binding(wanted)
        return latest

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
        same_table = checkpoint.header.table.identifier == self._binding.identifier
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
                + f" of {checkpoint.header.table.identifier}; a restart would land its rows a second time. Replacing a committed "
                "write (on_rerun='replace') is not supported yet. Use another idempotence key if you want the rows twice."
            )
        checkpoint.discard(why)
        self._require_settled(checkpoint)

    def _require_settled(self, checkpoint: Checkpoint) -> None:
        """Look a second time, after the tombstone: a commit that began in between is seen here, or sees the tombstone.

        One in this table is looked for again when the newer generation is committed; one in another table is not.
        """
        if checkpoint.group() is None or checkpoint.header.table.uuid == self._binding.uuid:
            return
        raise RestartRefusedError(
            f"A commit of the key {checkpoint.key.value!r} to {checkpoint.header.table.identifier} was under way while it was "
            "discarded. Use another idempotence key for the other table."
        )

    def _header(self, generation: int) -> Header:
        request = self._request
        described = request.source.describe()
        return Header(
            key=request.key.value,
            generation=generation,
            created_at=now(),
            table=self._binding,
            mode=request.mode,
            source=described,
            source_fingerprint=fingerprint(described),
            transform=request.transform.name if request.transform else "",
            transform_fingerprint=request.transform.fingerprint if request.transform else "",
            connections=request.connections,
            origin=request.origin,
            restart_token=request.restart_token,
        )


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
