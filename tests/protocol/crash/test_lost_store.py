"""The checkpoint store is lost, moved or doubled, and a key is written again: green only with the rows that the task has staged."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from protocol.crash.maintenance import expire_all_but_the_head, foreign_append, forget_the_record, roll_back_to
from support.lance_world import LanceWorld
from support.world import World

from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import BindingMismatchError, DiscardedError, HistoryExpiredError
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.write.cleanup import clean

pytestmark = pytest.mark.crash

KEYS = ("a", "b", "c")


class Iceberg(World):
    def make(self):
        self.create_table()

    def add(self):
        return foreign_append(self)


class Lance(LanceWorld):
    def make(self):
        self.create_dataset(count=0)

    def add(self):
        return self.foreign_append()


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    """A table, and input of two files of ten rows for each key."""
    world = request.param(tmp_path)
    world.make()
    world.put_files(6, 10)
    return world


@pytest.fixture
def iceberg(tmp_path):
    world = Iceberg(tmp_path)
    world.make()
    world.put_files(6, 10)
    return world


def request_of(world, key, **changes):
    first = 2 * KEYS.index(key)
    return world.request(key, source=Files(f"{world.input}/[{first}{first + 1}].parquet", max_split_bytes=1), **changes)


def stage(world, *keys, **changes):
    return [world.stage(request_of(world, key, **changes)) for key in keys]


def other_store(world, name="another store"):
    """From now on the world has another store, which is empty; what the other had is out of its sight."""
    world.store = CheckpointStore.at(str(world.root / name))


def one_row(batch):
    return batch.slice(0, 1)


NOT_OURS = r"'{}'.*was committed to .* before, as (snapshot|version) \d+, .*another checkpoint store.*Nothing was changed"


def assert_refused(world, key, *attempts, ids):
    """Committing these is an error that names a key, and so it stays, whatever is tried again; the table is as it was."""
    for _ in range(2):
        with pytest.raises(BindingMismatchError, match=NOT_OURS.format(key)):
            world.commit(*attempts)
        assert world.ids() == ids
    for attempt in attempts:
        # Nor is it reported by a stage that runs again.
        with contextlib.suppress(BindingMismatchError):
            assert world.stage(attempt._request).commit is None


def test_a_key_whose_commit_expired_and_whose_store_is_lost_is_not_reported_as_committed(iceberg):
    iceberg.commit(*stage(iceberg, "a"))
    other_store(iceberg)
    foreign = foreign_append(iceberg)
    (again,) = stage_before_the_others_are_seen(iceberg, "a")
    expire_all_but_the_head(iceberg)
    assert_refused(iceberg, "a", again, ids=[*range(20), *foreign])


def stage_before_the_others_are_seen(world, *keys):
    """Stage as a store does that began before the other store committed: the table is set aside meanwhile."""
    table = world.table()
    world.catalog.drop_table("shop.orders")
    world.catalog.register_table("shop.orders", oldest_metadata(table))
    attempts = stage(world, *keys, transform=one_row)
    world.catalog.drop_table("shop.orders")
    world.catalog.register_table("shop.orders", table.metadata_location)
    return attempts


def oldest_metadata(table):
    return table.metadata.metadata_log[0].metadata_file


def in_two_stores(world, keys, then_keys):
    """Both stores stage before either commits."""
    first = stage(world, *keys)
    own = world.store
    other_store(world)
    second = stage(world, *then_keys, transform=one_row)
    world.store = own
    world.commit(*first)
    other_store(world)
    return second


@pytest.mark.parametrize(
    ("keys", "then_keys", "found"),
    [
        (["a"], ["a"], "a"),
        (["a", "b"], ["a", "b"], "[ab]"),
        (["a", "b"], ["b"], "b"),
        (["a", "b"], ["b", "c"], "b"),
        (["b"], ["a", "b", "c"], "b"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("maintained", [False, True], ids=["", "maintained"])
def test_a_key_that_another_store_has_committed_is_refused_whatever_it_was_committed_with(
    world, keys, then_keys, found, maintained
):
    second = in_two_stores(world, keys, then_keys)
    ids = world.ids()
    if maintained:
        ids += world.add()
        if isinstance(world, Iceberg):
            expire_all_but_the_head(world)
        else:
            world.dataset.optimize.compact_files()
    assert_refused(world, found, *second, ids=ids)


@pytest.mark.parametrize("others", [0, 40], ids=["", "after 40 commits of others"])
def test_a_key_that_landed_in_a_group_is_refused_by_the_stage_of_a_new_store_before_anything_is_staged(world, others):
    world.commit(*stage(world, "a", "b"))
    ids = world.ids()
    for _ in range(others):
        ids += world.add()
    files = world.files_on_disk()
    other_store(world)
    for key in ("b", "a"):
        with pytest.raises(BindingMismatchError, match=NOT_OURS.format(key)):
            stage(world, key)
    assert world.files_on_disk() == files
    assert world.store.names("") == []
    world.commit(*stage(world, "c"))
    assert world.ids() == sorted([*ids, *range(40, 60)])


def test_a_key_of_which_only_a_later_generation_landed_is_refused_in_a_new_store(world):
    stage(world, "a")
    world.commit(*stage(world, "a", restart_token="again"))
    other_store(world)
    with pytest.raises(BindingMismatchError, match=NOT_OURS.format("a")):
        stage(world, "a")
    assert world.ids() == list(range(20))


def test_a_replacement_finds_its_own_earlier_generations_and_goes_on(world):
    for token in ("one", "two"):
        world.commit(*stage(world, "a"))
        world.commit(*stage(world, "a", on_rerun="replace", restart_token=token))
    assert world.ids() == list(range(20))


def test_a_key_in_a_group_of_more_than_a_name_can_hold_is_found_in_a_new_store(world):
    keys = [f"key-{number}" for number in range(20)]
    source = Files(f"{world.input}/0.parquet", max_split_bytes=1)
    world.commit(*[world.stage(world.request(key, source=source)) for key in keys])
    foreign = [n for _ in range(20) for n in world.add()]
    other_store(world)
    with pytest.raises(BindingMismatchError, match=NOT_OURS.format("key-7")):
        world.stage(world.request("key-7", source=source))
    assert world.ids() == sorted([*range(10)] * 20 + foreign)


def test_a_lance_key_is_found_beside_versions_that_were_cleaned_up(tmp_path):
    world = Lance(tmp_path)
    world.make()
    world.put_files(6, 10)
    foreign = [n for _ in range(20) for n in world.add()]
    world.dataset.cleanup_old_versions(older_than=timedelta(0))
    world.commit(*stage(world, "a"))
    foreign += [n for _ in range(20) for n in world.add()]
    other_store(world)
    with pytest.raises(BindingMismatchError, match=NOT_OURS.format("a")):
        stage(world, "a")
    assert world.ids() == sorted([*range(20), *foreign])


def test_a_lance_key_whose_commit_was_restored_away_is_written_by_a_new_store(tmp_path):
    world = Lance(tmp_path)
    world.make()
    world.put_files(6, 10)
    before = world.dataset.version
    world.commit(*stage(world, "a"))
    dataset = world.dataset.checkout_version(before)
    dataset.restore()
    other_store(world)
    (settled,) = world.commit(*stage(world, "a"))
    assert settled.landed_now
    assert world.ids() == list(range(20))


# -- cleaning up what was staged in vain ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tried", [True, False], ids=["after its commit was refused", "before a commit was tried"])
@pytest.mark.parametrize("then_keys", [["a"], ["a", "c"]], ids="+".join)
def test_what_was_staged_under_a_key_that_another_store_has_committed_is_cleaned_up(world, then_keys, tried):
    second = in_two_stores(world, ["a", "b"], then_keys)
    own = {path for path in world.files_on_disk() if any(attempt._id in path for attempt in second)}
    others = world.files_on_disk() - own
    assert own
    ids = world.ids()
    if tried:
        with pytest.raises(BindingMismatchError):
            world.commit(*second)
    checkpoint = second[0].checkpoint
    (kept,) = clean(checkpoint, lambda _: world.as_table())
    assert (kept.files, kept.state) == (0, State.SEALED)
    assert "cannot be committed any more" in kept.left
    assert "another checkpoint store" in kept.left
    (cleaned,) = clean(checkpoint, lambda _: world.as_table(), discard_unfinished=True)
    assert (cleaned.left, cleaned.state) == ("", State.DISCARDED)
    gone = {path for path in own if second[0]._id in path}
    assert world.files_on_disk() == (own - gone) | others
    assert cleaned.files == len(gone)
    assert world.ids() == ids
    with pytest.raises((BindingMismatchError, DiscardedError)):
        world.commit(*second)
    with pytest.raises(BindingMismatchError):
        stage(world, "a")
    assert world.ids() == ids


@pytest.mark.parametrize("evolve", [False, True], ids=["", "evolve_schema"])
def test_a_cleared_stage_of_a_lost_store_stops_before_its_source_is_looked_at(world, evolve):
    world.commit(*stage(world, "a"))
    ids, files = world.ids(), world.files_on_disk()
    other_store(world)
    for path in world.input.iterdir():
        path.write_bytes(b"not to be read")
    with pytest.raises(BindingMismatchError, match=NOT_OURS.format("a")):
        stage(world, "a", evolve_schema=evolve)
    assert world.store.names("") == []
    assert (world.ids(), world.files_on_disk()) == (ids, files)


# -- one store, and a table whose history was turned back or cut ---------------------------------------------------------------


def landed_without_record(world, *keys):
    attempts = stage(world, *keys)
    world.commit(*attempts)
    for attempt in attempts:
        forget_the_record(world, attempt.checkpoint)
    return attempts


@pytest.mark.parametrize("keys", [["a"], ["a", "b"]], ids="+".join)
def test_a_commit_that_was_rolled_back_before_its_history_expired_is_not_reported_as_landed(iceberg, keys):
    first = foreign_append(iceberg)
    base = iceberg.table().current_snapshot().snapshot_id
    attempts = landed_without_record(iceberg, *keys)
    roll_back_to(iceberg, base)
    later = [n for start in (2_000_000, 3_000_000) for n in foreign_append(iceberg, start)]
    expire_all_but_the_head(iceberg)
    for _ in range(2):
        with pytest.raises(HistoryExpiredError, match=r"'a'.*no file of them is in the table.*Nothing was changed.*mark the task"):
            iceberg.commit(*attempts)
        with pytest.raises(HistoryExpiredError):
            stage(iceberg, *keys)
    assert iceberg.ids() == first + later


def test_a_commit_whose_manifest_was_rewritten_before_its_history_expired_has_landed(iceberg):
    attempts = landed_without_record(iceberg, "a")
    # Takes one of its two files off, and so writes its manifest anew.
    iceberg.table().delete("id < 10")
    foreign = foreign_append(iceberg)
    expire_all_but_the_head(iceberg)
    (again,) = iceberg.commit(*attempts)
    assert not again.landed_now
    assert iceberg.ids() == [*range(10, 20), *foreign]


def test_a_commit_of_which_no_file_is_left_when_its_history_expired_fails_closed(iceberg):
    attempts = landed_without_record(iceberg, "a")
    iceberg.table().delete("id < 20")
    foreign = foreign_append(iceberg)
    expire_all_but_the_head(iceberg)
    with pytest.raises(HistoryExpiredError, match="no file of them is in the table"):
        iceberg.commit(*attempts)
    assert iceberg.ids() == foreign


def cut_history(world):
    """Others commit, and the owner removes all snapshots or versions but the last."""
    foreign = world.add()
    if isinstance(world, Lance):
        world.dataset.cleanup_old_versions(older_than=timedelta(0))
    else:
        expire_all_but_the_head(world)
    return foreign


def test_a_recorded_commit_that_was_rolled_back_before_its_history_expired_is_not_reported_as_landed(world):
    before = world.add()
    attempts = stage(world, "a")
    world.commit(*attempts)
    if isinstance(world, Lance):
        world.dataset.checkout_version(2).restore()
    else:
        roll_back_to(world, world.table().snapshots()[0].snapshot_id)
    foreign = cut_history(world)
    for _ in range(2):
        with pytest.raises(HistoryExpiredError, match=r"'a'.*no file of them is in the table now.*mark the task as success"):
            world.commit(*attempts)
        with pytest.raises(HistoryExpiredError):
            stage(world, "a")[0].verify_commit()
    assert world.ids() == sorted([*before, *foreign])


def test_a_recorded_commit_of_which_a_file_is_left_is_reported_when_its_history_expired(world):
    attempts = stage(world, "a")
    world.commit(*attempts)
    foreign = cut_history(world)
    (again,) = world.commit(*attempts)
    assert not again.landed_now
    stage(world, "a")[0].verify_commit()
    assert world.ids() == [*range(20), *foreign]


def test_a_lance_key_whose_version_was_cleaned_up_is_known_to_a_new_store_by_its_files(tmp_path):
    world = Lance(tmp_path)
    world.make()
    world.put_files(6, 10)
    world.commit(*stage(world, "a"))
    foreign = cut_history(world)
    other_store(world)
    with pytest.raises(BindingMismatchError, match=r"'a' was committed .* a version that was cleaned up since"):
        stage(world, "a")
    world.commit(*stage(world, "b"))
    assert world.ids() == [*range(40), *foreign]


@pytest.mark.parametrize("keys", [["a"], ["a", "c"]], ids="+".join)
def test_a_lance_key_whose_version_and_files_are_gone_is_known_to_a_new_store_by_what_the_dataset_remembers(tmp_path, keys):
    world = Lance(tmp_path)
    world.make()
    world.put_files(6, 10)
    world.commit(*stage(world, *keys))
    world.dataset.optimize.compact_files()
    cut_history(world)
    assert not any("ckpt-" in str(file.path) for one in world.dataset.get_fragments() for file in one.data_files())
    landed = world.ids()
    other_store(world)
    for key in keys:
        with pytest.raises(BindingMismatchError, match=rf"'{key}' was committed .* a version that was cleaned up since"):
            stage(world, key)
    world.commit(*stage(world, "b"))
    assert world.ids() == sorted([*landed, *range(20, 40)])


def test_a_commit_that_was_begun_and_never_landed_does_not_bar_its_key(tmp_path):
    world = Lance(tmp_path)
    world.make()
    world.put_files(6, 10)
    attempts = stage(world, "a")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("airflow_ckpt_provider.tables.lance.commit.VersionChange.swap", interrupted)
        with pytest.raises(KeyboardInterrupt):
            world.commit(*attempts)
    assert list((tmp_path / "orders.lance" / "_checkpoint_keys").rglob("*.*"))
    world.add()
    other_store(world)
    (settled,) = world.commit(*stage(world, "a"))
    assert settled.landed_now
    assert set(range(20)) <= set(world.ids())


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_group_of_150_members_is_remembered_by_each_of_them_beyond_its_snapshot(iceberg):
    source = Files(f"{iceberg.input}/0.parquet")
    keys = [f"key-{number:03}" for number in range(150)]
    attempts = [iceberg.stage(iceberg.request(key, source=source)) for key in keys]
    iceberg.commit(*attempts)
    for attempt in attempts:
        forget_the_record(iceberg, attempt.checkpoint)
    foreign = foreign_append(iceberg)
    expire_all_but_the_head(iceberg)
    ids = sorted([*range(10)] * 150) + foreign
    assert not any(one.landed_now for one in iceberg.commit(*attempts))
    other_store(iceberg)
    with pytest.raises(BindingMismatchError, match=NOT_OURS.format("key-121")):
        iceberg.stage(iceberg.request("key-121", source=source))
    assert iceberg.ids() == ids


def test_a_commit_that_its_owner_takes_back_and_brings_back_does_not_land_again_from_another_store(tmp_path):
    """When the key is staged again the table does not show its rows; between that and the commit, it does again."""
    world = Lance(tmp_path)
    world.make()
    world.put_files(6, 10)
    world.commit(*stage(world, "a"))
    world.dataset.checkout_version(1).restore()
    other_store(world)
    again = stage(world, "a")
    world.dataset.checkout_version(2).restore()
    rows = world.table_rows()
    assert len(rows) == 20
    with pytest.raises(BindingMismatchError, match=r"was committed to .* before, as version 2"):
        world.commit(*again)
    assert world.table_rows() == rows
