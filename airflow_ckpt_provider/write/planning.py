"""What is to be staged next: the rounds that one attempt goes on with, or opens. This is where a retry becomes a recovery (I8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from airflow_ckpt_provider.checkpoint.documents import READ
from airflow_ckpt_provider.checkpoint.rejected import with_their_splits
from airflow_ckpt_provider.checkpoint.secrets import without_credentials
from airflow_ckpt_provider.exceptions import SchemaMismatchError
from airflow_ckpt_provider.sources.protocol import AccountingSource, LookingSource, ReplanningSource, SharedSource
from airflow_ckpt_provider.tables.format import mode_type
from airflow_ckpt_provider.write import commits
from airflow_ckpt_provider.write.naming import in_input

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Plan, Seal, Split
    from airflow_ckpt_provider.checkpoint.staged_write import StagedWrite
    from airflow_ckpt_provider.tables.mode import Mode
    from airflow_ckpt_provider.write.columns import RowColumns
    from airflow_ckpt_provider.write.looks import TableOfRound
    from airflow_ckpt_provider.write.recovery import Recovery
    from airflow_ckpt_provider.write.rejected import Rejections
    from airflow_ckpt_provider.write.request import SourcePlan, WriteRequest


class Round(NamedTuple):
    """What is to be staged next.

    :param missing: splits of ``plan`` that are not staged, largest first, so that the last task to finish is a short one.
    """

    number: int
    plan: Plan
    missing: list[Split]


class Planning:
    """The rounds of a write, as one attempt plans them.

    :param attempt: its id.
    :param write: the write.
    :param table: the table as it was when the round began.
    :param source_plan: makes the plan of the source.
    :param columns: of the rows.
    :param recovery: what earlier attempts have staged.
    :param rejections: rows at which the transform failed.
    """

    def __init__(
        self,
        attempt: str,
        request: WriteRequest,
        write: StagedWrite,
        table: TableOfRound,
        source_plan: SourcePlan,
        columns: RowColumns,
        recovery: Recovery,
        rejections: Rejections,
    ) -> None:
        self._attempt = attempt
        self._request = request
        self._write = write
        self._table = table
        self._source_plan = source_plan
        self._columns = columns
        self._recovery = recovery
        self._rejections = rejections
        #: Whether this attempt has made a plan, and so has listed the source itself.
        self.has_own_round = False
        #: Whether this attempt has just planned the source.
        self._planned_now = False
        #: The last plan that was made by looking at the table in this attempt.
        self._own_plan: Plan | None = None
        #: Number of splits of earlier attempts whose files were lost, so that they are staged again.
        self.lost = 0

    @property
    def _mode(self) -> type[Mode]:
        return mode_type(self._write.header)

    def next_round(self) -> Round | None:
        """What is to be staged next; None once the write is complete as the table is now.

        :raises SchemaMismatchError: if the input is known not to fit the table.
        :raises InputChangedError: if the input of a missing split changed (I6).
        """
        write, recovery, sealed = self._write, self._recovery, self._write.checkpoint.newest_seal()
        self._table.renew()
        if sealed is not None and not sealed.provisional and recovery.has_all_of(sealed):
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
            if (missing and self._replanned(staged)) or (begun and self._lost_pieces()) or self._runs_again(sealed, missing):
                continue
            reads = bool(missing) and all(split.is_input for split in missing)
            # While the source is read, and right after this attempt has looked, the table has nothing new to say.
            stands = reads or (bool(missing) and write.plan is self._own_plan)
            wanted = write.plan if stands else self._wanted()
            stands = wanted.splits == write.plan.splits
            complete = stands and not missing
            if complete and sealed is not None and sealed.round == len(write.plans) and recovery.has_all_of(sealed):
                return None
            if not reads and self._lost_splits(sealed):
                continue
            if complete:
                return None
            if stands:
                self._verify([split for split in missing if split.task == READ])
                return Round(len(write.plans), write.plan, sorted(missing, key=lambda split: -split.bytes))
            if self.landed_meanwhile():
                return None
            self._own_plan = write.pin(wanted)

    def pin_staged(self, plan: Plan) -> None:
        """Pin a plan whose splits are all staged, as the round that is sealed next, behind those that others have pinned.

        How far its source is read by that, the source itself says.
        """
        planned = self._source_plan.get(self._write.header.replaces)
        plan = msgspec.structs.replace(plan, increment=planned.increment)
        while self._write.pin(plan) is not plan:
            pass

    def landed_meanwhile(self) -> bool:
        """Whether another attempt's seal has landed: what moved the table may be the commit itself."""
        checkpoint = self._write.checkpoint
        return checkpoint.newest_seal() is not None and commits.landed(checkpoint, self._table.table) is not None

    def _runs_again(self, sealed: Seal | None, missing: Sequence[Split]) -> bool:
        """Open a round in which rows that earlier attempts have rejected run again, once all of the input is staged.

        What table splits have begun to do was computed from what is staged. Then they run again only if the write cannot be
        sealed without them, and with all rows of their splits.

        :raises CheckpointError: if more rows are left out than the write may leave out.
        """
        if sealed is not None or any(split.is_input for split in missing):
            return False
        rejections, plan = self._rejections, self._write.plan
        files = rejections.to_run_again()
        if files and plan is self._write.source_plan and all(split.is_input for split in plan.splits):
            wanted = rejections.round(files)
            if self._write.pin(wanted) is wanted:
                rejections.ran()
            return True
        if files and not rejections.are_few():
            rejections.ran()
            self._restage({file.split for file in files})
            return True
        rejections.require_few()
        return False

    def _wanted(self) -> Plan:
        """What the write consists of, on the table as it is now."""
        write = self._write
        if not self._mode.provisional:
            return write.plan
        self._table.renew()
        return self._table.look(lambda state: state.mode(write.header).plan(write))

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

    def _pin_first(self) -> None:
        """Plan the source and pin the plan, after the checks that can be made before Spark starts."""
        request, header = self._request, self._write.header
        if isinstance(request.source, SharedSource):
            request.source.begin_reading(header)
        plan = self._source_plan.get(header.replaces)
        if request.transform is None:
            schema = request.source.schema(plan, request.options)
            if schema is not None:
                self._require_fit(schema, plan)
        first = self._table.look(
            lambda state: state.mode(header).first(self._write, plan, lambda: self._source_plan.required_schema(header.replaces))
        )
        self.has_own_round = self._planned_now = self._write.pin(first) is first

    def _require_fit(self, schema: pa.Schema, plan: Plan) -> None:
        """Refuse rows that are known not to fit the table; the message says where their columns were read.

        :param schema: of the rows of the first split.
        """
        try:
            self._columns.require_fit(schema)
        except SchemaMismatchError as error:
            request = self._request
            where = in_input(plan.splits[0], request.source.reader(request.options), 0) if plan.splits else ""
            if not where:
                raise
            raise SchemaMismatchError(f"{error}\n(in split {plan.splits[0].id}{without_credentials(where)})") from error

    def _lost_pieces(self) -> bool:
        """Open a round for splits of which earlier attempts have closed pieces whose files were lost since; looks once."""
        lost = self._recovery.splits_with_lost_pieces()
        if not lost or self.landed_meanwhile():
            return False
        self._restage(lost)
        return True

    def _lost_splits(self, sealed: Seal | None) -> bool:
        """Open a round in which what earlier attempts have staged, and what was lost since, is staged again; looks once.

        A commit that was begun may still land the earlier seal. It lands that or a later one, never both: they are one group.
        """
        lost = self._recovery.lost_splits(sealed)
        if lost is None or self.landed_meanwhile():
            return False
        self._restage(lost)
        self.lost = len(lost)
        return True

    def _restage(self, lost: set[str]) -> None:
        """Open a round in which these splits are staged again."""
        write, source = self._write, self._request.source
        planned = by_table = with_their_splits(self._mode.restaged(write, lost))
        if isinstance(source, ReplanningSource):
            planned = source.restaged(planned, write.staged_ids() - lost, len(write.plans) + 1, self._attempt)
        planned = with_their_splits(planned)
        self.has_own_round |= write.pin(planned) is planned and planned is not by_table

    def _replanned(self, staged: set[str]) -> bool:
        """Open a round of this attempt's own, for sources that plan anew in each attempt; once."""
        source = self._request.source
        if self.has_own_round or not isinstance(source, ReplanningSource):
            return False
        if any(split.task != READ for split in self._write.plan.splits):
            # The source is staged; what is missing are table splits.
            return False
        planned = source.replan(self._write.plans, staged, self._attempt, self._request.options)
        if planned is None:
            return False
        # If another attempt's was first, the next one is opened on top of it.
        self.has_own_round = self._write.pin(planned) is planned
        return True
