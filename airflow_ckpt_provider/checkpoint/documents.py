"""What is written into the store: strict, versioned JSON documents. No pickle, no secret, no code (I9).

Each document is one JSON object on one line whose last member is the SHA-256 of what precedes it, so that a truncated or
altered object is noticed (I7) instead of being read as something else. Unknown members are refused. Golden files in the
tests fix every byte: changing a document is a breaking change and is noted under "Stored formats" in the changelog.

Decision: one format version for all documents. They are written together by one provider version, and a reader needs to
know only one number to say "this store is newer than I am".
"""

from __future__ import annotations

import functools
import hashlib
import operator
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import (  # msgspec reads the annotations of its structs at run time
    MAX_MEMBERS,
    CodeDigest,  # noqa: TC001
    Count,  # noqa: TC001
    Generation,  # noqa: TC001
    Moment,  # noqa: TC001
    Name,  # noqa: TC001
    Number,  # noqa: TC001
    Round,  # noqa: TC001
    Sha256,  # noqa: TC001
)
from airflow_ckpt_provider.checkpoint.encoding import FORMAT_VERSION, Document, from_json, to_json  # noqa: F401 - they belong to what is here
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError

if TYPE_CHECKING:
    from collections.abc import Iterable

AnyPart = TypeVar("AnyPart")

#: Task of a split that the source reads, and of one that reads rejected rows again; all others are the table's own work.
READ, AGAIN = "read", "again"

JsonObject = dict[str, object]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of what documents are made of. There are many of them, and none is part of a cycle."""


class TableBinding(Part, frozen=True, kw_only=True):
    """Which table a key is bound to, by identity and not only by name.

    :param format: ``iceberg`` or ``lance``.
    :param identifier: name in the catalog, or URI.
    :param uuid: the table's own identity.
    :param branch: branch that the commit lands on.
    :param schema_id: schema that all attempts write with, even if the table evolves meanwhile.
    :param spec_id: partition spec that all attempts write with.
    :param schema_fingerprint: SHA-256 of that schema.
    :param creation: metadata of a table that the commit is to create, in the format's own terms; None for one that exists.
    :param base: what else tells the table from another of its name, for formats without an identity; it is no part of what binds.
    """

    format: str
    identifier: str
    uuid: str
    branch: str
    schema_id: Number
    spec_id: Number
    schema_fingerprint: str
    creation: JsonObject | None = None
    base: JsonObject | None = None


class Origin(Part, frozen=True, kw_only=True):
    """Where a write comes from, in the orchestrator's words."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: Number


class Connections(Part, frozen=True, kw_only=True):
    """Ids of the Airflow connections of the stage: ids, never what is behind them (I9)."""

    table: str
    spark: str
    checkpoint: str


