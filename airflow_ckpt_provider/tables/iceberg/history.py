"""Finding a commit in a table's history, and leaving traces there that a later search finds (I1, I10).

Three traces are left in the same atomic commit: the snapshot id itself, derived from the commit group, so that the same
commit cannot be added twice; the group in the snapshot's summary, for people; and a table property per task, which stays
when snapshots are expired.

Decision: the property holds the last 64 commits of one task (a "stream"), not one property per commit, which would grow a
table's metadata for ever, and not only the last commit, which two concurrent runs of a task would overwrite. It is bounded in
bytes as well: a commit takes 16 for each of its members, and the oldest are forgotten first.

Decision: a commit that is remembered, and whose snapshot is expired, proves that the commit landed, and not that its rows are
still there: it may have been rolled back before history was cut. A file of it in the table proves that; see ``surviving_files``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from airflow_ckpt_provider.tables.decoding import decoded
from airflow_ckpt_provider.tables.summary import GROUP, IDENTITY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


#: The branch that Iceberg calls the current one.
MAIN = "main"

#: Prefix of the table properties that remember commits beyond the life of their snapshots; followed by the stream.
PROPERTY_PREFIX = "airflow.checkpoint.commits."

#: Commits that one such property remembers.
REMEMBERED = 64

#: Bytes that it may have, unless the last commit alone takes more: 256 KiB, three commits of 5,000 members. Catalogs that keep
#: properties in a service of their own take 500 KB at most.
LARGEST = 1 << 18

#: Bytes of a commit in the property without its identity, and of what is around the commits, at most.
_ENTRY, _FRAME = 128, 64


def snapshot_id_of(group_id: str) -> int:
    """Snapshot id of a commit group: 63 bits of its digest, never 0."""
    return int.from_bytes(hashlib.sha256(group_id.encode()).digest()[:8], "big") & 0x7FFF_FFFF_FFFF_FFFF or 1


class RememberedCommit(msgspec.Struct, frozen=True, array_like=True):
    """One commit in the property.

    :param timestamp_ms: time in milliseconds since 1970.
    :param identity: of the members; see ``tables.summary``.
    """

    group: str
    snapshot_id: int
    timestamp_ms: int
    sequence_number: int
    identity: str


class RememberedCommits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Value of the property.

    :param since: all commits of the stream with a sequence number above this one are listed.
    """

    since: int
    commits: tuple[RememberedCommit, ...]

    def find(self, group_id: str) -> RememberedCommit | None:
        """The commit of this group, if it is remembered."""
        return next((commit for commit in self.commits if commit.group == group_id), None)

    def adding(self, commit: RememberedCommit) -> RememberedCommits:
        """These with one more commit, and the oldest forgotten if it is full."""
        commits = (*self.commits, commit)
        kept = 0
        room = LARGEST - _FRAME
        for older in reversed(commits):
            room -= _ENTRY + len(older.identity)
            if kept and (room < 0 or kept == REMEMBERED):
                break
            kept += 1
        forgotten = commits[:-kept]
        return RememberedCommits(forgotten[-1].sequence_number if forgotten else self.since, commits[-kept:])


def remembered_commits_of(metadata: TableMetadata, stream: str) -> RememberedCommits | None:
    """What the table's property remembers of a stream; None if there is no such property.

    :raises CorruptObjectError: if somebody edited it.
    """
    text = metadata.properties.get(PROPERTY_PREFIX + stream)
    if text is None:
        return None
    remedy = "It guards against committing twice. Remove it: the next commit makes it anew from the table's history."
    return decoded(text, RememberedCommits, f"The table property {PROPERTY_PREFIX + stream}", remedy)


def recall(metadata: TableMetadata, group_id: str) -> RememberedCommit | None:
    """The commit of this group if any stream remembers it: a task may have been renamed, or many tasks share one commit.

    :raises CorruptObjectError: if somebody edited a property.
    """
    return next((commit for remembered in _all_remembered_commits(metadata) if (commit := remembered.find(group_id))), None)


def _all_remembered_commits(metadata: TableMetadata) -> Iterator[RememberedCommits]:
    """What all streams remember."""
    for name in metadata.properties:
        if (
            name.startswith(PROPERTY_PREFIX)
            and (remembered := remembered_commits_of(metadata, name.removeprefix(PROPERTY_PREFIX))) is not None
        ):
            yield remembered


def commits_of(metadata: TableMetadata, lineage: Lineage) -> Iterator[RememberedCommit]:
    """Commits of checkpoints that a branch shows, and those that it may show in the part of its history that is expired.

    :raises CorruptObjectError: if somebody edited a property.
    """
    yield from _shown(lineage)
    for remembered in _all_remembered_commits(metadata):
        # A later one that is not in the lineage was rolled back, or landed on another branch.
        yield from (commit for commit in remembered.commits if commit.sequence_number <= lineage.reaches)


def begin_remembering(lineage: Lineage) -> RememberedCommits:
    """What a stream remembers before its first commit.

    Decision: a stream without a property may have lost it, removed by somebody who tidied up. So it claims to be complete only
    as far back as the lineage reaches, and takes up the commits of all streams that are found there.
    """
    remembered = RememberedCommits(lineage.reaches, ())
    for commit in reversed(list(_shown(lineage))):
        remembered = remembered.adding(commit)
    return remembered


def _shown(lineage: Lineage) -> Iterator[RememberedCommit]:
    """The commits in a lineage, the newest first."""
    for snapshot in lineage.snapshots.values():
        if snapshot.summary and (group_id := snapshot.summary[GROUP]):
            identity = snapshot.summary[IDENTITY] or ""
            yield RememberedCommit(group_id, snapshot.snapshot_id, snapshot.timestamp_ms, snapshot.sequence_number or 0, identity)


class Lineage(NamedTuple):
    """The ancestors of a branch's head that are still there, and how far back they reach.

    :param reaches: every commit of the branch with a sequence number above this one is among them.
    """

    snapshots: dict[int, Snapshot]
    reaches: int


def lineage_of(metadata: TableMetadata, branch: str) -> Lineage:
    """Walk the branch from its head to the oldest snapshot that was not expired."""
    # A dictionary: pyiceberg's own ancestors_of() looks each parent up in a list, which is quadratic.
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    # A branch that does not exist yet will begin where the main branch is.
    ref = metadata.refs.get(branch) or metadata.refs.get(MAIN)
    snapshot = by_id.get(ref.snapshot_id) if ref else None
    ancestors: dict[int, Snapshot] = {}
    # Ids are met once, unless somebody edited the metadata so that a snapshot is its own ancestor.
    while snapshot is not None and snapshot.snapshot_id not in ancestors:
        ancestors[snapshot.snapshot_id] = snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = by_id.get(parent) if parent is not None else None
    if not ancestors:
        return Lineage(ancestors, metadata.last_sequence_number)  # type: ignore[union-attr]  # version 1 is refused on loading
    # Expiry removes the parent of the oldest survivor, or only its id from it: what came before it is not known.
    oldest = next(reversed(ancestors.values()))
    return Lineage(ancestors, (oldest.sequence_number or 1) - 1)
