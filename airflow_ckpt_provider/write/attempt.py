"""One attempt of a checkpointed write, from opening the checkpoint to its seal. Knows neither Airflow nor a table format.

This is where a retry becomes a recovery: what is committed is reported, what is sealed is handed on, and otherwise only the
missing splits run (I8).
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Attempt, part_of
from airflow_ckpt_provider.checkpoint.pieces import pieces_of
from airflow_ckpt_provider.checkpoint.rejected import with_their_splits
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.checkpoint.sealing import put_seal
from airflow_ckpt_provider.checkpoint.staged_write import StagedWrite
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.exceptions import CorruptObjectError, SchemaMismatchError
from airflow_ckpt_provider.sources.protocol import AccountingSource, ListableSource, LookingSource, ReplanningSource, SharedSource
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.tables.missing import MissingColumns
from airflow_ckpt_provider.tables.own import reading_records
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.generations import Generations
from airflow_ckpt_provider.write.looks import look_at
from airflow_ckpt_provider.write.pieces import require_own_pieces
from airflow_ckpt_provider.write.rejected import Rejections
from airflow_ckpt_provider.write.request import SourcePlan
from airflow_ckpt_provider.write.staged_files import Look, missing_error
from airflow_ckpt_provider.write.work import SplitWork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Commit, Piece, Plan, Seal, Split, Staged, StagedFile
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.sources.protocol import Source
    from airflow_ckpt_provider.tables.mode import Mode
    from airflow_ckpt_provider.tables.state import TableState
    from airflow_ckpt_provider.tables.storage import StagedStorage
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.request import WriteRequest


T = TypeVar("T")


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
        self._source_plan = SourcePlan(store, table, request)
        self._has_own_round = False
        #: Whether this attempt has just planned the source.
        self._planned_now = False
        #: The last plan that was made by looking at the table in this attempt.
        self._own_plan: Plan | None = None
        self._id = uuid.uuid4().hex[:12]
        request.on_error.require_usable(request.transform)
        table.validate(request.mode, request.parameters)
        generations = Generations(store, table, request, self._source_plan)
        self.checkpoint = generations.open()
        self._code = generations.code
        #: What an evolution of the table's schema changed, one readable line each.
        self.evolved = generations.evolved
        #: Why a generation was opened that nobody asked for: what there is to read now, where nothing has landed; else empty.
        self.looked_again = generations.news
        #: What earlier attempts have done of splits that are not staged, by ``input_id``; None before it was looked at.
        self._pieces: dict[str, list[Piece]] | None = None
        #: Columns that are null in rows because those did not have them, as far as it is known.
        self.missing: set[str] = set()
        self.commit: Commit | None = groups.landed(self.checkpoint, table)
        self._recovered = self.checkpoint.staged_ids()
        #: Whether all files of the newest seal are there; None if that was not looked at.
        self._whole: bool | None = None
        self._sealed_write: SealedWrite | None = None
        self._looked = False
        #: What the looks at files of earlier attempts cost.
        self.looks: list[Look] = []
        #: Number of splits of earlier attempts whose files were lost, so that they are staged once more.
        self.lost = 0
        self._write = StagedWrite(self.checkpoint, self._require_own)
        #: Rows at which the transform failed.
        self.rejections = Rejections(self._write, request.on_error, self._id)
        #: The table as it was when this round began: what was pinned is asked of it, and nothing of what may have changed.
        self._state: TableState | None = None

    @property
    def _mode(self) -> type[Mode]:
        return mode_type(self.checkpoint.header)

    def _look(self, look: Callable[[TableState], T]) -> T:
        """What ``look`` finds in the table as it was when this round began."""
        if self._state is None:
            self._state = look_at(self._table, self.checkpoint.header.table, lambda state: state)
        return look_at(self._table, self.checkpoint.header.table, look, self._state)

    def _storage(self) -> StagedStorage:
        return self._look(lambda state: state.storage)

    @property
    def source(self) -> Source:
        """What is read."""
        return self._request.source

    @property
    def check_fit(self) -> Callable[[pa.Schema], None] | None:
        """Refuses rows that do not fit the table; None if a transform stands between."""
        if self._request.transform is not None:
            return None
        return self._check_fit

    def _check_fit(self, rows: pa.Schema) -> None:
        """Refuse rows of this schema, and remember what they lack."""
        allowed = self._allowed
        columns = self._look(lambda state: state.columns)
        columns.require_fit(rows)
        if allowed is not None:
            missing = columns.lacking_in(rows)
            allowed.require(missing)
            self.missing.update(missing)

    @cached_property
    def _allowed(self) -> MissingColumns | None:
        """Which columns the rows may lack; None if the mode writes no whole rows."""
        header = self.checkpoint.header
        placing = self._look(lambda state: state.mode(header).placing(header))
        if placing is None:
            return None
        keys = part_of(header.parameters.get("upsert_keys", ()), tuple[str, ...])
        return MissingColumns(self._table.identifier, self._request.missing_columns, keys, placing)

    @property
    def planned_here(self) -> bool:
        """Whether this attempt has made a plan, and so has listed the source itself."""
        return self._has_own_round

    @property
    def saved(self) -> tuple[int, int]:
        """Splits that are not staged and of which earlier attempts have done something: how many, and rows of the input done."""
        pieces = [own for own in (self._pieces or {}).values() if own]
        return len(pieces), sum(own[-1].end for own in pieces)

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
            groups.verify(self.checkpoint, self.commit, self._table)

    def news(self) -> str | None:
        """What there is to read now that the pinned plan does not read; None if there is nothing, or only Spark can tell."""
        source, plan = self._request.source, self.checkpoint.plan()
        if plan is None or not isinstance(source, ListableSource):
            return None
        return source.news(plan, self._request.options)

    def next_round(self) -> Round | None:
        """What is to be staged next; None once the write is complete as the table is now.

        :raises SchemaMismatchError: if the input is known not to fit the table.
        :raises InputChangedError: if the input of a missing split changed (I6).
        """
        write, sealed = self._write, self.checkpoint.newest_seal()
        self._state = None
        if sealed is not None and not sealed.provisional and self._is_whole(sealed):
            return None
        begun = bool(write.plans)
        if begun:
            self._require_plans(sealed)
        else:
            self._pin_first()
        while True:
            staged = write.staged_ids()
            missing = [split for split in write.plan.splits if split.id not in staged]
            # Pieces come second: what is read of a split is what the rows of its pieces are counted in.
            if (missing and self._replanned(staged)) or (begun and self._look_at_pieces()) or self._runs_again(sealed, missing):
                continue
            reads = bool(missing) and all(split.is_input for split in missing)
            # While the source is read, and right after this attempt has looked, the table has nothing new to say.
            stands = reads or (bool(missing) and write.plan is self._own_plan)
            wanted = write.plan if stands else self._wanted()
            stands = wanted.splits == write.plan.splits
            complete = stands and not missing
            if complete and sealed is not None and sealed.round == len(write.plans) and self._is_whole(sealed):
                return None
            if not reads and self._staged_anew(sealed):
                continue
            if complete:
                return None
            if stands:
                self._verify([split for split in missing if split.task == READ])
                return Round(len(write.plans), write.plan, sorted(missing, key=lambda split: -split.bytes))
            if self._landed_meanwhile():
                return None
            self._own_plan = write.pin(wanted)

    def _runs_again(self, sealed: Seal | None, missing: Sequence[Split]) -> bool:
        """Open a round in which rows that earlier attempts have rejected run again, once all of the input is staged.

        Work of the table's own that has begun was computed from what is staged. Then they run again only if the write cannot be
        sealed without them, and with all rows of their splits.

        :raises CheckpointError: if more rows are left out than the write may leave out.
        """
        if sealed is not None or any(split.is_input for split in missing):
            return False
        rejections, plan = self.rejections, self._write.plan
        files = rejections.to_run_again()
        if files and plan is self._write.source_plan and all(split.is_input for split in plan.splits):
            wanted = rejections.round(files)
            if self._write.pin(wanted) is wanted:
                rejections.ran()
            return True
        if files and not rejections.are_few():
            rejections.ran()
            self._begin_anew({file.split for file in files})
            return True
        rejections.require_few()
        return False

    def _look_at_pieces(self) -> bool:
        """Read, once, what earlier attempts have done of splits that are not staged. If files of it are gone, begin those anew.

        :returns: whether that opened another round.
        """
        if self._pieces is not None:
            return False
        unfinished = [split for split in self._write.source_splits if split.id not in self._recovered]
        self._pieces = pieces_of(self._store, self.checkpoint.paths, unfinished)
        records = [piece for pieces in self._pieces.values() for piece in pieces]
        if not records:
            return False
        writer = self._look(lambda state: state.mode(self.checkpoint.header).writer(self._write))
        require_own_pieces(records, writer, self.checkpoint)
        named = {(record.split, file) for record in records for file in self._storage().named_in(record)}
        gone = self._gone(lambda: [file for _, file in named])
        lost = {split for split, file in named if file in gone}
        # Another attempt that has staged a split has removed its pieces.
        if lost:
            lost -= self._write.staged_ids()
        if not lost or self._landed_meanwhile():
            return False
        self._begin_anew(lost)
        return True

    def _wanted(self) -> Plan:
        """What the write consists of, on the table as it is now."""
        write = self._write
        if not self._mode.provisional:
            return write.plan
        self._state = None
        return self._look(lambda state: state.mode(write.header).plan(write))

    def _verify(self, splits: Sequence[Split]) -> None:
        """Refuse input that has changed since it was planned, unless that was a moment ago."""
        planned_now, self._planned_now = self._planned_now, False
        if not planned_now or not isinstance(self._request.source, LookingSource):
            self._request.source.verify(splits, self._request.options)

    def _require_plans(self, sealed: Seal | None) -> None:
        """Refuse pinned plans that are not all there, or in which the source does not find all that it has, each once (I15)."""
        if sealed is not None:
            self._write.require_plans(sealed.round)
        source = self._request.source
        if isinstance(source, AccountingSource):
            source.require_once(self._write.source_plan, self._request.options)

    def _require_own(self, write: StagedWrite, records: Sequence[Staged]) -> None:
        """Refuse records that name files which this generation has not written (I15)."""
        with reading_records(write.header):
            self._storage().require_own_records(write, records)

    def _pin_first(self) -> None:
        """Plan the source and pin the plan, after the checks that can be made before Spark starts."""
        request, header = self._request, self.checkpoint.header
        if isinstance(request.source, SharedSource):
            request.source.begin_reading(header)
        plan = self._source_plan.get(header.replaces)
        if request.transform is None:
            schema = request.source.schema(plan, request.options)
            if schema is not None:
                self._check_fit(schema)
        first = self._look(
            lambda state: state.mode(header).first(self._write, plan, lambda: self._source_plan.required_schema(header.replaces))
        )
        self._has_own_round = self._planned_now = self._write.pin(first) is first

    def _is_whole(self, sealed: Seal) -> bool:
        """Whether all files are there that a commit of this seal needs; looked at once."""
        if self._whole is None:
            write = self._as_sealed(sealed)
            self._whole = not self._gone(lambda: self._storage().needed_to_commit(write))
        return self._whole

    def _gone(self, named: Callable[[], list[StagedFile]]) -> set[StagedFile]:
        """Those of the staged files that are gone or damaged."""
        start = time.monotonic()
        files = named()
        gone = set(self._storage().lost(files)) if files else set()
        self.looks.append(Look(len(files), time.monotonic() - start))
        return gone

    def _staged_anew(self, sealed: Seal | None) -> bool:
        """Open a round in which what earlier attempts have staged, and what was lost since, is staged once more; looks once.

        A commit that was begun may still land the earlier seal. It lands that or a later one, never both: they are one group.
        """
        if self._looked:
            return False
        self._looked = True
        write = self._write
        # The splits that the source reads are not among those of the later rounds of a write that computes from them.
        wanted = {split.id for plan in (write.plan, write.source_plan) for split in plan.splits}
        records = write.records(sorted(wanted & self._recovered))
        files = [(record.split, file) for record in records for file in self._storage().named_in(record)]
        gone = self._gone(lambda: [file for _, file in files])
        lost = {split for split, file in files if file in gone}
        # What lists the files of a seal may be gone though no split lost one: it is sealed again.
        relisted = self._whole is False and sealed is not None and sealed.round == len(write.plans)
        if not (lost or relisted):
            return False
        if self._landed_meanwhile():
            return False
        self._begin_anew(lost)
        self.lost = len(lost)
        return True

    def _begin_anew(self, lost: set[str]) -> None:
        """Open a round in which these splits are staged once more."""
        write, source = self._write, self._request.source
        planned = by_table = with_their_splits(self._mode.staged_anew(write, lost))
        if isinstance(source, ReplanningSource):
            planned = source.staged_anew(planned, write.staged_ids() - lost, len(write.plans) + 1, self._id)
        planned = with_their_splits(planned)
        self._has_own_round |= write.pin(planned) is planned and planned is not by_table

    def _landed_meanwhile(self) -> bool:
        """Whether another attempt's seal has landed: what moved the table may be the commit itself."""
        return self.checkpoint.newest_seal() is not None and groups.landed(self.checkpoint, self._table) is not None

    def _replanned(self, staged: set[str]) -> bool:
        """Open a round of this attempt's own, for sources that plan anew in each attempt; once."""
        source = self._request.source
        if self._has_own_round or not isinstance(source, ReplanningSource):
            return False
        if any(split.task != READ for split in self._write.plan.splits):
            # The source is staged; what is missing is the table's own work.
            return False
        planned = source.replan(self._write.plans, staged, self._id, self._request.options)
        if planned is None:
            return False
        # If another attempt's was first, the next one is opened on top of it.
        self._has_own_round = self._write.pin(planned) is planned
        return True

    def is_whole(self) -> bool:
        """Whether the write is sealed for good, and all files are there that its commit needs."""
        sealed = self.checkpoint.newest_seal()
        return sealed is not None and not sealed.provisional and self._is_whole(sealed)

    def pin_staged(self, plan: Plan) -> None:
        """Pin a plan whose splits are all staged, as the round that is sealed next, behind those that others have pinned."""
        while self._write.pin(plan) is not plan:
            pass

    def begin(self, engine: str, try_number: int) -> SplitWork:
        """Record this attempt, before it may write any file, and return what the tasks of the round do."""
        self._begin(engine, try_number)
        return SplitWork(
            store=self._store.of_generation(self.checkpoint.paths),
            paths=self.checkpoint.paths,
            attempt_id=self._id,
            reader=self._request.source.reader(self._request.options),
            transform=self._request.transform,
            writer=self._look(lambda state: state.mode(self.checkpoint.header).writer(self._write)),
            header=self.checkpoint.header,
            code=self._code,
            missing=self._allowed,
            save=self._request.save_every,
            pieces=self._pieces or {},
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
                self._require_sound(self._as_sealed(seal))
            except CorruptObjectError:
                # Once it has landed, its manifests are the table's to rewrite and to remove.
                if not self._landed_meanwhile():
                    raise
        return seal

    def _as_sealed(self, seal: Seal) -> SealedWrite:
        """The write as a seal has it, read once."""
        if self._sealed_write is None or self._sealed_write.seal != seal:
            self._sealed_write = self._write.sealed_as(seal)
        return self._sealed_write

    def _require_sound(self, write: SealedWrite) -> None:
        """Refuse a seal that does not say what the splits have staged, or names what this generation has not written (I15)."""
        storage = self._storage()
        with reading_records(write.header):
            storage.require_own_files([write])
        write.require_agreeing()
        write.require_rejected()
        try:
            storage.require_listed([write])
        except FileNotFoundError as error:
            files = storage.needed_to_commit(write)
            gone = storage.lost(files)
            if not gone:
                raise
            raise missing_error([(write.header, file) for file in gone], len(files), self._table) from error

    def _sealed(self) -> Seal:
        checkpoint, write = self.checkpoint, self._write
        sealed, lost_files = checkpoint.newest_seal(), self._whole is False
        if sealed is not None and (
            not (sealed.provisional or lost_files) or sealed.round >= len(write.plans) or self._landed_meanwhile()
        ):
            return sealed
        checkpoint.require_complete(write.plan)
        records = write.records([split.id for split in write.plan.splits])
        self._require_columns(records)
        manifests = [record.manifest for record in records if record.manifest is not None]
        storage = self._storage()
        if storage.writes_manifests(manifests):
            self._begin("none", 0)
        stem = checkpoint.paths.file_stem("merged", f"{self._id}.0")
        merged = storage.merged_manifests(write, manifests, stem)
        provisional = self._mode.provisional
        return put_seal(
            checkpoint, records, merged, plan=write.plan, number=len(write.plans), provisional=provisional, lost_files=lost_files,
            rejected=self.rejections.left_out(),
        )  # fmt: skip

    def _require_columns(self, records: Sequence[Staged]) -> None:
        """Note which columns the rows lack that are about to be sealed.

        :raises SchemaMismatchError: if splits were staged when they might lack what they may not any more.
        """
        missing = {name for record in records for name in record.missing}
        if self._allowed is not None:
            try:
                self._allowed.require(missing, "Rows that are staged")
            except SchemaMismatchError as error:
                raise SchemaMismatchError(
                    f"{error} These were staged with another value of missing_columns, so redo the write: "
                    f"{how_to_restart(self.checkpoint.header)}."
                ) from error
        self.missing.update(missing)

    def recovered(self, seal: Seal) -> int:
        """How many of the sealed splits were staged before this attempt."""
        plan = self._write.plan_of(seal.round)
        return sum(split.id in self._recovered for split in plan.splits) if plan else 0

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
