"""Others make versions and clean up the oldest of them between our look and our commit: the number of ours may be free again.

Lance then makes a version below the latest one, which nobody will ever read, and says that all is well.
"""

from __future__ import annotations

import os
from datetime import timedelta

import lance
import pytest
from support.columns import columns_request, computed
from support.lance_racers import Racers
from support.lance_world import FOREIGN, LanceWorld
from support.world import rows

from airflow_ckpt_provider.exceptions import HistoryExpiredError, RetryableError, TableExistsError, TableMovedError
from airflow_ckpt_provider.tables.lance.commit import VersionChange

pytestmark = pytest.mark.crash


def clean_up(world):
    """All versions but the last are removed."""
    assert world.dataset.cleanup_old_versions(older_than=timedelta(0)).old_versions > 0


def compacts_and_cleans_up(world):
    world.dataset.optimize.compact_files()
    clean_up(world)


def appends_and_cleans_up(world):
    for number in range(3):
        world.there += world.foreign_append(FOREIGN + 2000 + 1000 * number)
    clean_up(world)


def configures_and_cleans_up(world):
    for number in range(2):
        world.dataset.update_config({"some": str(number)})
    clean_up(world)


def indexes_and_cleans_up(world):
    world.dataset.create_scalar_index("id", "BTREE")
    world.foreign_append(FOREIGN + 2000, 1)
    world.there.append(FOREIGN + 2000)
    clean_up(world)


def adds_a_column_and_cleans_up(world):
    world.there += world.foreign_append(FOREIGN + 2000)
    world.dataset.optimize.compact_files()
    world.dataset.add_columns({"more": "id + 1"})
    clean_up(world)


def deletes_and_cleans_up(world):
    world.dataset.delete(f"id = {FOREIGN}")
    world.dataset.delete(f"id = {FOREIGN + 1}")
    world.there = [number for number in world.there if number not in {FOREIGN, FOREIGN + 1}]
    clean_up(world)


WORKS = [
    compacts_and_cleans_up,
    appends_and_cleans_up,
    configures_and_cleans_up,
    indexes_and_cleans_up,
    adds_a_column_and_cleans_up,
    deletes_and_cleans_up,
]


def at_the_commit(monkeypatch, *works, after=False):
    """Let others do something when Lance is asked to commit, after our last look at the dataset; or right after the commit."""
    waiting, commit, made = list(works), lance.LanceDataset.commit, []

    def interrupted(*args, **settings):
        # In memory, Lance is only asked what it would make of a schema.
        work = waiting.pop(0) if waiting and not str(getattr(args[0], "uri", args[0])).startswith("memory://") else None
        if work is not None and not after:
            work()
        found = commit(*args, **settings)
        if work is not None:
            made.append(found.version)
            if after:
                work()
        return found

    monkeypatch.setattr(lance.LanceDataset, "commit", staticmethod(interrupted))
    return made


def ids_shown(world):
    return sorted(world.dataset.to_table(columns=["id"])["id"].to_pylist())


class Write:
    """A mode, and the ids that are there after it."""

    def __init__(self, root, mode, count=4, **settings):
        self.mode, self.world = mode, LanceWorld(root)
        self.world.there = self.world.create_dataset(**settings) + self.world.foreign_append()
        self.world.put_files(3, count)
        self.own = list(range(3 * count))

    def stage(self):
        if self.mode == "add_columns":
            return self.world.stage(columns_request(self.world))
        return self.world.stage(self.world.request(mode=self.mode, parameters=UPSERT if self.mode == "upsert" else {}))

    def assert_landed_once(self):
        dataset, ids = self.world.dataset, ids_shown(self.world)
        dataset.validate()
        kept = [] if self.mode == "overwrite" else self.world.there
        if self.mode == "add_columns":
            assert ids == sorted(kept)
            assert set(computed(self.world)) <= set(ids)
        else:
            assert ids == sorted([*self.own, *kept])

    def assert_not_there(self):
        assert ids_shown(self.world) == sorted(self.world.there)
        assert "tens" not in self.world.dataset.schema.names


