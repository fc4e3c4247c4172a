"""What there is to do: the splits of a round, and what a source or a mode pins beside them."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.bounds import Count, Moment, Name, Round
from airflow_ckpt_provider.checkpoint.documents.parts import AnyPinned, JsonObject, Part, part_of
from airflow_ckpt_provider.checkpoint.encoding import Document

#: Task of a split that the source reads, and of one that reads rejected rows again; all others are of table splits.
READ, AGAIN = "read", "again"


class Split(Part, frozen=True, kw_only=True):
    """A deterministic, addressable slice of the input.

    :param id: its name in the plan; sorts as text.
    :param bytes: input bytes, as far as the source knows them before reading.
    :param read: what the source, or the table for a table split, needs to read it again, and nothing else.
    :param task: ``READ`` if the source reads it; ``AGAIN`` for rows of another split that were rejected, see
        ``checkpoint.rejected``; else what a table split does, such as rewriting a file of the table.
    """

    id: Name
    bytes: Count
    read: JsonObject
    task: str = READ

    @property
    def is_input(self) -> bool:
        """True for a split that reads rows of the input, false for a table split."""
        return self.task in {READ, AGAIN}


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
    :param restaged: the round in which splits were last staged again, by their first ids; see ``checkpoint.restaged``.
    :param base: the table's snapshot that the round was planned on; None if it had none, or for work that does not depend on it.
    """

    created_at: Moment
    source: JsonObject
    splits: tuple[Split, ...]
    base: Count | None = None
    mode: JsonObject | None = None
    increment: Increment | None = None
    restaged: dict[str, Round] = {}  # noqa: RUF012 - msgspec copies it

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
