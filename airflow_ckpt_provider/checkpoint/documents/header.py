"""What a generation is bound to: its table, its source, its code, and the task that it comes from."""

from __future__ import annotations

import hashlib

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import Generation, Moment, Number
from airflow_ckpt_provider.checkpoint.documents.parts import JsonObject, Part, fingerprint
from airflow_ckpt_provider.checkpoint.encoding import Document


class TableBinding(Part, frozen=True, kw_only=True):
    """The table that a key is bound to, by identity and not only by name.

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
    """The task instance that a write comes from, in the orchestrator's words."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: Number


class Connections(Part, frozen=True, kw_only=True):
    """Ids of the Airflow connections of the stage: ids, never what is behind them (I9)."""

    table: str
    spark: str
    checkpoint: str


#: The mode of a generation that takes out what an earlier one of its key has landed. No stage has it.
UNDO = "undo"


class Header(Document, frozen=True, kw_only=True, tag="header"):
    """Everything that a generation of a key is bound to (I6).

    :param parameters: what the mode was told, such as the keys of an upsert.
    :param source: what is read, as the user wrote it.
    :param source_fingerprint: SHA-256 over everything that changes which rows are read.
    :param transform: name of the transform, empty for none.
    :param transform_fingerprint: SHA-256 over its code and what it uses, empty for none.
    :param transform_version: what the user says instead of the fingerprint, which is empty then; None if they do not.
    :param transform_kind: what kind of transform it is, with the types of what it returns as far as it says; empty for none.
    :param restart_token: the explicit restart that opened this generation, if one did.
    :param replaces: the committed generation whose files the commit of this one removes, if it is to replace or to undo one.
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
    def undoes(self) -> int | None:
        """The committed generation that this one takes out of the table; None if it is no undo."""
        return self.replaces if self.mode == UNDO else None

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
        """Differences of ``other`` to what binds this header, one readable line each; empty if they agree."""
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
        """True if the transform of ``other`` has other code, and all else that binds a write is as it is here."""
        same_code = msgspec.structs.replace(
            other,
            transform=self.transform,
            transform_fingerprint=self.transform_fingerprint,
            transform_version=self.transform_version,
        )
        return bool(self.transform and other.transform) and self.code != other.code and not self.differences(same_code)


def code_of(fingerprint_of_code: str, version: str | None) -> str:
    """The digest that stands for the code of a transform: 16 hex digits, of its fingerprint or of what the user says instead."""
    return fingerprint([fingerprint_of_code, version])[:16]


def _said(facts: JsonObject) -> JsonObject:
    """The members that are not None."""
    return {name: value for name, value in facts.items() if value is not None}


def _brief(value: JsonObject) -> str:
    return msgspec.json.encode(value).decode()
