"""The mode ``upsert``: which splits its phases have, and what its commit is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Split
from airflow_ckpt_provider.checkpoint.restaged import as_named, reread, restaged
from airflow_ckpt_provider.checkpoint.restart import run_again
from airflow_ckpt_provider.exceptions import TableMovedError
from airflow_ckpt_provider.tables.keys.parameters import UpsertParameters
from airflow_ckpt_provider.tables.lance.intermediate import deletions_in, sidecars_of
from airflow_ckpt_provider.tables.lance.looks import goes_stale
from airflow_ckpt_provider.tables.lance.modes.base import LanceMode
from airflow_ckpt_provider.tables.lance.operations import merging
from airflow_ckpt_provider.tables.lance.updating import updating
from airflow_ckpt_provider.tables.lance.upsert.filtering import FILTER, LandingRows, filters_of
from airflow_ckpt_provider.tables.lance.upsert.replaced import REPLACED, ReplacedUpsert
from airflow_ckpt_provider.tables.lance.upsert.row_ids import row_ids_of
from airflow_ckpt_provider.tables.lance.upsert.source import StagedSource, UpsertPinned, require_keys
from airflow_ckpt_provider.tables.lance.upsert.writer import MATCH, UNIQUE, UpsertFacts, UpsertWriter, match_id
from airflow_ckpt_provider.tables.mode import Grouping
from airflow_ckpt_provider.tables.watermarks import has_watermark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    import pyarrow as pa
    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Plan
    from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
    from airflow_ckpt_provider.tables.lance.operations import Swap
    from airflow_ckpt_provider.tables.lance.upsert.sidecar import DatasetSidecar
    from airflow_ckpt_provider.tables.writer import Writer


class Upsert(LanceMode):
    """Rows with the keys of staged ones are replaced by those, and the other staged rows added.

    Decision: rows keep their ids wherever a dataset has any that are stable, except where the commit also says how far a growing
    source was read: that takes a ``Merge``, which takes no row ids.
    """

    Parameters = UpsertParameters
    parameters: UpsertParameters
    grouping = Grouping.ALONE
    provisional = True

    def validate(self) -> None:
        """Refuse keys that cannot be keys of this dataset."""
        super().validate()
        require_keys(self.existing.schema, self.parameters.upsert_keys, self.existing.uri)

    def first(self, write: StagedWrite, plan: Plan, made: Callable[[], pa.Schema]) -> Plan:
        """The source's plan, with whether rows keep their ids; see ``Mode.first``."""
        del made
        return _keeping(plan, keeps_ids=self._keeps_ids(write, plan))

    @goes_stale
    def plan(self, write: StagedWrite) -> Plan:
        """The source's splits; with those that match the dataset as it is now; then those that drop what does not land."""
        files, dataset = self.named.files, self.existing
        pinned, reads, staged_ids = write.plan, write.source_splits, write.staged_ids()
        if any(split.id not in staged_ids for split in reads):
            return pinned
        records = write.records([split.id for split in reads])
        source, replaced = StagedSource.of(records), ReplacedUpsert.of(write.replaced)
        landing = self._landing(keeps_ids=self._keeps_ids(write, pinned))
        wanted = as_named(_wanted(files, dataset, source, replaced, keeps_ids=landing.keeps_ids), pinned)
        plan = _keeping(pinned, keeps_ids=landing.keeps_ids)
        if _phase(plan, MATCH, UNIQUE) != wanted.keys():
            return _with(plan, [*reads, *wanted.values()], dataset.version, source, replaced=replaced.sidecars)
        if landing.as_staged or not wanted.keys() <= staged_ids:
            return pinned
        sidecars = sidecars_of(write.records(sorted(_phase(plan, MATCH))))
        if landing.insert and landing.update and not sidecars:
            # Nothing was found: all rows are new, and have no ids to keep.
            return pinned
        filters = as_named(filters_of(records, sidecars, landing).values(), plan)
        if _phase(plan, FILTER) == filters.keys():
            return pinned
        # What was read must not be sealed as if it was to land.
        return _with(plan, [*wanted.values(), *filters.values()], dataset.version, source, sidecars=tuple(sidecars.values()))

    @goes_stale
    def require_replaceable(self, landed: SealedWrite) -> None:
        """Check that what was inserted is where it was written; rows of it may be deleted or updated since."""
        ReplacedUpsert.of(landed).require_there(self.named.files, self.existing)

    @classmethod
    def restaged(cls, write: StagedWrite, lost: AbstractSet[str]) -> Plan:
        """The plan of a round in which these are staged again, without what was computed from them."""
        plan, plans, number = write.plan, write.plans, len(write.plans) + 1
        if any(split.id in lost for split in write.source_splits):
            return reread(write.source_plan, lost, number, UpsertPinned(keeps_row_ids=_keeps(plan)).to_json())
        next_plan = restaged(plan, lost, number)
        if not lost & _phase(plan, MATCH):
            return next_plan
        # Which rows of the source land depends on all that was matched. Its own splits take the place of those that filter them.
        kept = [split for split in next_plan.splits if not (split.is_input or split.task == FILTER)]
        replaced = next((pinned.replaced for pinned in map(_pinned, reversed(plans)) if pinned.replaced), ())
        mode = msgspec.structs.replace(_pinned(next_plan), sidecars=(), replaced=replaced).to_json()
        return msgspec.structs.replace(next_plan, mode=mode, splits=(*write.source_splits, *kept))

    @goes_stale
    def writer(self, write: StagedWrite) -> Writer:
        """What executors do the splits of all phases with."""
        plan = write.plan
        pinned = _pinned(plan)
        landing = self._landing(keeps_ids=_keeps(plan))
        upsert = UpsertFacts(
            tuple(self.parameters.upsert_keys), plan.base, StagedSource.of_plan(plan), landing, pinned.sidecars, pinned.replaced
        )
        return UpsertWriter(self.facts(write.header), upsert)

    def swap(self, writes: Sequence[SealedWrite], staged: Sequence[StagedFragments]) -> Swap:
        """Everything that is there, with what is replaced marked as deleted, and the staged fragments.

        :raises TableMovedError: if a fragment is another one than those that were matched.
        """
        (write,) = writes
        files, dataset = self.named.files, self.existing
        if dataset.version != write.plan.base:
            source, replaced = StagedSource.of_plan(write.plan), ReplacedUpsert.of(write.replaced)
            wanted = as_named(_wanted(files, dataset, source, replaced, keeps_ids=_keeps(write.plan)), write.plan)
            changed = wanted.keys() ^ _phase(write.plan, MATCH, UNIQUE)
            if changed:
                raise TableMovedError(
                    f"{write.header.table.identifier} was changed since the write of the key {write.header.key!r} was planned: "
                    f"{len(changed)} fragments were changed, removed or added. Nothing was committed, and what is staged stays "
                    f"staged. {run_again(write.header)}: it matches what the change affects, and nothing "
                    "else, before the commit runs again."
                )
        deletions = {in_record.fragment: in_record for record in write.staged if (in_record := deletions_in(record)) is not None}
        if _keeps(write.plan):
            return updating(dataset, staged, deletions, row_ids_of(files, write.staged))
        return merging(dataset, staged, deletions)

    def landed(self, write: SealedWrite) -> set[str]:
        """Sidecars say what is to be removed if the generation is replaced."""
        if not write.is_replaceable:
            return super().landed(write)
        root = write.header.table.identifier
        return super().landed(write) | {f"{root}/{sidecar.name}" for sidecar in sidecars_of(write.staged).values()}

    def _landing(self, *, keeps_ids: bool) -> LandingRows:
        return LandingRows(self.parameters.updates, self.parameters.inserts, keeps_ids)

    def _keeps_ids(self, write: StagedWrite, plan: Plan) -> bool:
        """Whether rows of this dataset that are updated keep their row ids."""
        return (
            self.parameters.updates
            and self.existing.has_stable_row_ids
            and not has_watermark(plan, replaces=write.header.replaces is not None)
        )


