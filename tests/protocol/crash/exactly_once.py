"""What must hold after any history of crashes, races and retries, read from the table, the store and the disk."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Header
from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.restaged import first_id
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.tables.summary import GROUP

if TYPE_CHECKING:
    from protocol.crash.runs import Runs
    from pyiceberg.table.snapshots import Snapshot
    from support.world import World

_CREATED = re.compile(r"^before create data file of g(\d+)/(\w+)$")
_OWN = re.compile(r"^ckpt-(?P<key>[0-9a-f]{20})-g(?P<generation>\d+)-s(?P<split>\w+?)-(?P<attempt>[0-9a-f]+)\.(?P<task>\w+)[.-]")


#: Endings of files that belong to a checkpoint and never to the table, or, of Lance, need not land.
_INTERMEDIATE = re.compile(r"-(source|matched)\.parquet$|-(matched|rowids)\.arrow$|-source-\d{5}\.lance$")


class OwnFile(NamedTuple):
    """Whose a data file or manifest is, by its name (I4)."""

    key: str
    generation: int
    split: str
    attempt: str
    task: str

    @property
    def writer(self) -> str:
        return f"{self.attempt}.{self.task}"


def owner_of(path: str) -> OwnFile:
    match = _OWN.match(path.rsplit("/", 1)[-1])
    assert match, f"{path} does not tell whose it is"
    return OwnFile(match["key"], int(match["generation"]), match["split"], match["attempt"], match["task"])


def generations(world: World, key: str) -> list[Checkpoint]:
    """All generations of a key, oldest first."""
    latest = Checkpoint.latest(world.store, IdempotenceKey(key))
    return [] if latest is None else [Checkpoint.at(world.store, latest.key, n + 1) for n in range(latest.header.generation)]


def published(world: World, key: str) -> dict[tuple[int, str], str]:
    """Who wrote the published record of each split of each generation."""
    return {
        (checkpoint.header.generation, staged.split): staged.writer
        for checkpoint in generations(world, key)
        for staged in checkpoint.staged(sorted(checkpoint.staged_ids()))
    }


def own_snapshots(world: World) -> list[Snapshot]:
    """Snapshots that carry a key of ours."""
    if not world.catalog.table_exists("shop.orders"):
        return []
    return [one for one in world.table().snapshots() if one.summary and one.summary[GROUP]]


class Midway(NamedTuple):
    """What there was when a run stopped."""

    published: dict[tuple[int, str], str]
    files: set[str]
    sealed: bool

    @classmethod
    def of(cls, world: World, key: str = "orders") -> Midway:
        found = generations(world, key)
        return cls(published(world, key), world.files_on_disk(), bool(found) and found[-1].sealed() is not None)


def assert_only_missing_splits_were_written(world: World, before: Midway, key: str = "orders") -> None:
    """What was published stayed, and what was written since is of splits that were not (I3, I8)."""
    after = published(world, key)
    assert before.published.items() <= after.items(), "a published record changed"
    written = {(owner.generation, owner.split) for owner in map(owner_of, world.files_on_disk() - before.files)}
    assert not written & before.published.keys(), f"splits {written & before.published.keys()} were written although published"
    assert before.files <= world.files_on_disk() | _unpublished(before), "a published file was removed"
    if before.sealed:
        assert not written, "a sealed generation was written to"


def splits_written(effects: list[str]) -> set[tuple[int, str]]:
    """Generation and split of each data file that a run created, also of those it removed again."""
    return {(int(match[1]), match[2]) for match in map(_CREATED.search, effects) if match}


def _unpublished(before: Midway) -> set[str]:
    return {path for path in before.files if owner_of(path).writer not in before.published.values()}


def assert_exactly_once(world: World, ids: list[int], keys: tuple[str, ...] = ("orders",), *, snapshots: int = 1) -> None:
    """Every row once, in as many snapshots as there may be; nothing on disk that nobody knows; records and table agree."""
    found = world.ids()
    assert found == ids, f"{len(found) - len(set(found))} rows are doubled and {len(set(ids) - set(found))} are lost"
    own = own_snapshots(world)
    assert len(own) == snapshots, f"{len(own)} snapshots carry keys"
    assert len({snapshot.summary[GROUP] for snapshot in own}) == snapshots
    for key in keys:
        _assert_recorded(world, key, {snapshot.snapshot_id: snapshot for snapshot in own})
    assert_files_are_known(world)


def _assert_recorded(world: World, key: str, own: dict[int, Snapshot]) -> None:
    """The commit record says what the table's history says (I1, I2)."""
    latest = generations(world, key)[-1]
    seal, group, record = latest.sealed(), bound_group(latest), latest.committed()
    assert state_of(latest) is State.COMMITTED
    assert record.group == group.id
    assert record.rows == seal.rows
    snapshot = own[record.commit_id]
    assert snapshot.summary[GROUP] == group.id
    if len(group.members) == 1:
        assert int(snapshot.summary["added-records"]) == seal.rows
        assert int(snapshot.summary["added-data-files"]) == seal.files