UPSERT = {"upsert_keys": ["id"]}

MODES = ["append", "overwrite", "overwrite by nothing", "upsert", "add_columns"]


def write_of(root, mode, **settings):
    return Write(root, mode.partition(" ")[0], 0 if mode == "overwrite by nothing" else 4, **settings)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("work", WORKS)
def test_whatever_others_make_and_clean_up_at_the_commit_green_is_readable_and_red_is_not_there(tmp_path, monkeypatch, work, mode):
    write = write_of(tmp_path, mode)
    attempt = write.stage()
    at_the_commit(monkeypatch, lambda: work(write.world))
    for _ in range(3):
        try:
            (landed,) = write.world.commit(attempt)
        except TableMovedError:
            attempt = write.stage()
        except HistoryExpiredError:
            # Versions are gone in which another process could have landed it: nothing tells.
            assert attempt.checkpoint.committed() is None
            write.assert_not_there()
            return
        else:
            break
    write.assert_landed_once()
    assert landed.commit.commit_id == write.world.dataset.version
    assert attempt.checkpoint.committed().commit_id == write.world.dataset.version


def below(world, monkeypatch, attempt, work):
    """Let Lance make a version of this attempt below the latest one, and the task be killed right after that."""
    made = []

    def killed(*_):
        raise KilledError

    with monkeypatch.context() as patched:
        made = at_the_commit(patched, work)
        patched.setattr(VersionChange, "_require_in_lineage", killed)
        with pytest.raises(KilledError):
            world.commit(attempt)
    return made[0]


class KilledError(BaseException):
    """What ends a process, as far as the test is concerned."""


@pytest.mark.parametrize("mode", ["overwrite", "overwrite by nothing"])
def test_a_version_below_the_latest_is_not_taken_for_the_commit_by_a_retry(tmp_path, monkeypatch, mode):
    """All versions that the retry looks at are there, and one of them has the name of the commit."""
    write = write_of(tmp_path, mode)
    world, attempt = write.world, write.stage()
    number = below(world, monkeypatch, attempt, lambda: compacts_and_cleans_up(world))
    assert number < world.dataset.version
    write.assert_not_there()
    (landed,) = world.commit(attempt)
    assert landed.landed_now
    assert landed.commit.commit_id == world.dataset.version == number + 2
    write.assert_landed_once()
    (world.root / "store" / attempt.checkpoint.paths.commit).unlink()
    (again,) = world.commit(attempt)
    assert (again.landed_now, again.commit.commit_id) == (False, number + 2)
    write.assert_landed_once()


@pytest.mark.parametrize(
    "work",
    [
        lambda world: world.dataset.optimize.compact_files(),
        lambda world: world.there.extend(world.foreign_append(FOREIGN + 5000)),
        lambda world: world.dataset.update_config({"some": "thing"}),
        lambda world: world.dataset.create_scalar_index("id", "BTREE"),
        lambda world: world.dataset.add_columns({"more": "id + 1"}),
        lambda world: world.dataset.update({"kind": "kind"}, where=f"id in (1, {FOREIGN})"),
        lambda world: world.dataset.merge_insert("id").when_matched_update_all().execute(rows(FOREIGN, 2)),
    ],
    ids=["compacts", "appends", "configures", "indexes", "adds a column", "updates", "merges"],
)
@pytest.mark.parametrize("cleaned", [False, True], ids=["", "and cleans up"])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "overwrite by nothing"])
def test_what_others_do_right_after_the_commit_does_not_hide_it(tmp_path, monkeypatch, mode, work, cleaned):
    write = write_of(tmp_path, mode)
    world, attempt = write.world, write.stage()

    def others():
        work(world)
        if cleaned:
            clean_up(world)

    made = at_the_commit(monkeypatch, others, after=True)
    (landed,) = world.commit(attempt)
    assert landed.landed_now
    assert landed.commit.commit_id == made[0] < world.dataset.version
    if mode != "overwrite":
        write.assert_landed_once()
    assert len(made) == 1