class Header(Document, frozen=True, kw_only=True, tag="header"):
    """What a generation of a key is bound to (I6).

    :param parameters: what the mode was told, such as the keys of an upsert.
    :param source: what is read, as the user wrote it.
    :param source_fingerprint: SHA-256 over everything that changes which rows are read.
    :param transform: name of the transform, empty for none.
    :param transform_fingerprint: SHA-256 over its code and what it uses, empty for none.
    :param transform_version: what the user says instead of the fingerprint, which is empty then; None if they do not.
    :param transform_kind: what kind of transform it is, with the types of what it returns as far as it says; empty for none.
    :param restart_token: the explicit restart that opened this generation, if one did.
    :param replaces: the committed generation whose files the commit of this one removes, if it is to replace one.
    """

    key: str
    generation: Generation
    created_at: Moment
    table: TableBinding
    mode: str
    parameters: JsonObject
    source: JsonObject
    source_fingerprint: str
    transform: str
    transform_fingerprint: str
    connections: Connections
    origin: Origin
    restart_token: str | None = None
    replaces: Generation | None = None
    transform_version: str | None = None
    transform_kind: str = ""

    def __post_init__(self) -> None:
        if self.replaces is not None and self.replaces >= self.generation:
            raise ValueError(f"generation {self.generation} cannot replace generation {self.replaces}: only an earlier one")

    @property
    def digest(self) -> str:
        """SHA-256 of everything the header says; what a later version adds and this write does not use leaves it as it is."""
        facts: JsonObject = msgspec.to_builtins(self)
        return fingerprint({name: _said(value) if isinstance(value, dict) else value for name, value in _said(facts).items()})

    @property
    def code(self) -> str:
        """Digest of the transform's code; see ``code_of``."""
        return code_of(self.transform_fingerprint, self.transform_version)

    @property
    def stream(self) -> str:
        """All writes of one task to one branch: 16 hex digits that stand for them. See ``Group.stream``.

        Of one branch, because a commit is safe against others on its own branch only, and its history tells of no other.
        """
        facts = [self.origin.dag_id, self.origin.task_id, self.table.branch]
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]

    def differences(self, other: Header) -> list[str]:
        """What binds this header and not ``other``, one readable line each; empty if they agree."""
        pairs = [
            ("table", self.table.identifier, other.table.identifier),
            ("table format", self.table.format, other.table.format),
            ("table uuid", self.table.uuid, other.table.uuid),
            ("branch", self.table.branch, other.table.branch),
            ("mode", self.mode, other.mode),
            ("connection of the table", self.connections.table, other.connections.table),
            ("connection of the checkpoint store", self.connections.checkpoint, other.connections.checkpoint),
        ]
        names = sorted(self.parameters.keys() | other.parameters.keys())
        pairs += [(name, self.parameters.get(name), other.parameters.get(name)) for name in names]  # type: ignore[misc]
        lines = [f"{what}: was {mine!r}, is now {theirs!r}" for what, mine, theirs in pairs if mine != theirs]
        if self.source_fingerprint != other.source_fingerprint:
            lines.append(f"source: was {_brief(self.source)}, is now {_brief(other.source)}")
        if self.transform_version != other.transform_version:
            lines.append(f"transform_version: was {self.transform_version!r}, is now {other.transform_version!r}")
        elif self.transform_fingerprint != other.transform_fingerprint:
            was, now = self.transform or "none", other.transform or "none"
            lines.append(f"transform: was {was}, is now {now}" + (" with other code" if was == now else ""))
        return lines

    def differs_in_code_only(self, other: Header) -> bool:
        """Whether ``other`` has a transform of other code, and all else that binds a write is as it is here."""
        same_code = msgspec.structs.replace(
            other,
            transform=self.transform,
            transform_fingerprint=self.transform_fingerprint,
            transform_version=self.transform_version,
        )
        return bool(self.transform and other.transform) and self.code != other.code and not self.differences(same_code)


class Code(Document, frozen=True, kw_only=True, tag="code"):
    """Other code than the header's with which a generation is gone on with; what was staged before stays staged.

    :param transform: name of the transform.
    :param fingerprint: SHA-256 over its code and what it uses; empty where a version says it.
    :param version: what the user says instead of the fingerprint; None if they do not.
    :param request: number of the request that it serves; None if its stage is set to go on.
    """

    transform: str
    fingerprint: str
    version: str | None
    accepted_at: Moment
    request: Count | None = None


class Continue(Document, frozen=True, kw_only=True, tag="continue"):
    """A request to go on with a generation under the code that its next attempt has. It is served once."""

    requested_at: Moment
    requested_by: str


class Split(Part, frozen=True, kw_only=True):
    """A deterministic, addressable slice of the input.

    :param id: its name in the plan; sorts as text.
    :param bytes: input bytes, as far as the source knows them before reading.
    :param read: what the source, or the table for work of its own, needs to read it again, and nothing else.
    :param task: ``READ`` if the source reads it; ``AGAIN`` for rows of another split that were rejected, see
        ``checkpoint.rejected``; else the name of the table's own work, such as rewriting one of its files.
    """

    id: Name
    bytes: Count
    read: JsonObject
    task: str = READ

    @property
    def is_input(self) -> bool:
        """Whether the split reads rows of the input, and does no work of the table's own."""
        return self.task in {READ, AGAIN}


