"""One checkpoint as a whole: what was planned, which attempt has staged what, what that saved, and what a retry would do now.

Decision: which attempt has staged a split is told by the store's clock, from one listing: the last one that had begun by then. The
records themselves say it exactly, but there may be ten thousand of them, and a page asks every few seconds. Two attempts that ran
at the same time may be taken for each other.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.codes import codes
from airflow_ckpt_provider.checkpoint.documents import code_of
from airflow_ckpt_provider.checkpoint.inventory import Inventory
from airflow_ckpt_provider.checkpoint.layout import id_of, piece_of, place_of
from airflow_ckpt_provider.exceptions import CheckpointError
from airflow_ckpt_provider.overview.actions import missing
from airflow_ckpt_provider.overview.facts import AttemptFacts, CodeFacts, Details, Kept, SplitFacts, SplitState
from airflow_ckpt_provider.overview.listing import summary
from airflow_ckpt_provider.overview.next_attempt import next_attempt

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_ckpt_provider.checkpoint.documents import Attempt, Code, Plan, Seal, Split, Tombstone
    from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore

#: Records that are read to count the rows which an attempt did not have to compute. More take longer than a page may.
MAX_RECORDS = 2_000


def details(store: CheckpointStore, key: IdempotenceKey, generation: int | None = None) -> Details:
    """All that is shown of a generation of a key.

    :param generation: the newest one if None.
    :raises CheckpointMissingError: if there is none.
    :raises CorruptObjectError: if its header cannot be read. What else cannot be is among the ``problems``.
    """
    generations = Inventory.of(store, key.hash).generations.get(key.hash, {})
    if not generations:
        raise missing(store, key)
    checkpoint = Checkpoint.at(store, key, max(generations) if generation is None else generation)
    header, documents = checkpoint.header, _Documents.of(checkpoint)
    found = summary(store, generations[header.generation])
    splits = documents.plans[-1].splits if documents.plans else ()
    times = _Times.of(checkpoint)
    staged_by = times.staged_by()
    seal, tombstone = documents.seal, documents.tombstone
    attempts = sorted(documents.attempts, key=lambda attempt: times.attempts.get(attempt.id, attempt.started_at))
    return Details(
        summary=found,
        store=store.uri,
        generations=sorted(generations),
        source=header.source,
        parameters=header.parameters,
        transform=header.transform,
        connections={
            "table": header.connections.table,
            "spark": header.connections.spark,
            "checkpoint": header.connections.checkpoint,
        },
        attempts=[_attempt_facts(number, attempt, times, staged_by) for number, attempt in enumerate(attempts, 1)],
        splits=[_split_facts(split, staged_by.get(split.id), len(attempts), times) for split in splits],
        rounds=len(documents.plans),
        codes=_code_facts(checkpoint, documents),
        counts=dict(seal.counts) if seal is not None else {},
        rejected_rows=seal.rejected_rows if seal is not None else 0,
        kept=_kept(checkpoint, documents, attempts, times, staged_by),
        next_attempt=next_attempt(checkpoint, found, staged=sum(split.id in staged_by for split in splits)),
        discarded_at=None if tombstone is None else tombstone.discarded_at,
        discarded_because="" if tombstone is None else tombstone.reason,
        replaces=header.replaces,
        problems=list(dict.fromkeys(filter(None, [found.problem, documents.problem]))),
    )


@dataclass
class _Documents:
    """The documents of a generation, as far as they can be read."""

    attempts: list[Attempt] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    codes: list[Code] = field(default_factory=list)
    seal: Seal | None = None
    tombstone: Tombstone | None = None
    problem: str = ""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> _Documents:
        documents = cls()
        try:
            documents.tombstone = checkpoint.discarded()
            documents.seal = checkpoint.sealed()
            documents.attempts = checkpoint.attempts()
            documents.codes = codes(checkpoint)
            # A clean-up has removed the plans of one that is compact.
            documents.plans = checkpoint.plans() if checkpoint.compacted() is None else []
        except CheckpointError as error:
            documents.problem = str(error)
        return documents


@dataclass
class _Times:
    """When objects of a generation were put, by the store's clock: those of two hosts need not agree (I13).

    :param begun: ids of the splits of which pieces are saved.
    """

    attempts: dict[str, datetime] = field(default_factory=dict)
    staged: dict[str, datetime] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> _Times:
        times = cls()
        for listed in checkpoint.store.listed(checkpoint.paths.root):
            place = place_of(listed.name)
            kind = "" if place is None else place.rest.partition("/")[0]
            if kind == "attempts":
                times.attempts[id_of(listed.name)] = listed.modified
            elif kind == "staged":
                times.staged[id_of(listed.name)] = listed.modified
            elif kind == "pieces" and (piece := piece_of(listed.name)) is not None:
                times.begun.add(piece[0].rpartition(".")[0])
        return times

    def staged_by(self) -> dict[str, int]:
        """The attempt that has staged a split, counted from 1, for each that is staged."""
        begun = sorted(self.attempts.values())
        return {split: max(1, bisect.bisect_right(begun, moment)) for split, moment in self.staged.items()}


def _split_facts(split: Split, attempt: int | None, newest: int, times: _Times) -> SplitFacts:
    if attempt is not None:
        state = SplitState.WRITTEN if attempt >= newest else SplitState.RECOVERED
    else:
        state = SplitState.BEGUN if split.id in times.begun else SplitState.MISSING
    return SplitFacts(id=split.id, state=state, input_bytes=split.bytes, attempt=attempt)


def _attempt_facts(number: int, attempt: Attempt, times: _Times, staged_by: dict[str, int]) -> AttemptFacts:
    moments = [times.staged[split] for split, by in staged_by.items() if by == number]
    return AttemptFacts(
        number=number,
        started_at=times.attempts.get(attempt.id, attempt.started_at),
        try_number=attempt.try_number,
        host=attempt.host,
        pid=attempt.pid,
        engine=attempt.engine,
        dag_id=attempt.origin.dag_id,
        task_id=attempt.origin.task_id,
        run_id=attempt.origin.run_id,
        map_index=attempt.origin.map_index,
        staged=len(moments),
        last_staged_at=max(moments, default=None),
    )


def _code_facts(checkpoint: Checkpoint, documents: _Documents) -> list[CodeFacts]:
    header, seal = checkpoint.header, documents.seal
    if not header.transform:
        return []
    computed = {} if seal is None else dict(seal.computed_by) or {header.code: seal.splits}

    def facts(digest: str, transform: str, version: str | None, accepted_at: datetime | None) -> CodeFacts:
        splits = None if seal is None else computed.get(digest, 0)
        return CodeFacts(digest=digest, transform=transform, version=version, accepted_at=accepted_at, splits=splits)

    first = facts(header.code, header.transform, header.transform_version, None)
    accepted = sorted(documents.codes, key=lambda code: code.accepted_at)
    later = [facts(code_of(code.fingerprint, code.version), code.transform, code.version, code.accepted_at) for code in accepted]
    return [first, *later]


def _kept(
    checkpoint: Checkpoint, documents: _Documents, attempts: list[Attempt], times: _Times, staged_by: dict[str, int]
) -> Kept | None:
    """What the newest attempt found staged; None if there was nothing."""
    splits = sorted(split for split, by in staged_by.items() if by < len(attempts))
    if not splits:
        return None
    rows, size = None, None
    if len(splits) <= MAX_RECORDS:
        try:
            records = checkpoint.staged(splits)
            rows, size = sum(record.rows for record in records), sum(record.bytes for record in records)
        except CheckpointError as error:
            documents.problem = documents.problem or str(error)
    last: dict[int, datetime] = {}
    for split in splits:
        number, moment = staged_by[split], times.staged[split]
        last[number] = max(moment, last.get(number, moment))
    begun = sorted(times.attempts.values())
    seconds = sum(max(0.0, (moment - begun[number - 1]).total_seconds()) for number, moment in last.items() if number <= len(begun))
    return Kept(splits=len(splits), rows=rows, bytes=size, seconds=seconds)