def _pinned(plan: Plan) -> UpsertPinned:
    return plan.mode_as(UpsertPinned) or UpsertPinned()


def _keeps(plan: Plan) -> bool:
    """Whether a plan was made so that updated rows keep their row ids."""
    return _pinned(plan).keeps_row_ids


def _keeping(plan: Plan, *, keeps_ids: bool) -> Plan:
    """``plan``, which says so or not."""
    if _keeps(plan) == keeps_ids:
        return plan
    return msgspec.structs.replace(plan, mode=msgspec.structs.replace(_pinned(plan), keeps_row_ids=keeps_ids).to_json())


def _wanted(
    files: DatasetFiles, dataset: LanceDataset, source: StagedSource | None, replaced: ReplacedUpsert, *, keeps_ids: bool
) -> list[Split]:
    """A split for each fragment that has to be looked at, and for each bucket of keys.

    :raises TableMovedError: if rows that are to be replaced are not there as they were written.
    """
    replaced.require_there(files, dataset)
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    if source is None or not source.files:
        fragments = [metadata for metadata in fragments if replaced.file_of(metadata) is not None]
    wanted = [_match(metadata, replaced, keeps_ids=keeps_ids) for metadata in fragments]
    if source is not None and source.files:
        buckets = range(source.buckets)
        wanted += [Split(id=f"{UNIQUE}{bucket:06d}", bytes=0, read={"bucket": bucket}, task=UNIQUE) for bucket in buckets]
    return wanted


def _match(fragment: Any, replaced: ReplacedUpsert, *, keeps_ids: bool) -> Split:  # noqa: ANN401 - a FragmentMetadata
    """Matching one fragment."""
    size = sum(file.file_size_bytes or 0 for file in fragment.files)
    replaced_file = replaced.file_of(fragment)
    read = {"fragment": fragment.id} | ({} if replaced_file is None else {REPLACED: replaced.numbers[replaced_file]})
    return Split(id=match_id(fragment, keeps_ids=keeps_ids), bytes=size, read=read, task=MATCH)


def _phase(plan: Plan, *tasks: str) -> set[str]:
    return {split.id for split in plan.splits if split.task in tasks}


def _with(
    plan: Plan,
    splits: Iterable[Split],
    base: int,
    source: StagedSource,
    *,
    sidecars: Sequence[DatasetSidecar] = (),
    replaced: Sequence[DatasetSidecar] = (),
) -> Plan:
    """``plan`` with these for its splits, and what they need besides: sidecars of its own, or of the replaced generation."""
    kept = UpsertPinned(keeps_row_ids=_keeps(plan), source=source.stored, sidecars=tuple(sidecars), replaced=tuple(replaced))
    return msgspec.structs.replace(plan, created_at=now(), mode=kept.to_json(), splits=tuple(splits), base=base)
