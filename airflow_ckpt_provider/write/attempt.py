"""One attempt of a checkpointed write, from opening the checkpoint to its seal. Knows neither Airflow nor a table format.

What is committed is reported, what is sealed is handed on, and otherwise ``planning`` says which splits are missing (I8).
"""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Attempt
from airflow_ckpt_provider.checkpoint.sealing import put_seal
from airflow_ckpt_provider.checkpoint.staged_write import StagedWrite
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.exceptions import CorruptObjectError
from airflow_ckpt_provider.sources.protocol import ListableSource
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.tables.ownership import reading_records
from airflow_ckpt_provider.write import commits
from airflow_ckpt_provider.write.columns import RowColumns
from airflow_ckpt_provider.write.generations import Generations
from airflow_ckpt_provider.write.looks import TableOfRound
from airflow_ckpt_provider.write.planning import Planning
from airflow_ckpt_provider.write.recovery import Recovery
from airflow_ckpt_provider.write.rejected import Rejections
from airflow_ckpt_provider.write.request import SourcePlan
from airflow_ckpt_provider.write.staged_files import lost_files_error
from airflow_ckpt_provider.write.work import SplitWork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Commit, Plan, Seal, Staged
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.planning import Round
    from airflow_ckpt_provider.write.recovery import TakenUp
    from airflow_ckpt_provider.write.request import WriteRequest
    from airflow_ckpt_provider.write.staged_files import CheckCost


