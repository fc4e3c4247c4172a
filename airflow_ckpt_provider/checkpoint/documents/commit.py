"""What becomes of a generation that is sealed: it lands with the members of its group, is read by others, or is given up."""

from __future__ import annotations

from typing import Annotated

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import MAX_MEMBERS, Count, Generation, Moment
from airflow_ckpt_provider.checkpoint.documents.header import Origin
from airflow_ckpt_provider.checkpoint.documents.parts import Part
from airflow_ckpt_provider.checkpoint.encoding import Document


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

    :param commit_id: id of the Iceberg snapshot, or number of the Lance version; None if there was nothing to write.
    """

    group: str
    commit_id: Count | None
    committed_at: Moment
    rows: Count


class ReadBy(Document, frozen=True, kw_only=True, tag="readby"):
    """A generation that reads the rows which another one has staged; put before its plan lists them.

    :param origin: the task that reads them.
    """

    reader: Member
    origin: Origin
    begun_at: Moment


class Tombstone(Document, frozen=True, kw_only=True, tag="discard"):
    """The tombstone of a discarded generation: it must not be committed any more, and its rows are not read any more.

    :param freed: whether its rows were for other tasks to read, and all of those were done.
    """

    discarded_at: Moment
    reason: str
    freed: bool = False
