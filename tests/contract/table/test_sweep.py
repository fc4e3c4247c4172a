"""Sweeps over a whole store: what is done loses its records, whatever is needed stays, and whoever asks later is answered."""

from __future__ import annotations

import json
import os
from datetime import timedelta

import msgspec
import obstore
import pytest
from contract.table.both import (
    BEFORE,
    HALF,
    REPLACE,
    UPSERT,
    Iceberg,
    Lance,
    marked,
    marked_even,
    nothing,
    of,
    only_even,
)
from contract.table.test_cleanup import abandon, on_disk
from support import chains
from support.aging import grow_old
from support.forging import forge
from support.request_counts import counted
from support.world import rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Commit, Compact
from airflow_ckpt_provider.checkpoint.group import bind
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import place_of
from airflow_ckpt_provider.checkpoint.reference import reference
from airflow_ckpt_provider.checkpoint.signing import ConnectionKeys
from airflow_ckpt_provider.checkpoint.state import State
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import (
    CorruptObjectError,
    DiscardedError,
    RecordsRemovedError,
    RolledBackError,
    SignatureError,
    UndoneError,
)
from airflow_ckpt_provider.sources import Files, Rejected
from airflow_ckpt_provider.transforms import Map
from airflow_ckpt_provider.write import commits, groups
from airflow_ckpt_provider.write import sweep as sweeps
from airflow_ckpt_provider.write.cleanup import clean
from airflow_ckpt_provider.write.rejecting import OnError
from airflow_ckpt_provider.write.sweep import Sweep
from airflow_ckpt_provider.write.undoing import undo

DAYS = timedelta(days=14)


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def empty(request, tmp_path):
    world = request.param(tmp_path)
    world.put_files()
    return world


@pytest.fixture
def world(empty):
    empty.make()
    return empty


def swept(world, **how):
    """What a sweep did of each generation, by key and generation."""
    sweep = Sweep(world.store, lambda _: world.as_table(), older_than=how.pop("older_than", DAYS), **how)
    return {(one.key, one.generation): one for one in sweep.run()}


def left(world, checkpoint):
    """Names below the generation's folder."""
    return sorted(name.removeprefix(checkpoint.paths.root) for name in world.store.names(checkpoint.paths.root))


def landed(world, request=None):
    attempt = world.stage(request)
    world.commit(attempt)
    return attempt.checkpoint


BARE = ["commit.json", "compact.json", "group.json", "header.json"]


def test_of_a_committed_write_a_compact_record_stays_and_its_run_is_cleared_as_before(world):
    world.stage(splits=1)
    abandon(world, world.request())
    checkpoint = landed(world)
    before = reference(checkpoint, checkpoint.sealed(), State.COMMITTED, recovered=4, written=0)
    records = len(left(world, checkpoint)) - 3
    grow_old(world)
    one = swept(world)["orders", 1]
    assert (one.state, one.kept, one.is_error) == (State.COMMITTED, "", False)
    assert one.objects == records
    assert one.files > 0
    assert left(world, checkpoint) == BARE
    assert world.read() == of(range(400), BEFORE)
    files = on_disk(world)

    again = world.attempt()
    assert again.commit == checkpoint.committed()
    again.verify_commit()
    after = reference(again.checkpoint, again.checkpoint.sealed(), State.COMMITTED, recovered=4, written=0)
    assert after == before
    (settled,) = world.commit(again)
    assert not settled.landed_now
    assert (settled.seal.rows, settled.seal.digest) == (400, before["sealed"])
    assert on_disk(world) == files
    assert world.read() == of(range(400), BEFORE)


def test_a_second_sweep_finds_nothing_to_remove_and_reads_no_object(world):
    landed(world)
    grow_old(world)
    swept(world)
    files = on_disk(world)
    grow_old(world)
    with counted() as requests:
        assert swept(world) == {}
    assert requests == {"put": 1, "head": 1, "delete": 1, "list": 1}
    assert on_disk(world) == files


def test_a_dry_run_changes_nothing_and_says_what_a_sweep_removes(world):
    world.stage(splits=1)
    abandon(world, world.request())
    landed(world)
    grow_old(world)
    files = on_disk(world)
    said = swept(world, dry_run=True)
    assert on_disk(world) == files
    assert swept(world) == said
    assert said["orders", 1].objects > 0


