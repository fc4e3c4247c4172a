"""Who reads the rows that a generation has staged for other tasks, and when nobody needs them any more.

A reader puts ``readers/<key hash>-g<generation>.json`` into the folder of what it reads, before its plan lists any file of it, and
looks for the tombstone after that. Whoever frees the rows puts the tombstone first and looks for readers after that, before it
removes anything. So at least one of the two sees the other: a reader that sees the tombstone does not begin, and rows of a reader
that is seen stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import Generation  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint, now
from airflow_ckpt_provider.checkpoint.documents import Part, ReadBy, part_of
from airflow_ckpt_provider.checkpoint.encoding import corrupt
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import DiscardedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_ckpt_provider.checkpoint.documents import Header, JsonObject
    from airflow_ckpt_provider.checkpoint.reference import Reference

#: Member of a header's ``source`` that says whose rows are read.
_STAGED = "staged"

#: Those that have such a source in them: of an ``Aggregate``, and of a frame transform.
GROUPED, OVER = "grouped", "over"


class ReadRows(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Whose rows are read, as a header has it.

    :param generation: None where the key stands for what was computed, and any generation of it holds that.
    :param sealed: digest of what was sealed; None as before.
    """

    key: str
    generation: Generation | None = None
    sealed: str | None = None


def described(references: Iterable[Reference]) -> JsonObject:
    """What a header says of a source that reads the rows of these."""
    read = [
        ReadRows(key=reference["idempotence_key"])
        if reference.get("reuse") == "content"
        else ReadRows(key=reference["idempotence_key"], generation=reference["generation"], sealed=reference["sealed"])
        for reference in references
    ]
    return {_STAGED: msgspec.to_builtins(read)}


def read_by(checkpoint: Checkpoint) -> Iterator[Checkpoint]:
    """The generations whose staged rows this one reads; not those of keys that stand for what was computed."""
    source = checkpoint.header.source
    for member in (GROUPED, OVER):
        if member in source:
            source = part_of(source[member], dict[str, Any], "source of the header")
    for read in part_of(source.get(_STAGED, []), list[ReadRows], "source of the header"):
        key = IdempotenceKey(read.key)
        if read.generation is not None and read.generation in Checkpoint.generations(checkpoint.store, key):
            yield Checkpoint.at(checkpoint.store, key, read.generation)


def begin_reading(read: Checkpoint, reader: Header) -> None:
    """Record that a generation reads what another one has staged.

    :param read: whose rows are read.
    :param reader: header of the generation that reads them.
    :raises DiscardedError: if they were removed, or are about to be.
    """
    name = read.paths.reader(IdempotenceKey(reader.key).hash, reader.generation)
    member = Checkpoint(read.store, reader).member
    read.store.create(name, ReadBy(reader=member, origin=reader.origin, begun_at=now()))
    require_readable(read)


def require_readable(read: Checkpoint) -> None:
    """Refuse rows that were removed, or are about to be.

    :raises DiscardedError: saying why, and how to have them again.
    """
    tombstone = read.discarded()
    if tombstone is None:
        return
    raise DiscardedError(
        f"The rows that were staged under the key {read.key.value!r} for the next task are not there any more: they were given up "
        f"at {tombstone.discarded_at:%Y-%m-%d %H:%M:%S} UTC ({tombstone.reason}). To have them computed again: "
        f"{how_to_restart(read.header)}, and after it this task."
    )


def readers_of(read: Checkpoint) -> list[ReadBy]:
    """All who have begun to read the rows of a generation.

    :raises CorruptObjectError: if a record is not of the reader that its name says.
    """
    names = read.store.names(read.paths.readers_folder)
    records = read.store.read_many(names, ReadBy)
    for name, record in zip(names, records, strict=True):
        if name != read.paths.reader(IdempotenceKey(record.reader.key).hash, record.reader.generation):
            raise corrupt(name, f"is about another reader, {record.reader.key!r}")
    return records


class Readers(NamedTuple):
    """The writes that have begun to read the rows of a generation, and how far they are, as the store says it at one moment.

    :param number: of all readers.
    :param going_on: keys of those that need the rows still: they have neither landed, nor were given up, nor have freed what they
        have made of the rows.
    :param used: whether anything came of the rows: a reader has landed, or its own rows were used. Others were only given up.
    """

    number: int
    going_on: list[str]
    used: bool

    @classmethod
    def of(cls, read: Checkpoint) -> Readers:
        """Those of a generation; they are in the same store."""
        going_on, used = list[str](), False
        records = readers_of(read)
        for record in records:
            reader = Checkpoint.at(read.store, IdempotenceKey(record.reader.key), record.reader.generation)
            landed = reader.committed() is not None
            tombstone = None if landed else reader.discarded()
            used |= landed or (tombstone is not None and tombstone.freed)
            if not landed and tombstone is None:
                going_on.append(record.reader.key)
        return cls(len(records), sorted(going_on), used)
