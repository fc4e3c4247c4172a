"""Finding a commit in a table's history (I1, I10), and commits of keys that the checkpoint store knows nothing of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import HistoryExpiredError, RolledBackError
from airflow_ckpt_provider.tables.iceberg.history import (
    MAIN,
    PROPERTY_PREFIX,
    commits_of,
    lineage_of,
    recall,
    remembered_commits_of,
    snapshot_id_of,
)
from airflow_ckpt_provider.tables.iceberg.surviving_files import has_surviving_files
from airflow_ckpt_provider.tables.state import Landed
from airflow_ckpt_provider.tables.summary import IDENTITY, key_trace, keys_of, not_ours, require_ours, traces_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from airflow_ckpt_provider.checkpoint.documents import Group, Member
    from airflow_ckpt_provider.tables.iceberg.history import RememberedCommit
    from airflow_ckpt_provider.tables.summary import Trace


def find(table: Table, branch: str, group: Group, identity: str | None, undone: Sequence[Member] = ()) -> Landed | None:
    """Look for the commit of a group in the table's history.

    :param identity: of members that it must be the commit of, if they are known; see ``tables.summary``.
    :param undone: the generations that the commit takes out of the table, if it is an undo.
    :returns: the commit, or None if it certainly did not land on this metadata.
    :raises HistoryExpiredError: if the history that could tell is gone (I10).
    :raises RolledBackError: if it landed and was taken off the branch.
    """
    metadata = table.metadata
    name, keys, snapshot_id = ".".join(table.name()), keys_of(group), snapshot_id_of(group.id)
    lineage = lineage_of(metadata, branch)
    snapshot = lineage.snapshots.get(snapshot_id)
    if snapshot is not None:
        landed = snapshot.summary[IDENTITY] if snapshot.summary else None
        require_ours(identity, landed, f"snapshot {snapshot.snapshot_id}", keys, name)
        return Landed(snapshot.snapshot_id, time_of(snapshot.timestamp_ms), landed_now=False)
    remembered = recall(metadata, group.id)
    # It is remembered at a place in history that is there to be seen, and not there: rolled back, and its snapshot expired.
    left_history = remembered is not None and remembered.sequence_number > lineage.reaches
    if left_history or metadata.snapshot_by_id(snapshot_id) is not None:
        raise RolledBackError(
            f"The commit {group.id} of {keys} is snapshot {snapshot_id} of {name}, which was rolled back: "
            f"it is no ancestor of {branch} any more. It is not committed again. To redo the write, run it under another "
            "idempotence key."
        )
    if remembered is not None:
        require_ours(identity, remembered.identity, f"snapshot {remembered.snapshot_id}", keys, name)
        if undone:
            _require_gone(table, branch, group, undone)
        else:
            _require_surviving_files(table, branch, group, remembered)
        return Landed(remembered.snapshot_id, time_of(remembered.timestamp_ms), landed_now=False)
    of_stream = remembered_commits_of(metadata, group.stream)
    horizon = group.horizon
    if lineage.reaches > horizon and (of_stream is None or of_stream.since > horizon):
        raise HistoryExpiredError(
            f"It cannot be told whether {keys} was committed to {name}: a commit was begun when the table stood at "
            f"sequence number {horizon}, the snapshots up to {lineage.reaches} are expired since, and the table property "
            f"{PROPERTY_PREFIX}{group.stream} does not reach back that far either. Nothing was changed. Look for the rows "
            "in the table; if they are there, mark the task as success, if not, run the write under another idempotence key."
        )
    return None


def _require_surviving_files(table: Table, branch: str, group: Group, remembered: RememberedCommit) -> None:
    """Refuse to say that a remembered commit is in the table, if neither its snapshot nor any file of it is there (I10)."""
    landed = {trace.key for trace in traces_in(remembered.identity)}
    # A member that was bound to another group has landed with that.
    members = [member for member in group.members if key_trace(member.key) in landed]
    if not has_surviving_files(table, head_of(table.metadata, branch), members):
        raise HistoryExpiredError(
            f"It cannot be told whether the rows of {keys_of(group)} are in {'.'.join(table.name())}: they were committed as "
            f"snapshot {remembered.snapshot_id}, which is expired since, and no file of them is in the table now. Either later "
            "writes or a compaction have taken those files, or the snapshot was rolled back before it expired. Nothing was "
            "changed. Look for the rows in the table; if they are there, mark the task as success, if not, run the write under "
            "another idempotence key."
        )


def _require_gone(table: Table, branch: str, group: Group, undone: Sequence[Member]) -> None:
    """Refuse to say that a remembered undo is in the table, if files that it took out are there: it has none of its own (I10)."""
    if has_surviving_files(table, head_of(table.metadata, branch), undone):
        raise RolledBackError(
            f"What {keys_of(group)} had committed to {'.'.join(table.name())} was undone, and files of it are in the table again: "
            "the undo was rolled back. Nothing was changed. Remove the rows with your query engine, and use another key."
        )


def require_unknown(table: Table, branch: str, keys: Mapping[str, str], known: AbstractSet[Trace]) -> None:
    """Refuse keys that the history shows as committed by a checkpoint that is not known; see ``TableState.require_unknown``.

    :param keys: by their traces.
    """
    for landed in commits_of(table.metadata, lineage_of(table.metadata, branch)):
        for trace in traces_in(landed.identity):
            if trace.key in keys and trace not in known:
                raise not_ours(f"the key {keys[trace.key]!r}", f"snapshot {landed.snapshot_id}", ".".join(table.name()))


def head_of(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """What a branch shows; one that does not exist yet begins where the main branch is, as in Iceberg's Java library."""
    return metadata.snapshot_by_name(branch if branch in metadata.refs else MAIN)


def time_of(timestamp_ms: int) -> datetime:
    """Iceberg's milliseconds as a time."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
