"""One atomic Iceberg commit, exactly once: load, look, build on that very base, compare-and-swap, and on any error look again.

Never handed to ``Transaction.commit_transaction``: it refreshes, rebuilds and retries by itself without a look at the
history (eight racers with one key make three to eight snapshots), and with its retries switched off it deletes the manifests
of a commit whose reply was lost.

Why it is exactly once:

- the requirement on the branch's head makes the swap succeed only on the base that was searched for the group;
- an error, whatever it says, is followed by a new load and a new search; a conflict is no proof of absence, because a client
  that resends after a lost reply reports a conflict with our own commit;
- a request that is still under way in the catalog carries its old base: it lands and is found, or our own commit moved the
  head and it fails;
- the snapshot id is derived from the group, so that even after a roll-back to an old base it cannot be added twice.
"""

from __future__ import annotations

import itertools
import uuid
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from airflow_ckpt_provider.exceptions import (
    HistoryExpiredError,
    RolledBackError,
    RowCountError,
)
from airflow_ckpt_provider.tables.iceberg.clock import timestamp_after
from airflow_ckpt_provider.tables.iceberg.creation import birth
from airflow_ckpt_provider.tables.iceberg.history import (
    MAIN,
    PROPERTY_PREFIX,
    Remembered,
    begin_memory,
    commits_of,
    lineage_of,
    memory_of,
    recall,
    snapshot_id_of,
)
from airflow_ckpt_provider.tables.iceberg.manifest import to_manifest_file
from airflow_ckpt_provider.tables.iceberg.marks import remembering
from airflow_ckpt_provider.tables.iceberg.names import avro_codec
from airflow_ckpt_provider.tables.iceberg.refusals import refusal
from airflow_ckpt_provider.tables.iceberg.remains import remain
from airflow_ckpt_provider.tables.iceberg.removal import remove
from airflow_ckpt_provider.tables.once import keys_of, land
from airflow_ckpt_provider.tables.protocol import Landed
from airflow_ckpt_provider.tables.summary import IDENTITY, key_trace, not_ours, require_ours, summary_of, traces_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from airflow_ckpt_provider.checkpoint.documents import Group
    from airflow_ckpt_provider.tables.iceberg.cover import Removal
    from airflow_ckpt_provider.tables.iceberg.manifest import StagedManifest
    from airflow_ckpt_provider.tables.summary import Trace


class Commit(NamedTuple):
    """What is to be committed.

    :param identity: of all members; of those that are looked for, where nothing is to be committed; see ``tables.summary``.
    :param manifests: all staged manifests of the group.
    :param removals: what the snapshot removes from the table, found on the base that it is built on.
    :param marks: how far sources were read, by name; stands in the snapshot's summary and is remembered in table properties.
    """

    group: Group
    branch: str
    identity: str | None
    manifests: Sequence[StagedManifest] = ()
    removals: Callable[[Table], Sequence[Removal]] = lambda _: ()
    marks: Mapping[str, str] = MappingProxyType({})

    @property
    def snapshot_id(self) -> int:
        return snapshot_id_of(self.group.id)

    @property
    def keys(self) -> str:
        """Its keys, for messages."""
        return keys_of(self.group)


def find(table: Table, commit: Commit) -> Landed | None:
    """Look for the group in the table's history.

    :returns: the commit, or None if it certainly did not land on this metadata.
    :raises HistoryExpiredError: if the history that could tell is gone (I10).
    :raises RolledBackError: if it landed and was taken off the branch.
    """
    metadata = table.metadata
    name = ".".join(table.name())
    lineage = lineage_of(metadata, commit.branch)
    snapshot = lineage.snapshots.get(commit.snapshot_id)
    if snapshot is not None:
        landed = snapshot.summary[IDENTITY] if snapshot.summary else None
        require_ours(commit.identity, landed, f"snapshot {snapshot.snapshot_id}", commit.keys, name)
        return Landed(snapshot.snapshot_id, _time(snapshot.timestamp_ms), landed_now=False)
    remembered = recall(metadata, commit.group.id)
    # Remembered at a place in history that is there to be seen, and not there: rolled back, and its snapshot expired.
    gone = remembered is not None and remembered.sequence_number > lineage.reaches
    if gone or metadata.snapshot_by_id(commit.snapshot_id) is not None:
        raise RolledBackError(
            f"The commit {commit.group.id} of {commit.keys} is snapshot {commit.snapshot_id} of {name}, which was rolled back: "
            f"it is no ancestor of {commit.branch} any more. It is not committed again. To redo the write, run it under another "
            "idempotence key."
        )
    if remembered is not None:
        require_ours(commit.identity, remembered.identity, f"snapshot {remembered.snapshot_id}", commit.keys, name)
        _require_remains(table, commit, remembered)
        return Landed(remembered.snapshot_id, _time(remembered.timestamp_ms), landed_now=False)
    memory = memory_of(metadata, commit.group.stream)
    horizon = commit.group.horizon
    if lineage.reaches > horizon and (memory is None or memory.since > horizon):
        raise HistoryExpiredError(
            f"It cannot be told whether {commit.keys} was committed to {name}: a commit was begun when the table stood at "
            f"sequence number {horizon}, the snapshots up to {lineage.reaches} are expired since, and the table property "
            f"{PROPERTY_PREFIX}{commit.group.stream} does not reach back that far either. Nothing was changed. Look for the rows "
            "in the table; if they are there, mark the task as success, if not, run the write under another idempotence key."
        )
    return None