def assert_cleans_up(runs: Runs, world: World, *writes: dict[str, Any]) -> None:
    """A clean-up leaves nothing that no snapshot refers to, and whatever a snapshot refers to."""
    referenced, before = world.referenced_files(), world.files_on_disk()
    cleaned = runs.run(world, *writes, do="clean")
    assert cleaned.error is None, cleaned.found["traceback"]
    assert not any(one["left"] for one in cleaned.result)
    after = world.files_on_disk()
    assert sum(one["files"] for one in cleaned.result) >= len(before - after)
    kept = {path for path in after if not path.endswith("-matched.arrow")}
    assert {path.removeprefix("file://") for path in referenced} & before == kept


def assert_files_are_known(world: World) -> None:
    """What is on disk and in no snapshot carries a key and generation of the store and an attempt recorded there; it is no
    published file of a committed generation that was not replaced, nor of a split that was staged again (I4, I5)."""
    headers = [world.store.read(name, Header) for name in world.store.names("") if name.endswith("/header.json")]
    checkpoints = {(one.key.hash, one.header.generation): one for one in (Checkpoint(world.store, header) for header in headers)}
    attempts = {at: {attempt.id for attempt in one.attempts()} for at, one in checkpoints.items()}
    writers = {at: {one.split: one.writer for one in found.staged(sorted(found.staged_ids()))} for at, found in checkpoints.items()}
    replaced = {(one.key.hash, one.header.replaces) for one in checkpoints.values() if one.committed() is not None}
    referenced = world.referenced_files()
    for path in world.files_on_disk():
        owner = owner_of(path)
        at = (owner.key, owner.generation)
        assert owner.attempt in attempts[at], f"{path} is of no recorded attempt"
        is_published = writers[at].get(owner.split) == owner.writer
        if path in referenced:
            assert is_published, f"{path} is in the table and was not published"
        elif _INTERMEDIATE.search(path):
            continue  # what later splits read
        elif _took_another_place(checkpoints[at], owner.split) or _of_another_execution(checkpoints[at], owner.split):
            continue
        elif checkpoints[at].committed() is not None and at not in replaced:
            assert not is_published, f"{path} was published and is not in the table"


def _of_another_execution(checkpoint: Checkpoint, split: str) -> bool:
    """Whether the split is of a save in the format ``checkpointed`` that was not the one that sealed."""
    seal = checkpoint.sealed()
    return split.startswith("x") and (seal is None or split not in {one.id for one in checkpoint.plan(seal.round).splits})


def _took_another_place(checkpoint: Checkpoint, split: str) -> bool:
    """Whether the sealed round has others in the place of this split, because it, or what it was computed from, lost files."""
    seal = checkpoint.sealed()
    listed = [one.id for one in checkpoint.plan(seal.round).splits] if seal is not None else []
    return split not in listed and any(first_id(one) != one for one in listed)