def test_what_is_younger_stays_whatever_it_is(world):
    landed(world)
    world.stage(world.request("staged"), splits=2)
    landed(world, world.request("old"))
    grow_old(world, days=13)
    grow_old(world, "old")
    files = on_disk(world)
    assert swept(world, abandoned="discard").keys() == {("old", 1)}
    kept = {path: size for path, size in files.items() if IdempotenceKey("old").hash not in str(path)}
    assert kept.items() <= on_disk(world).items()


def test_one_object_that_is_young_keeps_all_of_its_generation(world):
    """A write whose attempt has begun a moment ago, with all that was staged weeks before."""
    world.stage(splits=2)
    grow_old(world)
    world.stage(splits=1)
    files = on_disk(world)
    assert swept(world, abandoned="discard") == {}
    assert on_disk(world) == files
    world.commit(world.stage())
    assert world.read() == of(range(400), BEFORE)


def test_a_write_that_is_committed_or_begun_anew_while_the_sweep_runs_is_young_again(world, monkeypatch):
    """It was staged weeks ago, and so it was when the store was listed."""
    for key in ("a", "b"):
        world.stage(world.request(key))
    grow_old(world)
    state = sweeps.state_of

    def goes_on(checkpoint):
        monkeypatch.undo()
        # The sweep takes keys in the order of their hashes.
        landed(world, world.request("a"))
        world.stage(world.request("b", restart_token="now"))
        return state(checkpoint)

    monkeypatch.setattr(sweeps, "state_of", goes_on)
    assert swept(world, abandoned="discard") == {}
    assert Checkpoint.at(world.store, IdempotenceKey("a"), 1).newest_seal() is not None
    assert Checkpoint.at(world.store, IdempotenceKey("b"), 1).newest_seal() is not None
    landed(world, world.request("b", restart_token="now"))
    assert world.read() == sorted([*of(range(400), BEFORE), *of(range(400))], key=lambda row: row["id"])


def test_what_nobody_has_finished_stays_unless_it_is_to_be_given_up(world):
    world.stage(splits=2)
    grow_old(world)
    files = on_disk(world)
    one = swept(world)["orders", 1]
    assert (one.state, one.objects) == (State.STAGING, 0)
    assert "abandoned='discard'" in one.kept
    assert on_disk(world) == files

    one = swept(world, abandoned="discard")["orders", 1]
    assert (one.state, one.kept) == (State.DISCARDED, "")
    assert one.files > 0
    first = Checkpoint.latest(world.store, IdempotenceKey("orders"))
    assert {name.partition("/")[0] for name in left(world, first)} == {"header.json", "discard.json", "attempts"}
    assert not world.files_on_disk()
    world.commit(world.stage())
    assert world.read() == of(range(400), BEFORE)


def test_an_attempt_that_was_thought_dead_loses_its_work_and_nothing_else(world):
    """It goes on after the sweep has given it up, and leaves files, which the next sweep knows to be its own."""
    attempt = world.attempt()
    found = attempt.next_round()
    work = attempt.begin("a test", 1)
    work.run(found.missing[0], "0")
    grow_old(world)
    assert swept(world, abandoned="discard")["orders", 1].state is State.DISCARDED
    for split in found.missing[1:]:
        work.run(split, "0")
    assert world.files_on_disk()
    with pytest.raises(DiscardedError):
        groups.commit([attempt.checkpoint], world.as_table())
    grow_old(world)
    one = swept(world)["orders", 1]
    assert one.files > 0
    assert left(world, attempt.checkpoint) == ["discard.json", "header.json"]
    assert not world.files_on_disk()
    assert world.read() == of(BEFORE)


def test_a_write_whose_commit_was_begun_stays_however_old_it_is(world):
    checkpoint = world.stage().checkpoint
    members, stream = (checkpoint.member,), checkpoint.header.stream
    horizon = world.as_table().state(checkpoint.header.table).horizon
    id_ = groups.group_id_of(members)
    bind(checkpoint, groups.Group(id=id_, members=members, stream=stream, bound_at=groups.now(), horizon=horizon))
    grow_old(world)
    files = on_disk(world)
    for how in ({}, {"abandoned": "discard"}):
        assert "run its commit task again" in swept(world, **how)["orders", 1].kept
    checkpoint.discard("a test")
    grow_old(world)
    assert "could still land" in swept(world)["orders", 1].kept
    assert files.items() <= on_disk(world).items()


