"""The mode ``upsert``: which splits its phases have, and what its commit is made of."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Split
from airflow_ckpt_provider.exceptions import InvalidInputError, NotSupportedYetError, TableMovedError
from airflow_ckpt_provider.tables.lance.commit import merging
from airflow_ckpt_provider.tables.lance.modes import Append, names_of
from airflow_ckpt_provider.tables.lance.upsert.source import Source, require_keys
from airflow_ckpt_provider.tables.lance.upsert.writer import MATCH, UNIQUE, UpsertFacts, UpsertWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lance import LanceDataset

    from airflow_ckpt_provider.checkpoint.documents import Header, Plan
    from airflow_ckpt_provider.tables.lance.commit import Swap
    from airflow_ckpt_provider.tables.lance.files import DatasetFiles
    from airflow_ckpt_provider.tables.lance.fragments import StagedFragments
    from airflow_ckpt_provider.tables.lance.writer import WriterFacts
    from airflow_ckpt_provider.tables.protocol import Sealed, StagedOf, Writer


class Upsert(Append):
    """Rows with the keys of staged ones are replaced by those, and the other staged rows added.

    :param parameters: ``upsert_keys``.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"upsert_keys", "when_matched", "when_not_matched"})
    additive = False
    provisional = True
    together = False

    def validate(self, dataset: LanceDataset | None) -> None:
        """Refuse keys that cannot be keys of this dataset."""
        for name, only in (("when_matched", "update"), ("when_not_matched", "insert")):
            if self.parameters.get(name, only) != only:
                raise NotSupportedYetError(f"{name}={self.parameters[name]!r} is not supported for Lance datasets yet.")
        if dataset is not None:
            require_keys(dataset.schema, self._keys, dataset.uri)

    def following(
        self, dataset: LanceDataset, header: Header, plans: Sequence[Plan], staged: StagedOf, replaced: Sequence[str]
    ) -> Plan | None:
        """The splits that match the dataset as it is now; None if they are those of the last round."""
        plan = plans[-1]
        reads = [split for split in plan.splits if split.task == READ]
        source = Source.of(staged([split.id for split in reads]))
        wanted = self._wanted(dataset, source, names_of(replaced))
        if {split.id for split in plan.splits if split.task != READ} == wanted.keys():
            return None
        inputs = plan.inputs | {"source": source.to_json()}
        return msgspec.structs.replace(
            plan, created_at=now(), inputs=inputs, splits=(*reads, *wanted.values()), base=dataset.version
        )

    def writer(self, facts: WriterFacts, plans: Sequence[Plan]) -> Writer:
        """What executors do the splits of all phases with."""
        return UpsertWriter(facts, UpsertFacts(tuple(self._keys), plans[-1].base, _source_of(plans[-1])))

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
            changed = wanted.keys() ^ {split.id for split in one.plan.splits if split.task != READ}
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
    def _keys(self) -> list[str]:
        keys = self.parameters.get("upsert_keys")
        if not isinstance(keys, list) or not keys:
            raise InvalidInputError("mode='upsert' needs upsert_keys: the columns that identify a row.")
        return keys

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