@pytest.mark.parametrize(
    "work",
    [
        lambda world: world.dataset.delete("true"),
        lambda world: lance.write_dataset(rows(FOREIGN, 3), world.uri, mode="overwrite", schema=world.dataset.schema),
        lambda world: world.dataset.optimize.compact_files(),
    ],
    ids=["deletes all", "overwrites", "compacts"],
)
def test_a_commit_whose_rows_others_took_away_right_after_it_is_not_repeated(tmp_path, monkeypatch, work):
    write = write_of(tmp_path, "append")
    world, attempt = write.world, write.stage()
    at_the_commit(monkeypatch, lambda: work(world), after=True)
    (landed,) = world.commit(attempt)
    before = world.table_rows()
    (world.root / "store" / attempt.checkpoint.paths.commit).unlink()
    (again,) = world.commit(attempt)
    assert (again.landed_now, again.commit.commit_id) == (False, landed.commit.commit_id)
    assert world.table_rows() == before


def test_a_create_whose_rows_others_took_away_right_after_it_is_not_repeated(tmp_path):
    world = LanceWorld(tmp_path)
    world.put_files(3, 4)
    attempt = world.stage(world.request(mode="create"))
    world.commit(attempt)
    world.dataset.delete("true")
    (world.root / "store" / attempt.checkpoint.paths.commit).unlink()
    (again,) = world.commit(attempt)
    assert (again.landed_now, again.commit.commit_id) == (False, 1)
    assert ids_shown(world) == []


def test_a_commit_of_which_nothing_is_left_that_could_tell_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    write = write_of(tmp_path, "append")
    world, attempt = write.world, write.stage()

    def others():
        world.dataset.optimize.compact_files()
        for number in range(2):
            world.foreign_append(FOREIGN + 5000 + 100 * number)
            world.dataset.optimize.compact_files()
        clean_up(world)

    at_the_commit(monkeypatch, others, after=True)
    for _ in range(2):
        with pytest.raises(
            HistoryExpiredError, match=r"'orders'.*orders\.lance.*mark the task as success.*another idempotence key"
        ):
            world.commit(attempt)
    assert attempt.checkpoint.committed() is None


def test_a_dataset_whose_bound_version_has_its_number_from_a_commit_below_the_latest_is_not_said_to_be_made_anew(
    tmp_path, monkeypatch
):
    write = write_of(tmp_path, "append")
    world = write.world
    other = world.stage(world.request("other", mode="overwrite"))
    attempts = []

    def others():
        world.dataset.update_config({"some": "thing"})
        attempts.append(write.stage())
        compacts_and_cleans_up(world)

    number = below(world, monkeypatch, other, others)
    assert attempts[0].checkpoint.header.table.base["version"] == number
    (landed,) = world.commit(attempts[0])
    assert landed.landed_now
    write.assert_landed_once()


def test_a_create_at_the_moment_that_others_have_made_the_dataset_and_cleaned_up_is_refused(tmp_path, monkeypatch):
    world = LanceWorld(tmp_path)
    world.put_files(3, 4)
    attempt = world.stage(world.request(mode="create"))

    def others():
        world.there = world.create_dataset() + world.foreign_append()
        clean_up(world)

    at_the_commit(monkeypatch, others)
    with pytest.raises((TableExistsError, HistoryExpiredError), match=r"Nothing\s+was changed"):
        world.commit(attempt)
    assert ids_shown(world) == sorted(world.there)