def test_a_commit_whose_record_was_lost_is_found_before_anything_goes(world):
    checkpoint = landed(world)
    (world.root / "store" / checkpoint.paths.commit).unlink()
    grow_old(world)
    files = on_disk(world)
    dry = swept(world, abandoned="discard", dry_run=True)["orders", 1]
    assert (dry.kept, on_disk(world)) == ("", files)
    assert swept(world, abandoned="discard")["orders", 1].kept == ""
    assert left(world, checkpoint) == BARE
    assert world.read() == of(range(400), BEFORE)


def test_a_discarded_generation_keeps_its_header_and_its_tombstone_beside_one_that_landed(world):
    world.stage(splits=3)
    second = landed(world, world.request(transform=only_even, restart_token="now"))
    first = Checkpoint.at(world.store, second.key, 1)
    grow_old(world)
    found = swept(world)
    assert [found["orders", number].state for number in (1, 2)] == [State.DISCARDED, State.COMMITTED]
    assert left(world, first) == ["discard.json", "header.json"]
    assert left(world, second) == BARE
    assert second.earlier_generations()[0].discarded() is not None
    assert world.attempt(world.request(transform=only_even, restart_token="now")).commit is not None
    landed(world, world.request(**REPLACE | {"on_rerun": "reuse"}, key="another"))


# -- what the records are needed for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"mode": "overwrite"}, UPSERT], ids=["append", "overwrite", "upsert"])
def test_what_was_cleaned_up_is_not_replaced_any_more_and_says_why(empty, more):
    empty.make(HALF)
    checkpoint = landed(empty, empty.request(**more, transform=marked))
    found, number = empty.read(), empty.commits()
    grow_old(empty)
    swept(empty)
    files = on_disk(empty)
    with pytest.raises(RecordsRemovedError, match=r"'orders', which is committed to .* were cleaned up at .*older_than"):
        empty.attempt(empty.request(**more, **REPLACE, transform=marked_even))
    assert on_disk(empty) == files
    assert (empty.read(), empty.commits()) == (found, number)
    # Nothing came of that: the key is still what it was.
    assert empty.attempt(empty.request(**more, transform=marked)).commit == checkpoint.committed()


@pytest.mark.parametrize("more", [{}, UPSERT], ids=["append", "upsert"])
def test_a_generation_that_is_being_replaced_stays_until_that_has_landed_and_is_swept_itself(empty, more):
    empty.make(HALF)
    first = landed(empty, empty.request(**more, transform=marked))
    replacing = empty.request(**more, **REPLACE, transform=marked_even)
    empty.stage(replacing, splits=1)
    grow_old(empty)
    found = swept(empty)
    assert "generation 2 takes its place" in found["orders", 1].kept
    assert "abandoned" in found["orders", 2].kept
    second = landed(empty, replacing)
    grow_old(empty, "orders")
    for path in (empty.root / "store" / second.paths.root).rglob("*.json"):
        os.utime(path)
    assert "generation 2 takes its place" in swept(empty)["orders", 1].kept
    grow_old(empty)
    assert [one.kept for one in swept(empty).values()] == ["", ""]
    assert left(empty, first) == left(empty, second) == BARE
    # What the upsert had updated stays as it was.
    own = {*range(0, 400, 2)} | ({*range(200, 400)} if more else set())
    assert sorted(row["id"] for row in empty.read() if row["kind"] == "marked") == sorted(own)
    assert empty.attempt(empty.request(**more, transform=marked_even)).commit == second.committed()


def test_a_replacement_that_was_given_up_leaves_what_it_was_to_replace_replaceable(world):
    landed(world)
    world.stage(world.request(**REPLACE, transform=only_even), splits=1)
    grow_old(world)
    found = swept(world, abandoned="discard")
    assert found["orders", 2].state is State.DISCARDED
    assert "generation 2 takes its place" in found["orders", 1].kept
    grow_old(world)
    assert "generation 2 takes its place" in swept(world)["orders", 1].kept
    landed(world, world.request(**REPLACE, transform=only_even))
    assert [row["id"] for row in world.read()] == [*range(0, 400, 2), *BEFORE]
    grow_old(world)
    assert {one.kept for one in swept(world).values()} == {""}


