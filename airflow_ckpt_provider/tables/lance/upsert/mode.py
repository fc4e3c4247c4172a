"""The mode ``upsert``: which splits its phases have, and what its commit is made of."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Split
from airflow_ckpt_provider.exceptions import InvalidInputError, TableMovedError
from airflow_ckpt_provider.tables.keys.parameters import CHOICES, UpsertParameters
from airflow_ckpt_provider.tables.lance.commit import merging
from airflow_ckpt_provider.tables.lance.modes import Append, names_of
from airflow_ckpt_provider.tables.lance.upsert.filtering import FILTER, filters_of
from airflow_ckpt_provider.tables.lance.upsert.sidecar import Sidecar
from airflow_ckpt_provider.tables.lance.upsert.source import Source, require_keys
from airflow_ckpt_provider.tables.lance.upsert.writer import MATCH, UNIQUE, UpsertFacts, UpsertWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Header, Plan, Staged
    from airflow_ckpt_provider.tables.lance.commit import Swap
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
    from airflow_ckpt_provider.tables.lance.writer import WriterFacts
    from airflow_ckpt_provider.tables.protocol import Sealed, StagedOf, Writer


class Upsert(UpsertParameters, Append):
    """Rows with the keys of staged ones are replaced by those, and the other staged rows added.

    :param parameters: ``upsert_keys``, ``when_matched`` and ``when_not_matched``.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"upsert_keys", "when_matched", "when_not_matched"})
    additive = False
    provisional = True
    together = False

    def validate(self, dataset: LanceDataset | None) -> None:
        """Refuse keys that cannot be keys of this dataset, and what would write nothing at all."""
        for name, values in CHOICES.items():
            if self.parameters.get(name, values[0]) not in values:
                raise InvalidInputError(f"{name}={self.parameters[name]!r}: the values are {' and '.join(map(repr, values))}.")
        if not (self._update or self._insert):
            raise InvalidInputError("when_matched='ignore' with when_not_matched='ignore' writes nothing at all.")
        if dataset is not None:
            require_keys(dataset.schema, self._keys, dataset.uri)

    def following(
        self, dataset: LanceDataset, header: Header, plans: Sequence[Plan], staged: StagedOf, replaced: Sequence[str]
    ) -> Plan | None:
        """The splits that match the dataset as it is now, then those that drop what does not land; None if they are staged."""
        plan = plans[-1]
        reads = _reads(plans)
        records = staged([split.id for split in reads])
        source = Source.of(records)
        wanted = self._wanted(dataset, source, names_of(replaced))
        if _phase(plan, MATCH, UNIQUE) != wanted.keys():
            return _with(plan, [*reads, *wanted.values()], dataset.version, source)
        if self._all_land:
            return None
        sidecars = _sidecars(staged(sorted(_phase(plan, MATCH))))
        filters = filters_of(records, sidecars)
        if _phase(plan, FILTER) == filters.keys():
            return None
        # What was read must not be sealed as if it was to land.
        return _with(plan, [*wanted.values(), *filters.values()], dataset.version, source, tuple(sidecars.values()))

    def writer(self, facts: WriterFacts, plans: Sequence[Plan]) -> Writer:
        """What executors do the splits of all phases with."""
        plan = plans[-1]
        sidecars = msgspec.convert(plan.inputs.get("sidecars", ()), tuple[Sidecar, ...])
        upsert = UpsertFacts(tuple(self._keys), plan.base, _source_of(plan), self._update, self._insert, sidecars)
        return UpsertWriter(facts, upsert)

    def swap(
        self, files: DatasetFiles, dataset: LanceDataset | None, sealed: Sequence[Sealed], staged: Sequence[StagedFragments]
    ) -> Swap:
        """Everything that is there, with what is replaced marked as deleted, and the staged fragments.

        :raises TableMovedError: if a fragment is another one than those that were matched.
        """
        (one,) = sealed
        if dataset is None:
            return super().swap(files, dataset, sealed, staged)
        gone = names_of(one.replaced)
        if dataset.version != one.plan.base:
            wanted = self._wanted(dataset, _source_of(one.plan), gone)
            changed = wanted.keys() ^ _phase(one.plan, MATCH, UNIQUE)
            if changed:
                raise TableMovedError(
                    f"{one.header.table.identifier} was changed since the write of the key {one.header.key!r} was planned: "
                    f"{len(changed)} fragments were changed, removed or added. Nothing was committed, and what is staged stays "
                    f"staged. Clear the task {one.header.origin.task_id!r}: it matches what the change affects, and nothing else, "
                    "before the commit runs again."
                )
        matched: dict[int, Any] = {}
        for record in one.staged:
            if record.scratch is not None and "fragment" in record.scratch:
                fragment: Any = record.scratch["fragment"]
                matched[fragment["id"]] = fragment
        return merging(dataset, files, staged, matched, gone, f"{one.header.key}/{one.header.generation}")

    @property
    def _all_land(self) -> bool:
        return self._update and self._insert

    def _wanted(self, dataset: LanceDataset, source: Source | None, gone: frozenset[str]) -> dict[str, Split]:
        """A split for each fragment, but for those that the commit removes anyway, and for each bucket of keys."""
        if source is None or not source.files:
            return {}
        fragments = [one.metadata for one in dataset.get_fragments()]
        matches = [_match(one) for one in fragments if not (len(one.files) == 1 and one.files[0].path in gone)]
        unique = [
            Split(id=f"{UNIQUE}{bucket:06d}", bytes=0, read={"bucket": bucket}, task=UNIQUE) for bucket in range(source.buckets)
        ]
        return {split.id: split for split in (*matches, *unique)}


def _match(fragment: Any) -> Split:  # noqa: ANN401 - a FragmentMetadata
    """Matching one fragment: its id says which it is, with which columns and deletions."""
    described = fragment.to_json()
    facts = msgspec.json.encode(
        [described["id"], sorted(file["path"] for file in described["files"]), described["deletion_file"]], order="deterministic"
    )
    size = sum(file["file_size_bytes"] or 0 for file in described["files"])
    name = f"{MATCH}{hashlib.sha256(facts).hexdigest()[:16]}"
    return Split(id=name, bytes=size, read={"fragment": described["id"]}, task=MATCH)


def _source_of(plan: Plan) -> Source | None:
    """What is staged, as plans say from the second round on."""
    source = plan.inputs.get("source")
    return None if source is None else Source.from_json(source)


def _reads(plans: Sequence[Plan]) -> list[Split]:
    """The splits that the source reads, of the last plan that has any: it has all of them."""
    of_plans = ([split for split in plan.splits if split.task == READ] for plan in reversed(plans))
    return next((reads for reads in of_plans if reads), [])


def _phase(plan: Plan, *tasks: str) -> set[str]:
    return {split.id for split in plan.splits if split.task in tasks}


def _sidecars(records: Iterable[Staged]) -> dict[str, Sidecar]:
    """Those that these match splits have written, by their ids."""
    written = ((record.split, record.scratch["sidecar"]) for record in records if record.scratch is not None)
    return {split_id: Sidecar.from_json(sidecar) for split_id, sidecar in written}


def _with(plan: Plan, splits: Iterable[Split], base: int, source: Source, sidecars: Iterable[Sidecar] = ()) -> Plan:
    """``plan`` with these for its splits, and what they need besides."""
    inputs = {name: value for name, value in plan.inputs.items() if name != "sidecars"} | {"source": source.to_json()}
    if sidecars:
        inputs["sidecars"] = [sidecar.to_json() for sidecar in sidecars]
    return msgspec.structs.replace(plan, created_at=now(), inputs=inputs, splits=tuple(splits), base=base)
