"""What is staged as a whole: the seal, and the compact record that stays of it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import MAX_MEMBERS, CodeDigest, Count, Moment, Name, Round
from airflow_ckpt_provider.checkpoint.documents.parts import JsonObject, fingerprint
from airflow_ckpt_provider.checkpoint.documents.staged import RejectedFile
from airflow_ckpt_provider.checkpoint.encoding import Document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_ckpt_provider.checkpoint.documents.plan import Plan
    from airflow_ckpt_provider.checkpoint.documents.staged import Staged


class Seal(Document, frozen=True, kw_only=True, tag="seal"):
    """The checkpoint is complete: every split of its last round is staged and the totals are fixed.

    :param round: the round whose splits are sealed.
    :param counts: sums of those of the splits.
    :param manifests: records of all staged files, in the table format's terms; tiny ones merged.
    :param provisional: True if another seal takes its place when the table moves before the commit.
    :param contents: SHA-256 of what is sealed: the round's plan and the records of its splits. See ``contents_of``.
    :param computed_by: how many splits each code has computed, in part or as a whole, by its digest; empty if the header's has all.
    :param rejected: rows of the input that are left out, because the transform failed at them; see ``checkpoint.rejected``.
    """

    sealed_at: Moment
    contents: str
    splits: Count
    rows: Count
    bytes: Count
    files: Count
    manifests: tuple[JsonObject, ...]
    round: Round = 1
    counts: dict[str, Count] = {}  # noqa: RUF012 - msgspec copies it
    provisional: bool = False
    computed_by: dict[CodeDigest, Count] = {}  # noqa: RUF012 - msgspec copies it
    rejected: tuple[RejectedFile, ...] = ()

    @property
    def rejected_rows(self) -> int:
        """Number of rows of the input that the write leaves out."""
        return sum(file.rows for file in self.rejected)

    @property
    def is_empty(self) -> bool:
        """True if no row came in. Rows of an upsert that need not be written did."""
        return not self.rows and not any(self.counts.values())

    @property
    def digest(self) -> str:
        """SHA-256 of everything the seal says, and so of what is sealed."""
        return fingerprint(msgspec.to_builtins(self))


class Compact(Seal, frozen=True, kw_only=True, tag="compact"):
    """The compact record of a generation: what its seal said, but for what it listed. A sweep removes its other records.

    It is put before the first record goes, and counts once the first seal is gone. Whoever asks whether and with what the key was
    committed finds the same as before; what needs the records themselves, as a replacement does, is refused.

    :param sealed: digest of the seal, which the reference of its stage has.
    :param attempts: ids of all attempts, by which files of the generation are known.
    """

    compacted_at: Moment
    sealed: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    attempts: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_MEMBERS)]

    def __post_init__(self) -> None:
        if self.manifests:
            raise ValueError("a compact record lists no files")

    @property
    def digest(self) -> str:
        """That of the seal, whose place it takes."""
        return self.sealed


def contents_of(plan: Plan, records: Iterable[Staged]) -> str:
    """SHA-256 of a plan and the records of its splits, whoever has read them."""
    digest = hashlib.sha256()
    for document in (plan, *records):
        digest.update(hashlib.sha256(msgspec.json.encode(document, order="deterministic")).digest())
    return digest.hexdigest()