def test_what_landed_together_stays_until_all_of_it_is_recorded(world):
    attempts = [
        world.stage(world.request(key, source=Files(f"{world.input}/{number}.parquet", max_split_bytes=1)))
        for number, key in enumerate(["a", "b", "c"])
    ]
    world.commit(*attempts)
    lost = attempts[1].checkpoint.paths.commit
    record = (world.root / "store" / lost).read_bytes()
    (world.root / "store" / lost).unlink()
    grow_old(world)
    found = swept(world, keys="[ac]")
    assert found.keys() == {("a", 1), ("c", 1)}
    assert all("together with the key 'b', generation 1" in one.kept for one in found.values())
    assert "together with the key 'b'" in swept(world, keys="a")["a", 1].kept
    (world.root / "store" / lost).write_bytes(record)
    grow_old(world)
    assert {one.kept for one in swept(world).values()} == {""}
    settled = groups.commit([Checkpoint.latest(world.store, IdempotenceKey(key)) for key in "abc"], world.as_table())
    assert [(one.landed_now, one.seal.rows) for one in settled] == [(False, 100)] * 3
    assert world.read() == of(range(300), BEFORE)


def test_a_write_that_had_nothing_to_commit_stays_and_is_looked_at_again(world):
    request = world.request(transform=nothing)
    checkpoint = landed(world, request)
    assert checkpoint.committed().commit_id is None
    grow_old(world)
    files = on_disk(world)
    assert "its commit changed nothing" in swept(world)["orders", 1].kept
    assert on_disk(world) == files
    assert world.attempt(request).checkpoint.header.generation == 1
    import pyarrow.parquet as pq

    pq.write_table(rows(400, 5), world.input / "4.parquet")
    assert world.attempt(request).checkpoint.header.generation == 2


@pytest.mark.parametrize("then", ["compacted", "forgotten", "gone"])
def test_after_the_table_went_on_a_cleared_run_is_answered_as_it_was_with_all_its_records(world, then):
    """The table's history is expired, with and without files of the write in it, or the table is gone."""
    landed(world)
    world.commit(world.stage(world.request("later")))
    if then == "forgotten":
        world.forget()
    elif then == "compacted":
        world.add()
        if isinstance(world, Iceberg):
            from protocol.crash import maintenance

            maintenance.expire_all_but_the_head(world)
        else:
            world.dataset.cleanup_old_versions(older_than=timedelta(0))
    else:
        world.drop()

    def answered():
        try:
            attempt = world.attempt()
            attempt.verify_commit()
            groups.commit([attempt.checkpoint], world.as_table())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the same
            return type(error).__name__
        return attempt.commit

    before, checkpoint = answered(), Checkpoint.latest(world.store, IdempotenceKey("orders"))
    grow_old(world)
    one = swept(world)["orders", 1]
    assert (one.kept == "") is (then != "gone")
    assert (left(world, checkpoint) == BARE) is (then != "gone")
    assert answered() == before


def test_what_was_rolled_back_stays(world):
    checkpoint = landed(world)
    if isinstance(world, Iceberg):
        table = world.table()
        table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    else:
        world.dataset.checkout_version(1).restore()
    with pytest.raises(RolledBackError):
        commits.verify(checkpoint, checkpoint.committed(), world.as_table())
    grow_old(world)
    files = on_disk(world)
    assert "committed" in swept(world)["orders", 1].kept
    assert on_disk(world) == files


# -- keys, and what is none of ours --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [("orders/*", {"orders/1", "orders/2"}), ("orders/2", {"orders/2"}), ("[!o]*", {"refunds/1"}), ("Orders/*", set())],
)
def test_only_the_keys_that_were_asked_for_are_swept(world, pattern, keys):
    for key in ("orders/1", "orders/2", "refunds/1"):
        landed(world, world.request(key))
    grow_old(world)
    assert {key for key, _ in swept(world, keys=pattern)} == keys
    assert {key for key, _ in swept(world)} == {"orders/1", "orders/2", "refunds/1"} - keys


def test_foreign_objects_are_counted_and_left_where_they_are(world):
    checkpoint = landed(world)
    store = world.root / "store"
    names = ["notes.txt", "abc/g1/header.json", f"{checkpoint.paths.root}README", f"{checkpoint.key.hash}/more/plan.json.zst"]
    for name in names:
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_text("mine")
    grow_old(world)
    sweep = Sweep(world.store, lambda _: world.as_table(), older_than=DAYS)
    assert [one.kept for one in sweep.run()] == [""]
    assert sweep.counts.foreign == len(names)
    assert all((store / name).read_text() == "mine" for name in names)


