"""Closing a generation: the totals of what its splits have staged are put as its seal, once for each round."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Seal, contents_of
from airflow_ckpt_provider.exceptions import RowCountError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import JsonObject, Plan, RejectedFile, Staged


def put_seal(
    checkpoint: Checkpoint,
    records: Sequence[Staged],
    manifests: Sequence[JsonObject] | None = None,
    *,
    plan: Plan | None = None,
    number: int = 1,
    provisional: bool = False,
    lost_files: bool = False,
    rejected: Sequence[RejectedFile] = (),
) -> Seal:
    """Close the checkpoint: the totals of what is staged are fixed (I2).

    :param records: of all splits of the plan.
    :param manifests: what lists their files; their own if None.
    :param plan: of the round; read from the store if None.
    :param number: round of the plan.
    :param provisional: whether another seal may take the place of this one; one of an earlier round is replaced.
    :param lost_files: whether files that the newest seal needs were lost, so that it is replaced in any case.
    :param rejected: rows of the input that are left out.
    :returns: the newest seal; another one than was to be put, if that may not take its place.
    :raises RowCountError: if a staged record disagrees with its own manifest.
    """
    seals = checkpoint.seals()
    if seals and (seals[-1].round >= number or not (lost_files or seals[-1].provisional)):
        return seals[-1]
    totals = totals_of(records, checkpoint.key.value)
    if manifests is None:
        manifests = [record.manifest for record in records if record.manifest is not None]
    plan = checkpoint.plan(number) if plan is None else plan
    if plan is None:
        raise checkpoint.store.vanished(checkpoint.paths.plan(number))
    seal = Seal(
        sealed_at=now(),
        contents=contents_of(plan, records),
        splits=totals.splits,
        rows=totals.rows,
        bytes=totals.bytes,
        files=totals.files,
        manifests=tuple(manifests),
        round=number,
        counts=dict(totals.counts),
        provisional=provisional,
        computed_by=computed_by(records, checkpoint.header.code),
        rejected=tuple(rejected),
    )
    name = checkpoint.paths.seal(len(seals) + 1)
    if checkpoint.store.create(name, seal):
        return seal
    sealed = checkpoint.sealed()
    if sealed is None:
        raise checkpoint.store.vanished(name)
    return sealed


class Totals(NamedTuple):
    """The totals of what all splits of a write have staged; see ``Seal``."""

    splits: int
    rows: int
    bytes: int
    files: int
    counts: Mapping[str, int]


def totals_of(staged: Sequence[Staged], key: str) -> Totals:
    """The totals of these records.

    :param key: for messages.
    :raises RowCountError: if a record disagrees with its own manifest.
    """
    counts: Counter[str] = Counter()
    for staged_split in staged:
        if (staged_split.manifest is None) != (staged_split.rows == 0):
            raise RowCountError(f"The staged record of split {staged_split.split} of the key {key!r} contradicts itself.")
        counts.update(staged_split.counts)
    return Totals(
        len(staged),
        sum(staged_split.rows for staged_split in staged),
        sum(staged_split.bytes for staged_split in staged),
        sum(len(staged_split.files) for staged_split in staged),
        counts,
    )


def computed_by(staged: Sequence[Staged], code: str) -> dict[str, int]:
    """How many splits each code has computed; none if all are of the header's.

    :param code: the header's.
    """
    splits = Counter(code_digest for record in staged for code_digest in dict.fromkeys(record.computed_by or (code,)))
    return dict(sorted(splits.items())) if splits.keys() - {code} else {}
