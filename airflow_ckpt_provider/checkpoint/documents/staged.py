"""What is done of a split: its files, or those of a piece of it, and the rows that were rejected."""

from __future__ import annotations

import functools
import operator

from airflow_ckpt_provider.checkpoint.bounds import CodeDigest, Count, Moment, Name, Sha256
from airflow_ckpt_provider.checkpoint.documents.parts import AnyPinned, JsonObject, Part, part_of
from airflow_ckpt_provider.checkpoint.encoding import Document


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
    :param input_rows: rows of the input that it stands for; None for a table split.
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
    :param ids: digest of the ids of the input's rows before ``end``, where rows have no numbers that last, as those of a bucket;
        see ``write.ordered``.
    """

    number: Count
    begin: Count
    end: Count
    last: bool
    ids: Sha256 | None = None