def test_a_look_at_the_stores_clock_that_was_killed_leaves_an_object_that_goes(world):
    probe = world.root / "store" / f"clock-{'0' * 32}"
    probe.parent.mkdir(exist_ok=True)
    probe.touch()
    swept(world)
    assert probe.exists()
    grow_old(world)
    swept(world, dry_run=True)
    assert probe.exists()
    swept(world)
    assert list(probe.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["header.json", "commit.json", "group.json", "seal.json", "staged/000001.json"])
@pytest.mark.parametrize("how", ["cut off", "gone"])
def test_what_is_damaged_keeps_its_generation_as_an_error_and_the_sweep_goes_on(world, name, how):
    checkpoint = landed(world)
    landed(world, world.request("other"))
    path = world.root / "store" / checkpoint.paths.root / name
    if not path.exists():
        path = sorted(path.parent.iterdir())[1]
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-3])
    grow_old(world)
    files = {path: size for path, size in on_disk(world).items() if checkpoint.key.hash in str(path)}
    found = swept(world)
    assert found["other", 1].kept == ""
    (one,) = [one for one in found.values() if one.key != "other"]
    if (name, how) == ("commit.json", "gone"):
        # The table's history tells.
        assert one.kept == ""
        return
    assert one.is_error
    assert files.items() <= on_disk(world).items()


# -- whoever can write to the store, and to nothing else (I15) -----------------------------------------------------------------


def test_a_forged_compact_record_lands_nothing_and_loses_nothing(world):
    """It says what the reference vouches for, and that there were no rows, or all of them."""
    attempt = world.stage()
    checkpoint, seal = attempt.checkpoint, attempt.checkpoint.sealed()
    checkpoint.compact(seal)
    compact = checkpoint.compacted()
    # As long as the records are there, they count.
    assert checkpoint.sealed() == seal
    for rows_said in (0, 400):
        forge(world.store, checkpoint.paths.compact, compact, rows=rows_said)
        (world.root / "store" / checkpoint.paths.seal()).unlink(missing_ok=True)
        vouched = Checkpoint.at(world.store, checkpoint.key, 1)
        vouched.vouched = seal.digest
        for given in (vouched, Checkpoint.at(world.store, checkpoint.key, 1)):
            with pytest.raises(RecordsRemovedError):
                groups.commit([given], world.as_table())
        assert checkpoint.committed() is None
    assert world.read() == of(BEFORE)
    grow_old(world)
    assert swept(world, keys="orders")["orders", 1].kept


def test_a_compact_record_of_a_commit_that_changed_nothing_is_not_believed(world):
    attempt = world.stage()
    checkpoint, seal = attempt.checkpoint, attempt.checkpoint.sealed()
    members = (checkpoint.member,)
    id_ = groups.group_id_of(members)
    bind(checkpoint, groups.Group(id=id_, members=members, stream=checkpoint.header.stream, bound_at=groups.now(), horizon=0))
    checkpoint.compact(seal)
    forge(world.store, checkpoint.paths.compact, checkpoint.compacted(), rows=0)
    checkpoint.record(Commit(group=id_, commit_id=None, committed_at=groups.now(), rows=0))
    (world.root / "store" / checkpoint.paths.seal()).unlink()
    (world.root / "store" / checkpoint.paths.plan()).unlink()
    vouched = Checkpoint.at(world.store, checkpoint.key, 1)
    vouched.vouched = seal.digest
    with pytest.raises((RecordsRemovedError, CorruptObjectError)):
        groups.commit([vouched], world.as_table())


def test_a_signed_store_is_swept_and_answers_as_before(world):
    world.store = CheckpointStore(world.store.location, ConnectionKeys(["0f" * 16]))
    checkpoint = landed(world)
    grow_old(world)
    assert swept(world)["orders", 1].kept == ""
    assert left(world, checkpoint) == BARE
    assert world.attempt().commit == checkpoint.committed()
    compact = checkpoint.compacted()
    forge(CheckpointStore(world.store.location), checkpoint.paths.compact, compact)
    with pytest.raises(SignatureError):
        checkpoint.sealed()
    # Nor does one that somebody else has made count for a write that has its records.
    other = landed(world, world.request("other"))
    forge(CheckpointStore(world.store.location), other.paths.compact, compact)
    grow_old(world)
    assert swept(world, keys="other")["other", 1].is_error
    assert other.store.exists(other.paths.seal())


