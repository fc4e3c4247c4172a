"""What must hold of a Lance dataset after any history of crashes, races and retries, read from its versions, store and disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.crash.exactly_once import assert_files_are_known, generations, owner_of
from support.lance_world import expected

from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.checkpoint.state import State, state_of

if TYPE_CHECKING:
    from support.lance_world import LanceWorld, Version


def assert_exactly_once(world: LanceWorld, ids: list[int], keys: tuple[str, ...] = ("orders",), *, versions: int = 1) -> None:
    """Every row once, in as many versions as there may be; nothing on disk that nobody knows; records and dataset agree."""
    rows = world.table_rows()
    found = [row["id"] for row in rows]
    assert found == sorted(ids), f"{len(found) - len(set(found))} rows are doubled and {len(set(ids) - set(found))} are lost"
    assert rows == expected(*ids)
    world.dataset.validate()
    own = world.own_versions()
    assert len(own) == versions, f"{len(own)} versions carry keys"
    assert len({version.group for version in own}) == versions
    for key in keys:
        _assert_recorded(world, key, {version.number: version for version in own})
    assert_only_own_files_are_left_over(world)
    assert_files_are_known(world)


def assert_only_own_files_are_left_over(world: LanceWorld) -> None:
    """Whatever no version refers to says whose it is (I4)."""
    for path in world.data_and_sidecars() - world.ever_referenced_files():
        owner_of(path)


def _assert_recorded(world: LanceWorld, key: str, own: dict[int, Version]) -> None:
    """The commit record says what the versions say (I1, I2)."""
    latest = generations(world, key)[-1]
    seal, group, record = latest.sealed(), bound_group(latest), latest.committed()
    assert state_of(latest) is State.COMMITTED
    assert record.group == group.id
    assert record.rows == seal.rows
    assert own[record.commit_id].group == group.id
    stem = f"ckpt-{latest.key.hash}-g{latest.header.generation}-"
    held = [fragment.metadata for fragment in world.dataset.checkout_version(record.commit_id).get_fragments()]
    added = [one.physical_rows for one in held if one.files[0].path.startswith(stem)]
    # An upsert's deletion files are staged files, too.
    staged = latest.staged([split.id for split in latest.plan(seal.round).splits])
    data = [file for one in staged for file in one.files if "/data/" in file.path]
    assert (sum(added), len(added)) == (seal.rows, len(data))
