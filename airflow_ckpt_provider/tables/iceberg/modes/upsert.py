"""The mode ``upsert``: which splits each of its phases has, and what its commit replaces.

The source is staged first, in files of its own. Then every file of the table that can hold one of its keys is matched, small
ones together; then what none of them holds is inserted. Ids of these splits are digests of what they are computed from, so that
after the table moved the next plan has the same ids for all that the change did not touch, and those are staged already.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Split, StagedFile, part_of
from airflow_ckpt_provider.checkpoint.restaged import as_named, first_id, reread, restaged
from airflow_ckpt_provider.tables.iceberg.conflict_checks import require_same_files
from airflow_ckpt_provider.tables.iceberg.modes.base import IcebergMode
from airflow_ckpt_provider.tables.iceberg.modes.creating import MayCreateUpsertParameters
from airflow_ckpt_provider.tables.iceberg.modes.splits import group_split
from airflow_ckpt_provider.tables.iceberg.removals import RemoveFiles
from airflow_ckpt_provider.tables.iceberg.upsert.facts import require_as_written
from airflow_ckpt_provider.tables.iceberg.upsert.grouping import FileGroup, GroupSize, grouped
from airflow_ckpt_provider.tables.iceberg.upsert.keys import key_columns
from airflow_ckpt_provider.tables.iceberg.upsert.plan import plan_matches
from airflow_ckpt_provider.tables.iceberg.upsert.sidecar import MatchSidecar
from airflow_ckpt_provider.tables.iceberg.upsert.source_file import SourceFile, StagedSources
from airflow_ckpt_provider.tables.iceberg.upsert.writer import UpsertWriter
from airflow_ckpt_provider.tables.keys.key_batches import buckets_for
from airflow_ckpt_provider.tables.mode import Grouping
from airflow_ckpt_provider.tables.staged_files import reading_staged
from airflow_ckpt_provider.tables.writer import Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Plan, Staged
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.iceberg.removals import Removal
    from airflow_ckpt_provider.tables.writer import Writer

#: Tasks of table splits.
MATCH, UNIQUE, INSERT = "match", "unique", "insert"

#: Buckets of keys where the size of the source is not known beforehand.
_UNKNOWN_BUCKETS = 16


class Upsert(IcebergMode):
    """Rows with the keys of staged ones are updated, and the other staged rows inserted."""

    Parameters = MayCreateUpsertParameters
    parameters: MayCreateUpsertParameters
    grouping = Grouping.ALONE
    provisional = True
    matches_rows = True

    def validate(self) -> None:
        """Refuse keys that cannot be keys of this table."""
        key_columns(self.table.schema(), self.parameters.upsert_keys, ".".join(self.table.name()))

    def plan(self, write: StagedWrite) -> Plan:
        """The splits of the phase that the write is in; those of the last one again if the table moved.

        The source is read; then the files of the table are matched, which may be compacted and expired meanwhile; then what
        was found in none of them is inserted.
        """
        plan, head = write.plan, self.same_schema_head(write.header)
        staged_ids, reads = write.staged_ids(), write.source_splits
        if any(split.id not in staged_ids for split in reads):
            return plan
        records = write.records([split.id for split in reads])
        sources = list(_source_files(records).values())
        require_as_written(self.table.io, sources, write.header, must_exist=False)
        unique = [_unique(n) for n in range(self._buckets(write))] if sources else []
        wanted = as_named([*self._matches(write, head, sources), *unique], plan)
        if _phase(plan, MATCH, UNIQUE) != wanted:
            return _with(plan, wanted.values(), head, sources)
        if not wanted.keys() <= staged_ids:
            return plan
        inserts = as_named(self._inserts(records, wanted), plan) if self.parameters.inserts else {}
        if _phase(plan, INSERT) != inserts:
            return _with(plan, [*wanted.values(), *inserts.values()], head, sources)
        # Where there is nothing to match and nothing to insert: what was read must not be sealed as if it was to land.
        return _with(plan, (), head, sources) if any(split.is_input for split in plan.splits) else plan

    @classmethod
    def restaged(cls, write: StagedWrite, lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which these are staged again, without what was computed from them."""
        plan, number = write.plan, len(write.plans) + 1
        reading = write.source_plan
        if any(split.id in lost for split in reading.splits):
            return reread(reading, lost, number)
        next_plan = restaged(plan, lost, number)
        if not lost & _phase(plan, MATCH).keys():
            return next_plan
        # What is inserted depends on all that was matched.
        return msgspec.structs.replace(next_plan, splits=tuple(split for split in next_plan.splits if split.task != INSERT))

    def writer(self, write: StagedWrite) -> Writer:
        """A writer for the splits of all phases."""
        facts, told = self.facts(write), self.parameters
        upsert = UpsertWriter(
            facts,
            self.table,
            facts.schema.schema_id,
            told.upsert_keys,
            buckets=self._buckets(write),
            update=told.updates,
            insert=told.inserts,
        )
        sidecars = []
        if _phase(write.plan, INSERT):
            matched = write.records(list(_phase(write.plan, MATCH)))
            sidecars = [kept for record in matched if (kept := record.intermediate_as(MatchSidecar)) is not None]
            require_as_written(self.table.io, sidecars, write.header, must_exist=True)
        sources = _sources(write.plan)
        require_as_written(self.table.io, sources, write.header, must_exist=False)
        return UpsertWork(upsert, sources, sidecars)

    def removals(self, writes: Sequence[SealedWrite]) -> list[Removal]:
        """The rewritten files.

        :raises TableMovedError: if a file that can hold a key is another one than those that were matched.
        """
        (write,) = writes
        head = self.same_schema_head(write.header)
        if head != write.plan.base:
            sources = _sources(write.plan)
            require_as_written(self.table.io, sources, write.header, must_exist=True)
            wanted = as_named(self._matches(write, head, sources), write.plan)
            require_same_files(wanted, _phase(write.plan, MATCH), write.header)
        rewritten = frozenset(path for record in write.staged for path in record.replaces)
        return [*super().removals(writes), *([RemoveFiles(rewritten)] if rewritten else [])]

    def _buckets(self, write: StagedWrite) -> int:
        """Buckets of keys: the same in every round, because the first plan is."""
        size = sum(split.bytes for split in write.plans[0].splits)
        return buckets_for(size) if size else _UNKNOWN_BUCKETS

    def _matches(self, write: StagedWrite, head: int | None, sources: Sequence[SourceFile]) -> list[Split]:
        """A split for each group of live files that can hold a key, without those that the commit removes anyway."""
        if not sources:
            return []
        replaced = frozenset(write.replaced_files)
        files = plan_matches(self.table, head, self.parameters.upsert_keys, sources, write.header.table.schema_id)
        wanted = (scanned for scanned in files if scanned.file.path not in replaced)
        return [group_split(MATCH, group) for group in grouped(wanted, GroupSize.of(self.table.metadata.properties))]

    def _inserts(self, records: Sequence[Staged], matches: dict[str, Split]) -> list[Split]:
        """A split for each staged source file. What it inserts depends on all matches, and so does its id."""
        digest = hashlib.sha256("\0".join(sorted(matches)).encode()).hexdigest()[:16]
        return [
            Split(id=f"{INSERT}{digest}x{first_id(split_id)}", bytes=file.bytes, read=file.to_json(), task=INSERT)
            for split_id, file in _source_files(records).items()
        ]