@pytest.mark.parametrize("days", [-400, 400])
def test_no_clock_but_the_stores_own_is_asked(world, monkeypatch, days):
    """The store's clock, by which it dates its objects, is more than a year off, in both directions."""
    off, listing, head = timedelta(days=days), obstore.list, obstore.head

    def dated(item):
        return {**item, "last_modified": item["last_modified"] + off}

    monkeypatch.setattr(obstore, "list", lambda *args, **how: ([dated(item) for item in chunk] for chunk in listing(*args, **how)))
    monkeypatch.setattr(obstore, "head", lambda *args: dated(head(*args)))
    landed(world)
    assert swept(world, older_than=timedelta(hours=1)) == {}
    grow_old(world)
    assert swept(world)["orders", 1].kept == ""


# -- beside others -------------------------------------------------------------------------------------------------------------


class Between:
    """Something that happens right before the n-th request of a kind to the store."""

    def __init__(self, monkeypatch, operation, number, act):
        self.left, self.act = number, act
        self.original = getattr(obstore, operation)
        monkeypatch.setattr(obstore, operation, self)

    def __call__(self, *args, **settings):
        self.left -= 1
        if self.left == 0:
            self.act()
        return self.original(*args, **settings)


def test_a_replacement_that_is_opened_while_the_sweep_is_about_to_remove_keeps_what_it_needs(world, monkeypatch):
    """It is opened before the compact record is put, and after the store was listed."""
    checkpoint = landed(world)
    grow_old(world)
    request, opened = world.request(**REPLACE, transform=only_even), []
    compact = Checkpoint.compact

    def opens_first(self, seal):
        opened.append(world.attempt(request))
        return compact(self, seal)

    monkeypatch.setattr(Checkpoint, "compact", opens_first)
    assert "generation 2 was opened a moment ago" in swept(world)["orders", 1].kept
    monkeypatch.undo()
    assert opened[0].checkpoint.header.replaces == 1
    assert "seal.json" in left(world, checkpoint)
    landed(world, request)
    assert [row["id"] for row in world.read()] == [*range(0, 400, 2), *BEFORE]
    assert "takes its place" in swept(world)["orders", 1].kept


def test_a_replacement_that_comes_after_the_compact_record_is_refused_before_it_is_opened(world, monkeypatch):
    landed(world)
    grow_old(world)
    new_replacement, found = Sweep._new_replacement, []

    def asks_then(self, candidate):
        with pytest.raises(RecordsRemovedError):
            world.attempt(world.request(**REPLACE, transform=only_even))
        found.append(Checkpoint.generations(world.store, IdempotenceKey("orders")))
        return new_replacement(self, candidate)

    monkeypatch.setattr(Sweep, "_new_replacement", asks_then)
    assert swept(world)["orders", 1].kept == ""
    assert found == [[1]]


def test_a_replacement_whose_header_comes_too_late_fails_before_it_stages_anything(world, monkeypatch):
    """It looked before the compact record was put, and put its header after the sweep has looked for it."""
    landed(world)
    grow_old(world)
    create, done = CheckpointStore.create, []

    def after_a_sweep(self, name, document):
        if name.endswith("g2/header.json") and not done:
            done.append(swept(world)["orders", 1])
        return create(self, name, document)

    monkeypatch.setattr(CheckpointStore, "create", after_a_sweep)
    with pytest.raises(RecordsRemovedError):
        world.attempt(world.request(**REPLACE, transform=only_even))
    assert done[0].kept == ""
    assert world.read() == of(range(400), BEFORE)


@pytest.mark.parametrize("operation", ["put", "delete", "list"])
@pytest.mark.parametrize("number", [1, 2, 4, 7])
def test_two_sweeps_at_once_do_what_one_does(world, monkeypatch, operation, number):
    """The second one runs as a whole, between any two steps of the first."""
    world.stage(splits=1)
    abandon(world, world.request())
    checkpoint = landed(world)
    world.stage(world.request("given up"), splits=2)
    grow_old(world)
    inner = []
    Between(monkeypatch, operation, number, lambda: inner.append(swept(world, abandoned="discard")))
    outer = swept(world, abandoned="discard")
    monkeypatch.undo()
    assert not any(one.is_error for found in [outer, *inner] for one in found.values()), (outer, inner)
    swept(world, abandoned="discard")
    assert left(world, checkpoint) == BARE
    assert world.attempt().commit is not None
    assert world.read() == of(range(400), BEFORE)
    world.commit(world.stage(world.request("given up")))