def _require_remains(table: Table, commit: Commit, remembered: Remembered) -> None:
    """Refuse to say that a remembered commit is in the table, if neither its snapshot nor any file of it is there (I10)."""
    landed = {trace.key for trace in traces_in(remembered.identity)}
    # A member that was bound to another group has landed with that.
    members = [member for member in commit.group.members if key_trace(member.key) in landed]
    if not remain(table, head_of(table.metadata, commit.branch), members):
        raise HistoryExpiredError(
            f"It cannot be told whether the rows of {commit.keys} are in {'.'.join(table.name())}: they were committed as snapshot "
            f"{remembered.snapshot_id}, which is expired since, and no file of them is in the table now. Either later writes or a "
            "compaction have taken those files, or the snapshot was rolled back before it expired. Nothing was changed. Look for "
            "the rows in the table; if they are there, mark the task as success, if not, run the write under another idempotence "
            "key."
        )


def require_unknown(table: Table, branch: str, keys: Mapping[str, str], known: AbstractSet[Trace]) -> None:
    """Refuse keys that the table's history shows as committed by a checkpoint that is not known; see ``Table.require_unknown``.

    :param keys: by their traces.
    """
    for landed in commits_of(table.metadata, lineage_of(table.metadata, branch)):
        for trace in traces_in(landed.identity):
            if trace.key in keys and trace not in known:
                raise not_ours(f"the key {keys[trace.key]!r}", f"snapshot {landed.snapshot_id}", ".".join(table.name()))


def commit_once(
    catalog: Catalog,
    load: Callable[[], Table],
    name: str,
    commit: Commit,
    before_swap: Callable[[Table], None],
    base: Table | None = None,
) -> Landed:
    """Land ``commit`` in one snapshot, or find that it has landed.

    :param load: loads the table as it is now, and checks that it is still the same table.
    :param name: of the table, for messages.
    :param before_swap: last checks on the base that the swap is made on; raises to stop.
    :param base: the table as it was loaded a moment ago, for the first try: a later one was committed to meanwhile, and then
        the swap fails and the next try loads it.
    :raises OutcomeUnknownError: if the catalog gave no usable answer for a long time.
    """

    def swap(number: int) -> Landed | Exception:
        return _try(catalog, base if base is not None and number == 1 else load(), commit, before_swap)

    return land(swap, lambda: find(load(), commit), f"{commit.keys} to {name}", refusal)


def _try(catalog: Catalog, table: Table, commit: Commit, before_swap: Callable[[Table], None]) -> Landed | Exception:
    """Find the commit on this base or swap it in; what the catalog raised if it did not say yes."""
    landed = find(table, commit)
    if landed is not None:
        return landed
    before_swap(table)
    updates, requirements, timestamp_ms = build(table, commit)
    try:
        reply = catalog.commit_table(table, requirements, updates)
    except Exception as error:  # noqa: BLE001 - whatever it is, only the table's history knows the outcome
        return error
    return _verified(reply.metadata, ".".join(table.name()), commit, timestamp_ms)