class WriteAttempt:
    """One attempt at a write.

    :param store: the checkpoint store.
    :param table: the table to write to.
    """

    def __init__(self, store: CheckpointStore, table: Table, request: WriteRequest) -> None:
        self._store = store
        self._table = table
        self._request = request
        source_plan = SourcePlan(store, table, request)
        self._id = uuid.uuid4().hex[:12]
        request.on_error.require_usable(request.transform)
        table.validate(request.mode, request.parameters)
        generations = Generations(store, table, request, source_plan)
        self.checkpoint = generations.open()
        self._code = generations.code
        #: What an evolution of the table's schema changed, one readable line each.
        self.evolved = generations.evolved
        #: Why a generation was opened that nobody asked for: what there is to read now, where nothing has landed; else empty.
        self.looked_again = generations.news
        self.commit: Commit | None = commits.landed(self.checkpoint, table)
        self._write = StagedWrite(self.checkpoint, self._require_owned)
        self._table_of_round = TableOfRound(table, self.checkpoint.header.table)
        self._recovery = Recovery(self._write, self._table_of_round)
        #: Rows at which the transform failed.
        self.rejections = Rejections(self._write, request.on_error, self._id)
        self._columns = RowColumns(self.checkpoint.header, self._table_of_round, request.missing_columns)
        self._planning = Planning(
            self._id, request, self._write, self._table_of_round, source_plan, self._columns, self._recovery, self.rejections
        )

    @property
    def table(self) -> Table:
        """What is written to."""
        return self._table

    @property
    def source(self) -> Source:
        """What is read."""
        return self._request.source

    @property
    def check_fit(self) -> Callable[[pa.Schema], None] | None:
        """Refuses rows that do not fit the table; None if a transform stands between."""
        if self._request.transform is not None:
            return None
        return self._columns.require_fit

    @property
    def missing(self) -> set[str]:
        """Columns that are null in rows because those did not have them, as far as it is known."""
        return self._columns.missing

    @property
    def planned_here(self) -> bool:
        """Whether this attempt has made a plan, and so has listed the source itself."""
        return self._planning.has_own_round

    @property
    def lost(self) -> int:
        """Number of splits of earlier attempts whose files were lost, so that they are staged again."""
        return self._planning.lost

    @property
    def check_costs(self) -> Sequence[CheckCost]:
        """What the checks of files of earlier attempts cost."""
        return self._recovery.check_costs

    @property
    def saved(self) -> tuple[int, int]:
        """Splits that are not staged and of which earlier attempts have done something: how many, and rows of the input done."""
        return self._recovery.saved

    @property
    def has_other_code(self) -> bool:
        """Whether the write began with other code than this attempt has."""
        return self._code != self.checkpoint.header.code

    @property
    def state(self) -> State:
        """How far the checkpoint is, the table's history included."""
        return State.COMMITTED if self.commit is not None else state_of(self.checkpoint)

    def verify_commit(self) -> None:
        """Check that the commit that was found is still in the table's history."""
        if self.commit is not None:
            commits.require_not_undone(self.checkpoint, self._table)
            commits.verify(self.checkpoint, self.commit, self._table)

    def news(self) -> str | None:
        """What there is to read now that the pinned plan does not read; None if there is nothing, or only Spark can tell."""
        source, plan = self._request.source, self.checkpoint.plan()
        if plan is None or not isinstance(source, ListableSource):
            return None
        return source.news(plan, self._request.options)

    def _require_owned(self, write: StagedWrite, records: Sequence[Staged]) -> None:
        """Refuse records that name files which this generation has not written (I15)."""
        with reading_records(write.header):
            self._table_of_round.storage.require_owned_records(write, records)

    def is_whole(self) -> bool:
        """Whether the write is sealed for good, and all files are there that its commit needs."""
        sealed = self.checkpoint.newest_seal()
        return sealed is not None and not sealed.provisional and self._recovery.has_all_of(sealed)

    def next_round(self) -> Round | None:
        """What is to be staged next; None once the write is complete as the table is now. See ``Planning``."""
        return self._planning.next_round()

    def pin_staged(self, plan: Plan) -> None:
        """Pin a plan whose splits are all staged, as the round that is sealed next, behind those that others have pinned."""
        self._planning.pin_staged(plan)

    def begin(self, engine: str, try_number: int) -> SplitWork:
        """Record this attempt, before it may write any file, and return what the tasks of the round do."""
        self._begin(engine, try_number)
        return SplitWork(
            store=self._store.of_generation(self.checkpoint.paths),
            paths=self.checkpoint.paths,
            attempt_id=self._id,
            reader=self._request.source.reader(self._request.options),
            transform=self._request.transform,
            writer=self._table_of_round.look(lambda state: state.mode(self.checkpoint.header).writer(self._write)),
            header=self.checkpoint.header,
            code=self._code,
            missing=self._columns.allowed,
            save=self._request.save_every,
            pieces=self._recovery.pieces or {},
            on_error=self._request.on_error,
        )

    def seal(self) -> Seal:
        """Close the checkpoint, once there is no further round. One that has landed keeps the seal that it landed with.

        What is returned can be handed over: a commit that is told of it by a reference does not look at all of it once more.

        :raises CorruptObjectError: if the store has another seal, or other records, than tasks of this generation write (I15).
        """
        seal = self._sealed()
        if self.commit is None:
            try:
                self._require_sound(self._recovery.as_sealed(seal))
            except CorruptObjectError:
                # Once it has landed, its manifests are the table's to rewrite and to remove.
                if not self._planning.landed_meanwhile():
                    raise
        return seal

    def _require_sound(self, write: SealedWrite) -> None:
        """Refuse a seal that does not say what the splits have staged, or names what this generation has not written (I15)."""
        storage = self._table_of_round.storage
        with reading_records(write.header):
            storage.require_owned_files([write])
        write.require_agreeing()
        write.require_rejected()
        try:
            storage.require_listed([write])
        except FileNotFoundError as error:
            files = storage.needed_to_commit(write)
            lost = storage.lost(files)
            if not lost:
                raise
            raise lost_files_error([(write.header, file) for file in lost], len(files), self._table) from error

    def _sealed(self) -> Seal:
        checkpoint, write = self.checkpoint, self._write
        sealed, lost_files = checkpoint.newest_seal(), self._recovery.is_whole is False
        if sealed is not None and (
            not (sealed.provisional or lost_files) or sealed.round >= len(write.plans) or self._planning.landed_meanwhile()
        ):
            return sealed
        checkpoint.require_complete(write.plan)
        records = write.records([split.id for split in write.plan.splits])
        self._columns.require_staged(records)
        manifests = [record.manifest for record in records if record.manifest is not None]
        storage = self._table_of_round.storage
        if storage.writes_manifests(manifests):
            self._begin("none", 0)
        stem = checkpoint.paths.file_stem("merged", f"{self._id}.0")
        merged = storage.merged_manifests(write, manifests, stem)
        provisional = mode_type(checkpoint.header).provisional
        return put_seal(
            checkpoint, records, merged, plan=write.plan, number=len(write.plans), provisional=provisional, lost_files=lost_files,
            rejected=self.rejections.left_out(),
        )  # fmt: skip

    def recovered(self, seal: Seal) -> int:
        """How many of the sealed splits were staged before this attempt."""
        plan = self._write.plan_of(seal.round)
        return sum(split.id in self._recovery.split_ids for split in plan.splits) if plan else 0

    def taken_up(self, seal: Seal) -> TakenUp:
        """What this attempt did not have to do again of what is sealed."""
        return self._recovery.taken_up(seal)

    def _begin(self, engine: str, try_number: int) -> None:
        self.checkpoint.begin(
            Attempt(
                id=self._id,
                started_at=now(),
                origin=self._request.origin,
                try_number=try_number,
                host=socket.gethostname(),
                pid=os.getpid(),
                engine=engine,
            )
        )