@pytest.mark.parametrize("number", range(1, 9))
def test_a_run_that_is_cleared_at_any_moment_of_a_sweep_finds_its_commit(world, monkeypatch, number):
    checkpoint = landed(world)
    before = reference(checkpoint, checkpoint.sealed(), State.COMMITTED, recovered=4, written=0)
    grow_old(world)
    found = []

    def cleared():
        attempt = world.attempt()
        attempt.verify_commit()
        found.append(reference(attempt.checkpoint, attempt.checkpoint.sealed(), State.COMMITTED, recovered=4, written=0))
        (settled,) = world.commit(attempt)
        found.append(settled.landed_now)

    Between(monkeypatch, "delete", number, cleared)
    assert swept(world)["orders", 1].kept == ""
    monkeypatch.undo()
    if not found:
        pytest.fail("the sweep had fewer deletions")
    assert found == [before, False]


def test_a_sweep_at_any_moment_of_a_cleared_run_leaves_it_its_commit(world, monkeypatch):
    """The other way round: all of a sweep happens between two requests of the stage and the commit."""
    checkpoint = landed(world)
    before = reference(checkpoint, checkpoint.sealed(), State.COMMITTED, recovered=4, written=0)
    grow_old(world)
    kept = {path: path.read_bytes() for path in (world.root / "store").rglob("*") if path.is_file()}
    number = 0
    while True:
        number += 1
        for path, data in kept.items():
            path.write_bytes(data)
        (world.root / "store" / checkpoint.paths.compact).unlink(missing_ok=True)
        grow_old(world)
        done = []
        Between(monkeypatch, "get", number, lambda done=done: done.append(swept(world)))
        attempt = world.attempt()
        attempt.verify_commit()
        facts = reference(attempt.checkpoint, attempt.checkpoint.sealed(), State.COMMITTED, recovered=4, written=0)
        (settled,) = world.commit(attempt)
        monkeypatch.undo()
        if not done:
            break
        assert done[0]["orders", 1].kept == ""
        assert (facts, settled.landed_now) == (before, False), number
    assert number > 8


# -- others that read a key whose records are cleaned up -----------------------------------------------------------------------


def test_a_clean_up_of_one_key_finds_nothing_left(world):
    checkpoint = landed(world)
    grow_old(world)
    swept(world)
    (one,) = clean(checkpoint, lambda _: world.as_table())
    assert (one.state, one.files, one.left) == (State.COMMITTED, 0, "")


def test_a_cleared_stage_cannot_tell_what_there_is_to_read_since_and_says_so(world):
    landed(world)
    grow_old(world)
    swept(world)
    with pytest.raises(RecordsRemovedError, match="cleaned up"):
        world.attempt().news()


def test_the_compact_record_is_the_seal_without_its_lists(world):
    checkpoint = landed(world)
    seal = checkpoint.sealed()
    attempts = checkpoint.owned_names().attempts
    grow_old(world)
    swept(world)
    compact = world.store.read(checkpoint.paths.compact, Compact)
    said, sealed = msgspec.to_builtins(compact), msgspec.to_builtins(seal)
    assert compact.digest == seal.digest
    assert set(compact.attempts) == attempts
    assert {name for name in sealed if said[name] != sealed[name]} == {"document", "manifests"}
    assert len(json.dumps(said)) < 1500


# -- cost ----------------------------------------------------------------------------------------------------------------------


def in_a_bucket(tmp_path, bucket):
    world = Iceberg(tmp_path)
    world.put_files(1, 4)
    world.make()
    world.store = CheckpointStore.at(bucket.uri("checkpoints"), **bucket.options)
    return world


def test_a_store_of_a_thousand_keys_is_listed_once_and_only_what_is_old_is_read(tmp_path):
    world = Iceberg(tmp_path)
    world.put_files(1, 4)
    world.make()
    first = landed(world, world.request("orders/0"))
    store = world.root / "store"
    # As many keys as a year of three tasks has.
    whole = {path.name: path for path in (store / first.paths.root).rglob("*") if path.is_file()}
    for number in range(1, 1000):
        folder = store / IdempotenceKey(f"orders/{number}").hash / "g1"
        for path in whole.values():
            copy = folder / path.relative_to(store / first.paths.root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, copy)
    with counted() as requests:
        assert swept(world) == {}
    assert requests == {"put": 1, "head": 1, "delete": 1, "list": 1}
    # Of one key, which is named, not even the others are listed.
    with counted() as requests:
        assert swept(world, keys="orders/7") == {}
    assert requests == {"put": 1, "head": 1, "delete": 1, "list": 1}
    # A link has the time of its file: for one of them to be old, it has to be a file of its own.
    for path in (store / first.paths.root).rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
    grow_old(world, "orders/0")
    with counted() as requests:
        found = swept(world)
    assert found.keys() == {("orders/0", 1)}
    assert found["orders/0", 1].kept == ""
    assert requests["get"] <= 12
    assert requests["head"] <= 5
    assert requests["list"] <= 6
    assert requests["put"] == 2