class UpsertWork:
    """Does the splits of all phases; see ``Writer``.

    :param sources: all staged source files, once the source is staged.
    :param sidecars: of all groups of files of the table, once they are matched.
    """

    def __init__(self, upsert: UpsertWriter, sources: Sequence[SourceFile], sidecars: Sequence[MatchSidecar]) -> None:
        self._upsert = upsert
        self._sources = sources
        self._sidecars = sidecars

    @property
    def schema(self) -> pa.Schema:
        return self._upsert.schema

    def write(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """Keep the rows of a source split for the later phases."""
        return self._upsert.write_source(batches, stem)

    @property
    def folders(self) -> frozenset[str]:
        """See ``Writer.folders``."""
        return self._upsert.folders

    def holding(self, record: Staged) -> list[StagedFile]:
        """The staged source file; see ``Writer.holding``."""
        source = record.intermediate_as(SourceFile)
        return [] if source is None else [StagedFile(source.path, source.bytes)]

    def named_in(self, record: Staged) -> list[StagedFile]:
        """The staged source file; see ``Writer.named_in``."""
        return self.holding(record)

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """See ``Writer.sizes``."""
        return self._upsert.sizes(paths)

    def read(self, record: Staged) -> Iterator[pa.RecordBatch]:
        """Rows of a staged source file, those of each bucket in their order; see ``Writer.read``."""
        return self._upsert.read_files(self.holding(record))

    def rewrite(self, batches: Iterable[pa.RecordBatch], stem: str) -> Written:
        """See ``Writer.rewrite``."""
        return self.write(batches, stem)

    def work(self, split: Split, stem: str) -> Written:
        """Match a group of files, look for duplicates in a bucket, or insert a staged source file's new rows.

        :raises StagedFileMissingError: if a staged source file or sidecar is gone or damaged.
        """
        kept = [part_of(split.read, SourceFile), *self._sidecars] if split.task == INSERT else self._sources
        files = [StagedFile(file.path, file.bytes) for file in kept]
        with reading_staged(files, self.sizes, self._upsert.facts.table):
            return self._work(split, stem)

    def _work(self, split: Split, stem: str) -> Written:
        if split.task == MATCH:
            return self._upsert.match(part_of(split.read, FileGroup).files(), self._sources, stem)
        if split.task == INSERT:
            return self._upsert.insert(part_of(split.read, SourceFile), self._sidecars, stem)
        self._upsert.check_unique(part_of(split.read["bucket"], int), self._sources)
        return Written(0, 0, (), None)

    def remove(self, written: Written) -> None:
        """Remove the files of a split that lost the race to be published."""
        self._upsert.remove(written)


def _unique(bucket: int) -> Split:
    return Split(id=f"{UNIQUE}{bucket:06d}", bytes=0, read={"bucket": bucket}, task=UNIQUE)


def _phase(plan: Plan, *tasks: str) -> dict[str, Split]:
    return {split.id: split for split in plan.splits if split.task in tasks}


def _source_files(records: Iterable[Staged]) -> dict[str, SourceFile]:
    """The staged source files, by the splits that have any row."""
    files = {record.split: record.intermediate_as(SourceFile) for record in records}
    return {split_id: file for split_id, file in files.items() if file is not None}


def _sources(plan: Plan) -> tuple[SourceFile, ...]:
    """All staged source files, as the plans of later phases hold them; none while the source is read."""
    pinned = plan.mode_as(StagedSources)
    return () if pinned is None else pinned.sources


def _with(plan: Plan, splits: Iterable[Split], base: int | None, sources: Sequence[SourceFile]) -> Plan:
    """``plan`` with these for its splits. What was read does not land as it is, so its splits are not among them."""
    mode = StagedSources(sources=tuple(sources)).to_json()
    return msgspec.structs.replace(plan, created_at=now(), mode=mode, splits=tuple(splits), base=base)