@pytest.mark.parametrize("work", [compacts_and_cleans_up, appends_and_cleans_up])
def test_an_overwrite_below_the_latest_version_in_object_storage_is_not_green(tmp_path, monkeypatch, s3_bucket, work):
    world = LanceWorld(tmp_path, s3_bucket.uri("orders.lance"), s3_bucket.options)
    world.there = world.create_dataset() + world.foreign_append()
    world.put_files(3, 4)
    attempt = world.stage(world.request(mode="overwrite"))
    at_the_commit(monkeypatch, lambda: work(world))
    try:
        world.commit(attempt)
    except HistoryExpiredError:
        assert ids_shown(world) == sorted(world.there)
    else:
        assert ids_shown(world) == list(range(12))


# -- what is looked at is cleaned up meanwhile --------------------------------------------------------------------------------


def vanishing(monkeypatch, times):
    """Let the latest version be cleaned up so often between Lance's list of the versions and its look at that one."""
    opened, left = lance.dataset, [times]

    def dataset(uri, *args, **settings):
        if left[0] and settings.get("version") is None:
            left[0] -= 1
            raise ValueError(f"Dataset at path {uri} was not found: Not found: {uri}/_versions/18446744073709551612.manifest")
        return opened(uri, *args, **settings)

    monkeypatch.setattr(lance, "dataset", dataset)


@pytest.mark.parametrize("mode", MODES)
def test_a_dataset_whose_latest_version_is_cleaned_up_while_it_is_opened_is_there(tmp_path, monkeypatch, mode):
    write = write_of(tmp_path, mode)
    vanishing(monkeypatch, 3)
    attempt = write.stage()
    vanishing(monkeypatch, 3)
    (landed,) = write.world.commit(attempt)
    assert landed.landed_now
    write.assert_landed_once()


def test_a_dataset_that_is_cleaned_up_at_each_look_is_not_said_to_be_gone(tmp_path, monkeypatch):
    write = write_of(tmp_path, "append")
    attempt = write.stage()
    with monkeypatch.context() as patched:
        vanishing(patched, -1)
        with pytest.raises(RetryableError, match=r"orders\.lance was looked at 20 times.*Nothing was changed"):
            write.world.commit(attempt)
    write.world.commit(attempt)
    write.assert_landed_once()


@pytest.mark.parametrize("mode", MODES)
def test_a_look_at_a_version_that_is_cleaned_up_by_then_is_repeated(tmp_path, monkeypatch, mode):
    write = write_of(tmp_path, mode)
    attempt = write.stage()
    left = [3]
    fragments = lance.LanceDataset.get_fragments

    def gone(self, *args, **settings):
        if left[0] and not self.uri.startswith("memory://"):
            left[0] -= 1
            raise OSError(f"LanceError(IO): Object at location {self.uri}/_versions/18446744073709551612.manifest not found")
        return fragments(self, *args, **settings)

    monkeypatch.setattr(lance.LanceDataset, "get_fragments", gone)
    (landed,) = write.world.commit(attempt)
    assert landed.commit.commit_id == write.world.dataset.version
    write.assert_landed_once()
    assert left[0] < 3


#: How often each race is run: beside a loop of compaction and clean-up.
ROUNDS = int(os.environ.get("ROUNDS", "0"))


@pytest.mark.parametrize(("mode", "times"), [("overwrite", 260 if ROUNDS else 25), ("append", 300 if ROUNDS else 25)])
def test_nothing_that_was_said_to_have_landed_is_lost_beside_an_endless_clean_up(tmp_path, mode, times):
    racers = Racers(2)
    world = LanceWorld(tmp_path)
    there = world.create_dataset() + world.foreign_append()
    end = str(tmp_path / "end")
    jobs = [{"do": "write_many", "mode": mode, "first": 0, "times": times, "end": end}, {"do": "tidy", "end": end}]
    said, tidied = racers.race(world, jobs)
    racers.close()
    assert said["lost"] == []
    assert tidied
    assert len(said["green"]) + len(said["not told"]) == times
    assert said["green"]
    if mode == "append":
        found = ids_shown(world)
        assert len(set(found)) == len(found)
        assert {*said["green"], *there} <= set(found) <= {*said["green"], *there, *said["not told"]}