def build(table: Table, commit: Commit) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...], int]:
    """Updates and requirements of the snapshot on exactly the metadata of ``table``; writes the manifest list."""
    from pyiceberg.table import StagedTable
    from pyiceberg.table.update import (
        AddSnapshotUpdate,
        AssertCreate,
        AssertCurrentSchemaId,
        AssertRefSnapshotId,
        AssertTableUUID,
        SetPropertiesUpdate,
        SetSnapshotRefUpdate,
    )

    metadata = table.metadata
    snapshot = _snapshot(table, commit)
    memory = memory_of(metadata, commit.group.stream) or begin_memory(lineage_of(metadata, commit.branch))
    sequence_number = snapshot.sequence_number or 0
    memory = memory.adding(
        Remembered(commit.group.id, commit.snapshot_id, snapshot.timestamp_ms, sequence_number, commit.identity or "")
    )
    properties = {PROPERTY_PREFIX + commit.group.stream: msgspec.json.encode(memory).decode()}
    properties |= remembering(commit.marks, sequence_number)
    updates: tuple[TableUpdate, ...] = (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(snapshot_id=commit.snapshot_id, ref_name=commit.branch, type="branch"),  # type: ignore[call-arg]
        SetPropertiesUpdate(updates=properties),
    )
    if isinstance(table, StagedTable):
        return (*birth(metadata), *updates), (AssertCreate(),), snapshot.timestamp_ms
    ref = metadata.refs.get(commit.branch)
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=commit.branch, snapshot_id=ref.snapshot_id if ref else None),
        # The rows were checked against this schema.
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
    )
    return updates, requirements, snapshot.timestamp_ms


def head_of(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """What a branch shows; one that does not exist yet begins where the main branch is, as in Iceberg's Java library."""
    return metadata.snapshot_by_name(branch if branch in metadata.refs else MAIN)


def _snapshot(table: Table, commit: Commit) -> Snapshot:
    from pyiceberg.manifest import write_manifest_list
    from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries

    metadata = table.metadata
    parent = head_of(metadata, commit.branch)
    sequence_number = metadata.next_sequence_number()
    places = table.location_provider()
    name = f"{commit.group.id[:20]}-{uuid.uuid4()}"
    numbers = itertools.count()
    removed = remove(
        metadata, table.io, parent, commit.removals(table), commit.snapshot_id,
        lambda: places.new_metadata_location(f"{name}-m{next(numbers)}.avro"),
    )  # fmt: skip
    added = [to_manifest_file(manifest, commit.snapshot_id) for manifest in commit.manifests]
    path = places.new_metadata_location(f"snap-{commit.snapshot_id}-{name}.avro")
    parent_id = parent.snapshot_id if parent else None
    codec = avro_codec(metadata.properties, ".".join(table.name()))
    with write_manifest_list(2, table.io.new_output(path), commit.snapshot_id, parent_id, sequence_number, codec) as writer:  # type: ignore[arg-type]
        writer.add_manifests(added + removed.manifests)
    facts = {
        "added-data-files": sum(manifest.files for manifest in commit.manifests),
        "added-records": sum(manifest.rows for manifest in commit.manifests),
        "added-files-size": sum(manifest.bytes for manifest in commit.manifests),
        **removed.facts,
        "changed-partition-count": len({p for manifest in commit.manifests for p in manifest.partitions} | removed.partitions),
    }
    own = {name: str(value) for name, value in facts.items() if value or name == "added-records"}
    own |= {**commit.marks, **summary_of(commit.group, commit.identity)}
    return Snapshot(
        snapshot_id=commit.snapshot_id,
        parent_snapshot_id=parent_id,
        manifest_list=path,
        sequence_number=sequence_number,
        timestamp_ms=timestamp_after(metadata),
        summary=update_snapshot_summaries(
            Summary(operation=Operation.OVERWRITE if removed.facts else Operation.APPEND, **own),
            parent.summary if parent else None,
        ),
        schema_id=metadata.current_schema_id,
    )


def _verified(metadata: TableMetadata, name: str, commit: Commit, timestamp_ms: int) -> Landed:
    """The commit as the catalog's reply shows it (I2).

    Some catalogs reply with the table as it is by then. One that moved on so fast that the snapshot is gone again (expired,
    rolled back) still proves nothing wrong: the catalog said yes.
    """
    snapshot = metadata.snapshot_by_id(commit.snapshot_id)
    if snapshot is not None:
        rows = sum(manifest.rows for manifest in commit.manifests)
        added = snapshot.summary["added-records"] if snapshot.summary else None
        if added is None or int(added) != rows:
            raise RowCountError(
                f"Snapshot {commit.snapshot_id} of {name} says that it added {added} rows; {rows} were sealed "
                f"for {commit.keys}. The snapshot has landed: compare the table with its source before anything "
                "else writes to it."
            )
        timestamp_ms = snapshot.timestamp_ms
    return Landed(commit.snapshot_id, _time(timestamp_ms), landed_now=True)


def _time(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