class Pinned(Part, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of what a source, or a mode, keeps for later: in a plan beside the splits, or in the record of a split.

    Each is a struct of its own, and is stored with its kind.
    """

    def to_json(self) -> JsonObject:
        """As a plan or a record stores it."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


AnyPinned = TypeVar("AnyPinned", bound=Pinned)


class Increment(Part, frozen=True, kw_only=True, rename={"begin": "from", "end": "to"}):
    """The part of a growing source that a plan reads: what came after one watermark, up to another.

    :param begin: the watermark of the task's last commit, in the source's own terms; None for the source's beginning.
    :param end: the watermark that the commit of this plan sets.
    :param consumer: the task, and the source that it reads; see ``tables.watermarks``.
    """

    begin: JsonObject | None
    end: JsonObject
    consumer: str = ""


class Plan(Document, frozen=True, kw_only=True, tag="plan"):
    """The pinned list of splits of one round.

    Most writes have one round. A write whose later splits depend on what earlier ones found has more; each round lists all
    splits that make up the write as far as it is known then, staged ones too.

    :param source: what the source has pinned; see ``Pinned``.
    :param mode: what the mode has pinned; None if it pins nothing.
    :param increment: of a source that is read increment by increment.
    :param anew: the round in which splits were last staged once more, by their first ids; see ``checkpoint.anew``.
    :param base: the table's snapshot that the round was planned on; None if it had none, or for work that does not depend on it.
    """

    created_at: Moment
    source: JsonObject
    splits: tuple[Split, ...]
    base: Count | None = None
    mode: JsonObject | None = None
    increment: Increment | None = None
    anew: dict[str, Round] = {}  # noqa: RUF012 - msgspec copies it

    def source_as(self, kind: type[AnyPinned]) -> AnyPinned:
        """The member ``source``, as the struct that the source has pinned.

        :raises CorruptObjectError: if the store holds a struct of another kind: no writer of ours puts that there.
        """
        return part_of(self.source, kind, "source of a plan")

    def mode_as(self, kind: type[AnyPinned]) -> AnyPinned | None:
        """The member ``mode``, as the struct that the mode has pinned; None for a mode that pins nothing.

        :raises CorruptObjectError: as ``source_as``.
        """
        return None if self.mode is None else part_of(self.mode, kind, "mode of a plan")


class Attempt(Document, frozen=True, kw_only=True, tag="attempt"):
    """One execution: who tried, when and where. Its id is in the name of every file it may write (I4)."""

    id: Name
    started_at: Moment
    origin: Origin
    try_number: Count
    host: str
    pid: Count
    engine: str


class StagedFile(Part, frozen=True, array_like=True):
    """One data file: path and size in bytes. Stored as a pair."""

    path: str
    bytes: Count


class RejectedFile(Part, frozen=True, array_like=True):
    """A file in the store with rows of a split's input at which the transform failed. Its name says split and writer.

    :param sha256: of the file.
    """

    split: Name
    writer: Name
    rows: Count
    bytes: Count
    sha256: Sha256


class Staged(Document, frozen=True, kw_only=True, tag="staged"):
    """The published record of one written split (I3).

    :param writer: attempt and Spark task attempt that wrote it, as in the file names.
    :param rows: rows that the transform produced, counted while they passed.
    :param bytes: bytes of the data files.
    :param manifest: the table format's own record of the files; None if the split has no rows.
    :param replaces: data files whose place this split's files take: of the table, which the commit removes, or staged ones, which
        do not land.
    :param counts: what became of the rows, for modes that distinguish: ``inserted``, ``updated``, ``unchanged``, ``ignored``.
    :param intermediate: what later rounds of the write read, and what never becomes part of the table; see ``Pinned``.
    :param missing: columns of the table that rows of the split did not have, and that are null in them.
    :param computed_by: digests of the code that has computed the rows, in their order; empty for that of the header.
    :param input_rows: rows of the input that it stands for; None for the table's own work.
    :param rejected: those of them at which the transform failed, and that are not among ``rows``.
    """

    split: Name
    writer: str
    published_at: Moment
    rows: Count
    bytes: Count
    files: tuple[StagedFile, ...]
    manifest: JsonObject | None
    replaces: tuple[str, ...] = ()
    counts: dict[str, Count] = {}  # noqa: RUF012 - msgspec copies it
    intermediate: JsonObject | None = None
    missing: tuple[str, ...] = ()
    computed_by: tuple[CodeDigest, ...] = ()
    input_rows: Count | None = None
    rejected: tuple[RejectedFile, ...] = ()

    @property
    def rejects_its_own(self) -> bool:
        """Whether the record names rejected rows of its own split only, each file once."""
        return all(file.split == self.split for file in self.rejected) and len({*self.rejected}) == len(self.rejected)

    def intermediate_as(self, *kinds: type[AnyPinned]) -> AnyPinned | None:
        """The member ``intermediate``, as the struct that the split's writer has recorded; None if it has recorded none.

        :raises CorruptObjectError: if the store holds a struct of none of these kinds: no writer of ours puts that there.
        """
        if self.intermediate is None:
            return None
        kind: type[AnyPinned] = functools.reduce(operator.or_, kinds)
        return part_of(self.intermediate, kind, f"intermediate of the record of the split {self.split}")


class Piece(Staged, frozen=True, kw_only=True, tag="piece"):
    """The record of a piece: files of a split that were closed before the split ended, so that a later attempt goes on behind it.

    Until the split is staged, its pieces in their order are what is there of it. Then they are not needed any more.

    :param number: of the piece in its split, counted from 0.
    :param begin: the row of the split's input at which it begins, counted from 0.
    :param end: the row of the input behind its last one. Rows of the input may have yielded any number of rows, or none.
    :param last: whether the input ends there.
    """

    number: Count
    begin: Count
    end: Count
    last: bool


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
        """Whether no row came in. Rows of an upsert that need not be written did."""
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


class Member(Part, frozen=True, kw_only=True, order=True):
    """One generation of one key, as part of a commit group."""

    key: str
    generation: Generation


class Group(Document, frozen=True, kw_only=True, tag="group"):
    """The commit that a generation belongs to; put before the table is touched.

    :param id: digest of the members; the snapshot id is derived from it.
    :param members: all who are meant to land together; stored here only if it is one.
    :param listed_by: the member in whose folder the list of several is stored, once and not with each of them; see ``Members``.
    :param stream: whose memory, beside the table's history, remembers the commit: the stream of the first member.
    :param horizon: the table's last sequence number then. History that reaches back to it can disprove a commit (I10).
    """

    id: str
    members: Annotated[tuple[Member, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
    stream: str
    bound_at: Moment
    horizon: Count
    listed_by: Member | None = None

    def __post_init__(self) -> None:
        if not self.members and self.listed_by is None:
            raise ValueError("a group has members, or says who lists them")


class Members(Document, frozen=True, kw_only=True, tag="members"):
    """The members of a commit group, which are to land together. The list is put before any member is bound to the group."""

    members: Annotated[tuple[Member, ...], msgspec.Meta(min_length=2, max_length=MAX_MEMBERS)]


class Commit(Document, frozen=True, kw_only=True, tag="commit"):
    """The commit as the table's own history shows it.

    :param snapshot_id: Iceberg snapshot; None if there was nothing to write.
    """

    group: str
    snapshot_id: Count | None
    committed_at: Moment
    rows: Count


class ReadBy(Document, frozen=True, kw_only=True, tag="readby"):
    """A generation that reads the rows which another one has staged; put before its plan lists them.

    :param origin: the task that reads them.
    """

    reader: Member
    origin: Origin
    begun_at: Moment


class Discard(Document, frozen=True, kw_only=True, tag="discard"):
    """Tombstone: this generation must not be committed any more, and its rows are not read any more.

    :param freed: whether its rows were for other tasks to read, and all of those were done.
    """

    discarded_at: Moment
    reason: str
    freed: bool = False


def code_of(fingerprint_of_code: str, version: str | None) -> str:
    """What stands for the code of a transform: 16 hex digits of its fingerprint, or of what the user says in its place."""
    return fingerprint([fingerprint_of_code, version])[:16]


def contents_of(plan: Plan, records: Iterable[Staged]) -> str:
    """SHA-256 of a plan and the records of its splits, whoever has read them."""
    digest = hashlib.sha256()
    for document in (plan, *records):
        digest.update(hashlib.sha256(msgspec.json.encode(document, order="deterministic")).digest())
    return digest.hexdigest()


def part_of(value: object, kind: type[AnyPart], where: str = "") -> AnyPart:
    """A free-form member of a document, such as what a split reads, as what it was when it was stored.

    :param where: the member, such as ``table.base of the header``.
    :raises CorruptObjectError: if it is nothing of that kind: no writer of ours puts that there (I7).
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        name = getattr(kind, "__name__", str(kind))
        what = f"The member {where}" if where else f"A record, a {name.lower()},"
        raise CorruptObjectError(
            f"{what} in the checkpoint store cannot be read ({error}). The store was altered, or another "
            f"version wrote it; nothing was changed. Redo the write: {how_to_restart()}."
        ) from error


def _said(facts: JsonObject) -> JsonObject:
    """The members that are not None."""
    return {name: value for name, value in facts.items() if value is not None}


def _brief(value: JsonObject) -> str:
    return msgspec.json.encode(value).decode()


def fingerprint(value: object) -> str:
    """SHA-256 of a JSON-able value, independent of the order of its members."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
