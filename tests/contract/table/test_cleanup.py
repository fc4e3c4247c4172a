"""Clean-ups, over an Iceberg table and a Lance dataset: what was left behind goes, and nothing else, whoever it belongs to."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from contract.table.both import (
    ALSO_WITH_STABLE_ROW_IDS,
    BEFORE,
    HALF,
    REPLACE,
    UPSERT,
    Iceberg,
    Lance,
    kinds,
    marked,
    marked_even,
    of,
    only_even,
)
from support.columns import add_columns, computed
from support.forging import forge, forge_staged

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.group import bind
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import DiscardedError
from airflow_ckpt_provider.write import groups
from airflow_ckpt_provider.write.cleanup import Listings, clean


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def empty(request, tmp_path):
    world = request.param(tmp_path)
    world.put_files()
    return world


@pytest.fixture
def world(empty):
    empty.make()
    return empty


def cleaned(world, key="orders", **how):
    latest = Checkpoint.latest(world.store, world.request(key).key)
    return list(clean(latest, lambda _: world.as_table(), **how))


def on_disk(world):
    """All files of the table and the store, by their size."""
    return {path: path.stat().st_size for path in world.root.rglob("*") if path.is_file() and path.suffix != ".db"}


def abandon(world, request, splits=2):
    """Write some splits as tasks do that are killed before they publish."""
    attempt = world.attempt(request)
    work, found = attempt.begin("a test", 1), attempt.checkpoint.plans()[-1].splits[:splits]
    for split in found:
        stem = work.paths.file_stem(split.id, f"{work.attempt_id}.killed")
        work.writer.write(work.reader.read(split, None), stem)
    return len(found)


def test_what_killed_attempts_left_goes_and_what_landed_stays(world):
    request = world.request()
    world.stage(request, splits=1)
    before = on_disk(world)
    abandon(world, request)
    left = on_disk(world).keys() - before.keys()
    settled = world.commit(world.stage(request))
    (one,) = cleaned(world)
    assert (one.generation, one.state, one.left) == (1, State.COMMITTED, "")
    gone = {path for path in left if "/store/" not in str(path)}
    assert one.files == len(gone) > 0
    assert not any(path.exists() for path in gone)
    assert world.read() == of(range(400), BEFORE)
    assert settled[0].landed_now
    assert cleaned(world)[0].files == 0


def test_the_small_manifests_go_that_a_landed_one_was_merged_of(tmp_path):
    world = Iceberg(tmp_path)
    world.put_files(20, 20)
    world.make()
    checkpoint = world.stage().checkpoint
    (merged,) = checkpoint.sealed().manifests
    records = checkpoint.staged([split.id for split in checkpoint.plan().splits])
    small = {Path(record.manifest["path"].removeprefix("file://")) for record in records}
    # A seal that is not committed may have to be made anew of them.
    assert cleaned(world)[0].files == 0
    assert len(small) == 20
    assert all(path.exists() for path in small)
    groups.commit([checkpoint], world.as_table())
    (one,) = cleaned(world)
    assert one.files == 20
    assert not any(path.exists() for path in small)
    assert Path(merged["path"].removeprefix("file://")).exists()
    assert world.read() == of(range(400), BEFORE)
    world.stage(world.request(**REPLACE, transform=only_even))


def test_a_clean_up_of_many_keys_lists_the_storage_once_and_takes_what_is_each_ones_own(world, monkeypatch):
    kind = type(world.as_table())
    lists, written = [], kind.written
    monkeypatch.setattr(kind, "written", lambda *args: lists.append(args) or written(*args))
    keys = [f"orders/{number}" for number in range(4)]
    left = 0
    for key in keys:
        world.stage(world.request(key), splits=1)
        left += abandon(world, world.request(key))
        world.commit(world.stage(world.request(key)))
    rows, listings = world.read(), Listings()
    found = [one for key in keys for one in cleaned(world, key, listings=listings)]
    assert len(lists) == 1
    assert all(one.files for one in found)
    assert sum(one.files for one in found) >= left
    assert world.read() == rows
    assert [one.files for key in keys for one in cleaned(world, key)] == [0] * len(keys)


@pytest.mark.parametrize("landing", ["a write", "a replacement"])
def test_a_file_that_lands_after_the_storage_was_listed_stays(world, landing):
    """The clean-up of one key lists the storage, a commit of another one lands, and that one is cleaned up by the same listing.

    The store says by then that nothing is staged: only the look at the table tells that the files are live.
    """
    if landing == "a replacement":
        world.commit(world.stage())
    world.stage(splits=1)
    attempt = world.stage(world.request(on_rerun="replace"))
    world.stage(world.request("listed first"))
    listings = Listings()
    cleaned(world, "listed first", listings=listings, discard_unfinished=True)
    listed = on_disk(world)
    world.commit(attempt)
    live = {Path(path.removeprefix("file://")) for path in world.referenced_files()}
    assert {path for path in live if path.name.startswith("ckpt-")} <= listed.keys()
    checkpoint = attempt.checkpoint
    for split in checkpoint.plan().splits:
        forge_staged(checkpoint, split.id, files=(), manifest=None, rows=0, bytes=0)
    forge(world.store, checkpoint.paths.seal(), checkpoint.sealed(), manifests=())
    cleaned(world, listings=listings, discard_unfinished=True)
    assert world.read() == of(range(400), BEFORE)
    assert all(path.exists() for path in live)


def test_what_is_staged_and_not_finished_stays(world):
    request = world.request()
    world.stage(request, splits=2)
    abandon(world, request)
    before = on_disk(world)
    (one,) = cleaned(world)
    assert (one.state, one.files) == (State.STAGING, 0)
    assert "its next attempt needs" in one.left
    assert on_disk(world) == before
    world.stage(request)
    assert cleaned(world)[0].state is State.SEALED
    world.commit(world.stage(request))
    assert world.read() == of(range(400), BEFORE)


def test_a_table_that_never_came_into_being_leaves_nothing(empty):
    empty.stage(empty.request(mode="create"), splits=3)
    (one,) = cleaned(empty, discard_unfinished=True)
    assert (one.state, one.left) == (State.DISCARDED, "")
    assert one.files >= 3
    assert not any(path.name.startswith("ckpt-") for path in on_disk(empty))
    empty.commit(empty.stage(empty.request(mode="create")))
    assert empty.read() == of(range(400))


@pytest.mark.parametrize("splits", [0, 2, None], ids=["begun", "half-way", "sealed"])
def test_what_nobody_will_finish_is_given_up_and_removed_if_that_is_asked_for(world, splits):
    before = on_disk(world)
    attempt = world.stage(splits=splits)
    (one,) = cleaned(world, discard_unfinished=True)
    assert (one.state, one.left) == (State.DISCARDED, "")
    assert (one.files > 0) is (splits != 0)
    assert {path for path in on_disk(world).keys() - before.keys() if "/store/" not in str(path)} == set()
    if splits is None:
        with pytest.raises(DiscardedError, match="cleaned up"):
            world.commit(attempt)
    world.commit(world.stage())
    assert world.read() == of(range(400), BEFORE)
    assert [one.state for one in cleaned(world)] == [State.DISCARDED, State.COMMITTED]


def test_a_generation_that_was_given_up_goes_beside_the_one_that_landed(world):
    world.stage(splits=3)
    world.commit(world.stage(world.request(transform=only_even, restart_token="now")))
    first, second = cleaned(world)
    assert first.state is State.DISCARDED
    assert first.files >= 3
    assert (second.state, second.files) == (State.COMMITTED, 0)
    assert world.read() == [row for row in of(range(400)) if row["id"] % 2 == 0] + of(BEFORE)


def test_nothing_goes_while_a_commit_of_it_may_be_under_way(world):
    """Its group is bound, and nothing more: whoever did that may be about to swap."""
    checkpoint = world.stage().checkpoint
    members, stream = (checkpoint.member,), checkpoint.header.stream
    horizon = world.as_table().state(checkpoint.header.table).horizon
    id_ = groups.group_id_of(members)
    bind(checkpoint, groups.Group(id=id_, members=members, stream=stream, bound_at=groups.now(), horizon=horizon))
    before = on_disk(world)
    for how, said in (({"discard_unfinished": True}, "run its commit task again"), ({}, "it is not finished")):
        (one,) = cleaned(world, **how)
        assert one.files == 0
        assert said in one.left
    checkpoint.discard("a test")
    (one,) = cleaned(world)
    assert "a commit of it was begun" in one.left
    assert {path: size for path, size in on_disk(world).items() if "discard" not in path.name} == before


def test_a_commit_whose_record_was_lost_is_found_before_anything_goes(world):
    attempt = world.stage()
    world.commit(attempt)
    (world.root / "store" / attempt.checkpoint.paths.commit).unlink()
    (one,) = cleaned(world, discard_unfinished=True)
    assert (one.state, one.files) == (State.COMMITTED, 0)
    assert world.read() == of(range(400), BEFORE)


def test_the_same_key_in_another_store_keeps_its_files(world):
    """Two stores know nothing of each other; keys, generations and so the beginnings of names are the same."""
    other, first = world.store, world.stage()
    world.store = another = CheckpointStore.at(str(world.root / "another store"))
    world.stage(splits=2)
    abandon(world, world.request())
    world.store = other
    world.commit(first)
    world.store = another
    assert cleaned(world, discard_unfinished=True)[0].files >= 4
    assert world.read() == of(range(400), BEFORE)
    world.store = other
    assert cleaned(world)[0].files == 0
    assert world.read() == of(range(400), BEFORE)


@ALSO_WITH_STABLE_ROW_IDS
@pytest.mark.parametrize("more", [{}, {"mode": "overwrite"}, UPSERT], ids=["append", "overwrite", "upsert"])
def test_after_a_clean_up_it_is_replaced_as_before(empty, more):
    empty.make(HALF)
    empty.commit(empty.stage(empty.request(**more, transform=marked)))
    cleaned(empty)
    empty.commit(empty.stage(empty.request(**more, **REPLACE, transform=marked_even)))
    assert [one.state for one in cleaned(empty)] == [State.COMMITTED] * 2
    even = {*range(0, 400, 2)}
    own, others = {"append": (even, {*HALF}), "overwrite": (even, set())}.get(
        more.get("mode", "append"), (even | {*range(200, 400)}, {*range(400, 600)})
    )
    if more:
        assert kinds(empty) == (own, others)
    else:
        assert sorted(row["id"] for row in empty.read()) == sorted([*own, *others])


@ALSO_WITH_STABLE_ROW_IDS
@pytest.mark.parametrize("ignored", [{}, {"when_matched": "ignore"}, {"when_not_matched": "ignore"}], ids=str)
def test_what_an_upsert_needed_on_its_way_goes(empty, ignored):
    empty.make(HALF)
    request = empty.request(**UPSERT | {"parameters": UPSERT["parameters"] | ignored}, transform=marked)
    empty.stage(request, splits=2)
    # It was matched with what others have changed since, and is matched again.
    empty.stage(request)
    empty.add(range(600, 610))
    empty.compact()
    empty.commit(empty.stage(request))
    found = kinds(empty)
    (one,) = cleaned(empty)
    assert one.files > 0
    assert kinds(empty) == found
    assert cleaned(empty)[0].files == 0
    names = {path.name for path in on_disk(empty) if "/store/" not in str(path)}
    landed = {path.rpartition("/")[2] for path in empty.referenced_files()}
    assert not any("-source" in name or "-rowids" in name for name in names - landed)


def test_a_table_that_is_gone_is_said_to_be_gone(world):
    world.stage(splits=1)
    world.drop()
    (one,) = cleaned(world, discard_unfinished=True)
    assert one.files == 0
    assert "orders" in one.left


# -- somebody who can write to the store, and to nothing else (I15) ------------------------------------------------------------


def plant_attempts(world, theirs, mine):
    """Record the attempts of one checkpoint below another one, too."""
    for attempt in theirs.attempts():
        forge(world.store, mine.paths.attempt(attempt.id), attempt)


@ALSO_WITH_STABLE_ROW_IDS
@pytest.mark.parametrize("committed", [False, True], ids=["staged", "committed"])
@pytest.mark.parametrize("more", [{}, UPSERT], ids=["append", "upsert"])
def test_an_attempt_planted_below_ones_own_key_takes_nothing_of_another_key(empty, more, committed):
    empty.make(HALF if more else BEFORE)
    theirs = empty.stage(empty.request("theirs", **more, transform=marked))
    if committed:
        empty.commit(theirs)
    found, files = empty.read(), on_disk(empty)
    mine = empty.stage(splits=0).checkpoint
    plant_attempts(empty, theirs.checkpoint, mine)
    assert cleaned(empty, discard_unfinished=True)[0].files == 0
    assert files.items() <= on_disk(empty).items()
    assert empty.read() == found
    empty.commit(empty.stage(empty.request("theirs", **more, transform=marked)))
    assert {row["id"] for row in empty.read() if row["kind"] == "marked"} == {*range(400)}


def test_an_attempt_of_another_generation_planted_below_this_one_takes_nothing_of_it(world):
    world.commit(world.stage())
    world.stage(world.request(**REPLACE, transform=only_even), splits=0)
    first, second = (Checkpoint.at(world.store, world.request().key, number) for number in (1, 2))
    plant_attempts(world, first, second)
    assert [one.files for one in cleaned(world, discard_unfinished=True)] == [0, 0]
    assert world.read() == of(range(400), BEFORE)


@pytest.mark.parametrize("then", ["nothing", "merged", "compacted", "more"])
def test_what_has_landed_stays_though_the_store_says_that_it_never_did(world, then):
    """The record, the group and the seal are gone, and a tombstone is there."""
    checkpoint = world.stage().checkpoint
    groups.commit([checkpoint], world.as_table())
    rows, ids = world.read(), list(range(400))
    if then == "merged" and isinstance(world, Iceberg):
        table = world.table()
        merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
        table.transaction().set_properties(merging).commit_transaction()
        world.add()
        (manifest,) = world.table().current_snapshot().manifests(table.io)
        assert "ckpt-" not in manifest.manifest_path
        rows = world.read()
    elif then == "compacted":
        world.compact()
    elif then == "more":
        world.add()
        rows = world.read()
    for name in (checkpoint.paths.commit, checkpoint.paths.group, checkpoint.paths.seal()):
        (world.root / "store" / name).unlink()
    checkpoint.discard("a forger's wish")
    (one,) = cleaned(world)
    assert (one.state, one.files) == (State.DISCARDED, 0)
    assert world.read() == rows
    assert [row["id"] for row in first_commit(world)] == sorted([*ids, *BEFORE])


def first_commit(world):
    """Rows as they were right after the first commit of a checkpoint: an older snapshot, or version, is there for that."""
    if isinstance(world, Iceberg):
        (snapshot, *_) = [one for one in world.table().snapshots() if (one.summary or {})["airflow.checkpoint.key"]]
        found = world.table().scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    else:
        found = lance.dataset(world.uri, version=world.own_versions()[0].number).to_table()
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def test_what_a_link_in_the_tables_folder_leads_to_stays(world):
    attempt = world.stage(splits=1)
    work = attempt.begin("a test", 1)
    name = f"{work.paths.file_stem('000001', work.attempt_id + '.7')}-00000"
    elsewhere = world.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{name}.parquet").write_bytes(b"precious")
    data = next(path.parent for path in on_disk(world) if path.name.startswith("ckpt-") and path.parent.name == "data")
    (data / "link").symlink_to(elsewhere, target_is_directory=True)
    (data / f"{name}.lance#1").symlink_to(elsewhere, target_is_directory=True)
    (data / f"{name}.parquet").symlink_to(elsewhere / f"{name}.parquet")
    cleaned(world, discard_unfinished=True)
    assert (elsewhere / f"{name}.parquet").read_bytes() == b"precious"
    assert (data / "link").is_symlink()


# -- Lance ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dataset_world(tmp_path):
    world = Lance(tmp_path)
    world.put_files()
    return world


def test_parts_that_new_columns_were_joined_from_go(dataset_world):
    world = dataset_world
    lance.write_dataset(pa.table({"id": range(40)}), world.uri, max_rows_per_file=20)
    add_columns(world, rows_per_split=5)
    files = len(on_disk(world))
    (one,) = cleaned(world, "columns")
    assert (one.files, one.left) == (8, "")
    assert len(on_disk(world)) == files - 8
    assert computed(world) == list(range(40))


def test_deletion_files_of_killed_attempts_are_known_by_their_numbers(dataset_world):
    world = dataset_world
    world.make(HALF)
    request = world.request(**UPSERT, transform=marked)
    world.stage(request)
    deletions = world.root / "orders.lance" / "_deletions"
    first = {path.name for path in deletions.iterdir()}
    world.dataset.delete("id = 555")
    theirs = {path.name for path in deletions.iterdir()} - first
    world.commit(world.stage(request))
    landed = {path.name for path in deletions.iterdir()} - first - theirs
    assert (len(first), len(theirs), len(landed)) == (1, 1, 1)
    assert cleaned(world)[0].files >= 1
    assert {path.name for path in deletions.iterdir()} == theirs | landed
    assert kinds(world) == ({*range(400)}, {*range(400, 600)} - {555})


def test_what_an_unfinished_local_write_leaves_goes(dataset_world):
    """Its name goes on behind that of the file; obstore does not list it."""
    world = dataset_world
    world.make()
    attempt = world.stage(splits=1)
    work = attempt.begin("a test", 1)
    data = world.root / "orders.lance" / "data"
    unfinished = data / f"{work.paths.file_stem('000001', work.attempt_id + '.7')}-00000.lance#1"
    unfinished.write_bytes(b"x" * 100)
    foreign = data / "somebody.lance#1"
    foreign.write_bytes(b"x")
    assert cleaned(world, discard_unfinished=True)[0].files == 2
    assert not unfinished.exists()
    assert foreign.exists()
    shutil.rmtree(world.uri)