def test_in_object_storage_records_are_removed_many_at_a_time(tmp_path, s3_bucket, monkeypatch):
    world = in_a_bucket(tmp_path, s3_bucket)
    world.put_files(30, 2)
    checkpoint = landed(world)
    # The bucket dates its objects itself: its clock goes on by a month.
    now = CheckpointStore.now
    monkeypatch.setattr(CheckpointStore, "now", lambda store: now(store) + timedelta(days=30))
    with counted() as requests:
        one = swept(world)["orders", 1]
    assert one.kept == ""
    assert one.objects > 30
    # What read the clock; the seal, what it seals, and the attempts.
    assert requests["delete"] == 4
    assert left(world, checkpoint) == BARE
    assert world.attempt().commit == checkpoint.committed()


def test_every_object_of_a_write_has_a_place(world):
    """A name that the layout gives, and that a sweep would take for a foreign one, would never be removed."""
    world.stage(world.request("begun"), splits=1)
    landed(world, world.request(**UPSERT))
    for name in world.store.names(""):
        assert place_of(name) is not None, name


def odd_only(id):  # noqa: A002 - the name of a column
    if id % 2 == 0:
        raise ValueError("even")
    return {"value": 1.0}


BY_ROW = {"transform": Map(odd_only, output={"value": float}, keep=["id", "kind", "at"]), "on_error": OnError("skip")}


@pytest.mark.parametrize("dry_run", [True, False])
def test_rows_that_a_write_has_rejected_which_was_given_up_go_with_its_records(world, dry_run):
    attempt = world.stage(world.request(**BY_ROW))
    folder = attempt.checkpoint.paths.rejected_folder
    rejected = world.store.names(folder)
    attempt.checkpoint.discard("a test")
    grow_old(world)
    found = swept(world, dry_run=dry_run)["orders", 1]
    assert found.kept == ""
    assert found.objects > len(rejected) > 0
    assert world.store.names(folder) == (rejected if dry_run else [])


def test_rows_that_were_rejected_can_be_run_again_after_a_sweep(world):
    attempt = world.stage(world.request(**BY_ROW))
    world.commit(attempt)
    told = chains.output(attempt)
    grow_old(world)
    assert swept(world)["orders", 1].kept == ""
    again = world.stage(world.request("again", source=Rejected(told).opened(world.store)))
    world.commit(again)
    assert sorted(row["id"] for row in world.read()) == sorted([*range(400), *BEFORE])


# -- what was undone -------------------------------------------------------------------------------------------------------


def test_an_undone_write_is_swept_as_any_other_and_stays_undone(world):
    attempt = world.stage()
    world.commit(attempt)
    undo(Checkpoint.latest(world.store, attempt.checkpoint.key), world.as_table(), "ada")
    for _ in range(3):
        grow_old(world)
        assert not any(one.is_error for one in swept(world).values())
    with pytest.raises(UndoneError):
        world.commit(attempt)
    assert world.read() == of(BEFORE)
    again = world.stage()
    assert again.checkpoint.header.generation == 3
    world.commit(again)
    assert world.read() == of(range(400), BEFORE)


def test_a_write_whose_records_were_swept_is_undone_where_the_table_itself_says_what_it_was(world):
    checkpoint = landed(world)
    grow_old(world)
    swept(world)
    if isinstance(world, Iceberg):
        assert undo(checkpoint, world.as_table(), "ada").landed_now
        assert world.read() == of(BEFORE)
        return
    with pytest.raises(RecordsRemovedError, match="Nothing was changed"):
        undo(checkpoint, world.as_table(), "ada")
    assert Checkpoint.latest(world.store, checkpoint.key).header.generation == 1
    assert world.read() == of(range(400), BEFORE)
