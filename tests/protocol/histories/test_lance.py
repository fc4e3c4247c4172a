"""What happens to a dataset while rows are staged for it: history cut or turned back, other columns, other rows, lost replies.

The commit lands once, in the dataset as it is then, or changes nothing and says why.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.columns import columns_request, computed
from support.lance_world import FOREIGN, LanceWorld, expected
from support.world import rows

from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.exceptions import (
    HistoryExpiredError,
    OutcomeUnknownError,
    RolledBackError,
    SchemaMismatchError,
    StagedFileMissingError,
    TableExistsError,
    TableMissingError,
    TableMovedError,
)
from airflow_ckpt_provider.write import commit_loop

pytestmark = pytest.mark.crash

IDS = list(range(12))

#: What a dataset that is there takes.
MODES = ["append", "overwrite", "upsert", "add_columns"]

NOTHING_LEFT = timedelta(0)


@pytest.fixture
def world(tmp_path):
    """A dataset with rows of others, and input."""
    world = LanceWorld(tmp_path)
    world.there = world.create_dataset()
    world.put_files(3, 4)
    return world


class Scene:
    """A world in which a mode has something to do: of the rows of others that are there, an upsert writes some again.

    :param settings: of the dataset.
    """

    def __init__(self, root, mode, before=5, **settings):
        self.mode, self.world = mode, LanceWorld(root)
        self.world.there = [] if mode == "create" else self.world.create_dataset(count=before, **settings)
        self.world.put_files(3, 4)
        self.own = IDS
        if mode == "upsert":
            pq.write_table(rows(FOREIGN + 1, 3), self.world.input / "3.parquet")
            self.own = [*IDS, FOREIGN + 1, FOREIGN + 2, FOREIGN + 3]

    @property
    def request(self):
        if self.mode == "add_columns":
            return columns_request(self.world)
        return self.world.request(mode=self.mode, parameters={"upsert_keys": ["id"]} if self.mode == "upsert" else {})

    def ids(self, kept=None):
        """Of all rows that are to be there after it, if those of others that would have stayed are these."""
        kept = self.world.there if kept is None else kept
        return sorted({"overwrite": {*self.own}, "add_columns": {*kept}}.get(self.mode, {*self.own, *kept}))

    def assert_landed_once(self, attempt, kept=None):
        if self.mode != "add_columns":
            assert_landed_once(self.world, attempt, self.ids(kept))
            return
        assert computed(self.world) == self.ids(kept)
        assert_in_one_version(self.world, attempt)


@pytest.fixture
def impatient(monkeypatch):
    """The commit gives up at once, as it does after ten minutes without a usable answer."""
    monkeypatch.setattr(commit_loop, "PATIENCE_S", 0.0)


def forget_the_record(world, attempt):
    """Take the commit record away: what a crash between the dataset's version and the record leaves."""
    (world.root / "store" / attempt.checkpoint.paths.commit).unlink()


def landed_without_record(world, request=None):
    attempt = world.stage(request)
    world.commit(attempt)
    forget_the_record(world, attempt)
    return attempt


def bound_and_given_up(world, monkeypatch, request=None):
    """A commit that was begun and never reached the dataset."""
    attempt = world.stage(request)
    with monkeypatch.context() as patched:
        patched.setattr(commit_loop, "PATIENCE_S", 0.0)
        faults(patched, "fails_before")
        with pytest.raises(OutcomeUnknownError, match="retry the commit task"):
            world.commit(attempt)
    return attempt


def clean_up(world):
    """All versions but the last are removed."""
    assert world.dataset.cleanup_old_versions(older_than=NOTHING_LEFT).old_versions > 0


def table_as_it_is(world):
    return world.versions(), world.table_rows(), world.dataset.schema


def assert_landed_once(world, attempt, ids):
    """In one version, beside what else is there, and in the record."""
    assert world.table_rows() == expected(*ids)
    assert_in_one_version(world, attempt)


def assert_in_one_version(world, attempt):
    world.dataset.validate()
    assert len(world.own_versions()) == 1
    assert attempt.checkpoint.committed().commit_id == world.own_versions()[0].number
    assert state_of(attempt.checkpoint) is State.COMMITTED


def assert_refused(world, attempt, error, match):
    """Nothing is changed, and nothing is remembered as committed."""
    before = table_as_it_is(world)
    for _ in range(2):
        with pytest.raises(error, match=match):
            world.commit(attempt)
    assert table_as_it_is(world) == before
    assert attempt.checkpoint.committed() is None


# -- history that was cleaned up ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_landed_commit_whose_version_was_cleaned_up_is_not_repeated(tmp_path, mode):
    scene = Scene(tmp_path, mode)
    world = scene.world
    attempt = landed_without_record(world, scene.request)
    world.foreign_append()
    clean_up(world)
    before = table_as_it_is(world)
    said = r"'(orders|columns)'.*orders\.lance.*Nothing was changed.*mark the task as success"
    assert_refused(world, attempt, HistoryExpiredError, said)
    with pytest.raises(HistoryExpiredError):
        world.stage(scene.request)
    assert table_as_it_is(world) == before


def test_a_recorded_commit_whose_version_was_cleaned_up_is_reported(world):
    attempt = world.stage()
    world.commit(attempt)
    world.foreign_append()
    clean_up(world)
    (again,) = world.commit(attempt)
    assert (again.commit.commit_id, again.landed_now) == (2, False)
    assert world.stage().commit.commit_id == 2


def test_a_landed_commit_is_found_if_only_versions_before_it_were_cleaned_up(world):
    world.foreign_append(FOREIGN + 100)
    world.foreign_append(FOREIGN + 200)
    attempt = landed_without_record(world)
    world.foreign_append(FOREIGN + 300)
    world.dataset.cleanup_old_versions(versions=[1, 2])
    assert [version.number for version in world.versions()] == [3, 4, 5]
    (again,) = world.commit(attempt)
    assert (again.commit.commit_id, again.landed_now) == (4, False)


@pytest.mark.parametrize("mode", MODES)
def test_a_landed_commit_is_found_if_the_version_it_was_built_on_was_cleaned_up(tmp_path, mode):
    scene = Scene(tmp_path, mode)
    world = scene.world
    attempt = landed_without_record(world, scene.request)
    clean_up(world)
    assert [version.number for version in world.versions()] == [2]
    (again,) = world.commit(attempt)
    assert (again.commit.commit_id, again.landed_now) == (2, False)
    scene.assert_landed_once(attempt)


def test_a_dataset_that_was_created_and_cleaned_up_is_not_created_again(tmp_path):
    world = LanceWorld(tmp_path)
    world.put_files(3, 4)
    attempt = landed_without_record(world, world.request(mode="create"))
    more = world.foreign_append()
    clean_up(world)
    assert_refused(world, attempt, HistoryExpiredError, "Nothing was changed")
    assert world.ids() == IDS + more


def test_versions_that_were_cleaned_up_before_the_commit_was_begun_do_not_matter(world):
    attempt = world.stage()
    more = world.foreign_append()
    clean_up(world)
    (landed,) = world.commit(attempt)
    assert landed.landed_now
    assert_landed_once(world, attempt, IDS + world.there + more)


@pytest.mark.parametrize("mode", MODES)
def test_a_commit_that_was_begun_and_never_landed_is_not_guessed_to_be_missing(tmp_path, monkeypatch, mode):
    scene = Scene(tmp_path, mode)
    world = scene.world
    attempt = bound_and_given_up(world, monkeypatch, scene.request)
    world.foreign_append(FOREIGN + 100)
    world.foreign_append(FOREIGN + 200)
    clean_up(world)
    assert_refused(world, attempt, HistoryExpiredError, "Nothing was changed")


def test_a_commit_that_was_begun_and_never_landed_lands_if_all_versions_since_are_there(world, monkeypatch):
    attempt = bound_and_given_up(world, monkeypatch)
    more = world.foreign_append()
    (landed,) = world.commit(attempt)
    assert (landed.commit.commit_id, landed.landed_now) == (3, True)
    assert_landed_once(world, attempt, IDS + world.there + more)


def test_a_tagged_commit_is_found_behind_the_gap_only_if_nothing_else_could_be_it(world):
    attempt = landed_without_record(world)
    world.dataset.tags.create("keep", 2)
    world.foreign_append(FOREIGN + 100)
    world.foreign_append(FOREIGN + 200)
    world.dataset.cleanup_old_versions(older_than=NOTHING_LEFT, error_if_tagged_old_versions=False)
    assert [version.number for version in world.versions()] == [2, 4]
    before = table_as_it_is(world)
    with pytest.raises(HistoryExpiredError):
        world.commit(attempt)
    assert table_as_it_is(world) == before


# -- history that was turned back ---------------------------------------------------------------------------------------------


def test_a_commit_that_was_restored_away_is_not_repeated(world):
    attempt = landed_without_record(world)
    world.dataset.checkout_version(1).restore()
    assert_refused(world, attempt, RolledBackError, r"'orders'.*restored.*another\s+idempotence key")
    assert world.ids() == world.there


def test_a_recorded_commit_that_was_restored_away_is_reported_by_the_stage(world):
    world.commit(world.stage())
    world.dataset.checkout_version(1).restore()
    with pytest.raises(RolledBackError):
        world.attempt().verify_commit()


def test_a_commit_that_a_restored_version_shows_is_there(world):
    attempt = landed_without_record(world)
    world.foreign_append()
    world.dataset.checkout_version(2).restore()
    (again,) = world.commit(attempt)
    assert (again.commit.commit_id, again.landed_now) == (2, False)
    assert world.ids() == sorted(IDS + world.there)


def test_a_commit_that_was_restored_away_and_back_is_there(world):
    attempt = landed_without_record(world)
    world.dataset.checkout_version(1).restore()
    more = world.foreign_append()
    world.dataset.checkout_version(2).restore()
    (again,) = world.commit(attempt)
    assert (again.commit.commit_id, again.landed_now) == (2, False)
    assert not set(more) & set(world.ids())


def test_a_dataset_restored_between_stage_and_commit_takes_the_rows(world):
    world.foreign_append()
    attempt = world.stage()
    world.dataset.checkout_version(1).restore()
    (landed,) = world.commit(attempt)
    assert landed.landed_now
    assert_landed_once(world, attempt, IDS + world.there)


# -- another dataset ----------------------------------------------------------------------------------------------------------


def make_anew(world, versions=1):
    shutil.rmtree(world.uri)
    world.create_dataset()
    for number in range(versions - 1):
        world.foreign_append(FOREIGN + 1000 * number)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("versions", [1, 3])
def test_rows_staged_for_a_dataset_that_was_made_anew_do_not_land_in_the_new_one(world, versions, mode):
    attempt = world.stage(world.request(mode=mode))
    make_anew(world, versions)
    assert_refused(world, attempt, TableMissingError, r"orders\.lance.*made anew.*another idempotence key")


def test_a_commit_that_was_begun_before_the_dataset_was_made_anew_does_not_land_in_it(world, monkeypatch):
    attempt = bound_and_given_up(world, monkeypatch)
    make_anew(world, 3)
    assert_refused(world, attempt, TableMissingError, "made anew")


def test_a_dataset_that_was_made_anew_and_cleaned_up_lacks_the_staged_files(world):
    attempt = world.stage()
    make_anew(world, 3)
    clean_up(world)
    assert_refused(world, attempt, StagedFileMissingError, "Nothing was committed")


def test_rows_staged_for_a_dataset_that_was_removed_do_not_make_one(world):
    attempt = world.stage()
    shutil.rmtree(world.uri)
    with pytest.raises(TableMissingError, match=r"orders\.lance"):
        world.commit(attempt)
    assert not world.exists


def test_a_dataset_that_somebody_else_made_meanwhile_is_not_overwritten_by_create(tmp_path):
    world = LanceWorld(tmp_path)
    world.put_files(3, 4)
    attempt = world.stage(world.request(mode="create"))
    world.create_dataset()
    assert_refused(world, attempt, TableExistsError, r"orders\.lance.*Nothing\s+was changed")


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: dataset.update({"kind": "'corrected'"}, where="id = 1"),
        lambda dataset: dataset.delete("id = 1"),
    ],
    ids=["updated", "deleted"],
)
def test_rows_that_others_have_updated_since_are_not_doubled_by_a_replacement(world, mode, change):
    """Where an updated row stands by now, no file tells; so it is not told from a deleted one either."""
    message = r"deleted or updated by others .* under another idempotence key"
    world.commit(world.stage(world.request(mode=mode)))
    attempt = world.stage(world.request(mode=mode, on_rerun="replace"))
    change(world.dataset)
    assert_refused(world, attempt, TableMovedError, message)


@pytest.mark.parametrize(
    ("mode", "change"),
    [
        ("append", lambda dataset: dataset.optimize.compact_files()),
        ("overwrite", lambda dataset: dataset.update({"kind": "'corrected'"}, where="id = 1")),
        ("upsert", lambda dataset: dataset.optimize.compact_files()),
    ],
    ids=["append", "overwrite", "upsert"],
)
def test_a_replacement_that_cannot_be_committed_is_refused_before_it_is_staged(world, mode, change):
    changes = {"mode": mode, "parameters": {"upsert_keys": ["id"]} if mode == "upsert" else {}}
    world.commit(world.stage(world.request(**changes)))
    change(world.dataset)
    with pytest.raises(TableMovedError, match="under another idempotence key"):
        world.stage(world.request(**changes, on_rerun="replace"))
    again = world.stage(world.request(**changes))
    assert again.commit is not None
    assert again.checkpoint.header.generation == 1


# -- other columns ------------------------------------------------------------------------------------------------------------

COLUMNS_ADDED = {
    "added": lambda dataset: dataset.add_columns({"more": "id + 1"}),
    "added as nulls": lambda dataset: dataset.add_columns(pa.field("more", pa.int64())),
}

COLUMN_CHANGES = {
    "renamed": lambda dataset: dataset.alter_columns({"path": "value", "name": "worth"}),
    "dropped": lambda dataset: dataset.drop_columns(["kind"]),
    "retyped": lambda dataset: dataset.alter_columns({"path": "value", "data_type": pa.float32()}),
    "dropped and added": lambda dataset: (dataset.drop_columns(["kind"]), dataset.add_columns({"kind": "'other'"})),
    "in another order": lambda dataset: lance.write_dataset(
        rows(1, 2).select(["at", "kind", "value", "id"]), dataset.uri, mode="overwrite"
    ),
}


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("change", COLUMN_CHANGES.values(), ids=COLUMN_CHANGES)
def test_rows_staged_before_the_columns_changed_are_not_committed(world, change, mode):
    attempt = world.stage(world.request(mode=mode))
    change(world.dataset)
    assert_refused(world, attempt, SchemaMismatchError, r"(?s)orders\.lance.*Nothing was committed.*restart")


@pytest.mark.parametrize("before", [5, 0], ids=["beside rows", "without rows"])
@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
@pytest.mark.parametrize("staged", [None, 2, 0], ids=["sealed", "half-way", "only begun"])
@pytest.mark.parametrize("change", COLUMNS_ADDED.values(), ids=COLUMNS_ADDED)
def test_columns_that_are_added_after_the_write_was_begun_are_null_in_its_rows(tmp_path, before, mode, staged, change):
    world = LanceWorld(tmp_path)
    there = world.create_dataset(count=before)
    world.put_files(3, 4)
    request = world.request(mode=mode, parameters={"upsert_keys": ["id"]} if mode == "upsert" else {})
    world.stage(request, splits=staged)
    change(world.dataset)
    worth = {row["id"]: row["more"] for row in world.table_rows()}
    world.commit(world.stage(request))
    kept = [] if mode == "overwrite" else there
    assert world.table_rows() == [row | {"more": worth.get(row["id"])} for row in expected(*IDS, *kept)]
    dataset = world.dataset
    dataset.validate()
    dataset.optimize.compact_files()
    assert world.table_rows() == [row | {"more": worth.get(row["id"])} for row in expected(*IDS, *kept)]
    dataset = world.dataset
    dataset.validate()
    lance.write_dataset(dataset.to_table().slice(0, 1), dataset.uri, mode="append")
    assert world.dataset.count_rows() == len(IDS) + len(kept) + 1


@pytest.mark.parametrize("before", [5, 0], ids=["beside rows", "without rows"])
@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
@pytest.mark.parametrize("change", COLUMN_CHANGES | COLUMNS_ADDED)
def test_columns_that_change_at_the_moment_of_the_commit_are_not_changed_back(tmp_path, monkeypatch, before, mode, change):
    """Either the commit is refused, or it is rebased over the change and its rows are read by the new columns."""
    scene = Scene(tmp_path, mode, before)
    world = scene.world
    attempt = world.stage(scene.request)
    changed, there = [], []

    def work():
        (COLUMN_CHANGES | COLUMNS_ADDED)[change](world.dataset)
        changed.append(world.dataset.schema)
        there.extend(world.table_rows())

    meanwhile(monkeypatch, work)
    if (mode, before, change) == ("upsert", 5, "added"):
        # Values of the new column are written into the fragments that were matched.
        with pytest.raises(TableMovedError, match="Clear the task"):
            world.commit(attempt)
        assert world.own_versions() == []
        attempt = world.stage(scene.request)
    try:
        world.commit(attempt)
    except SchemaMismatchError:
        assert change in COLUMN_CHANGES
        assert world.own_versions() == []
    else:
        found = {row["id"]: row for row in world.table_rows()}
        assert world.ids() == scene.ids()
        for row in expected(*scene.own):
            assert all(found[row["id"]].get(name, value) == value for name, value in row.items())
            assert found[row["id"]].get("more") is None
        assert [row for row in there if row["id"] in found.keys() - {*scene.own}] == [
            row for row in found.values() if row["id"] not in scene.own
        ]
        if "worth" in world.dataset.schema.names:
            assert [found[number]["worth"] for number in scene.own] == [row["value"] for row in expected(*scene.own)]
    assert world.dataset.schema == changed[0]
    world.dataset.validate()


# -- other rows ---------------------------------------------------------------------------------------------------------------


def deletes_some(world):
    world.dataset.delete(f"id in ({FOREIGN}, {FOREIGN + 1})")
    return world.there[2:]


def deletes_all(world):
    world.dataset.delete("true")
    return []


def appends(world):
    return world.there + world.foreign_append()


def compacts(world):
    more = world.foreign_append()
    world.dataset.optimize.compact_files()
    assert len(world.dataset.get_fragments()) == 1
    return world.there + more


def updates(world):
    world.dataset.update({"kind": "kind"}, where=f"id = {FOREIGN}")
    return world.there


def merges(world):
    world.dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(FOREIGN + 3, 4))
    return [*world.there, FOREIGN + 5, FOREIGN + 6]


def overwrites(world):
    lance.write_dataset(rows(FOREIGN + 50, 3), world.uri, mode="overwrite", schema=world.dataset.schema)
    return [FOREIGN + 50, FOREIGN + 51, FOREIGN + 52]


def indexes(world):
    world.dataset.create_scalar_index("id", "BTREE")
    return world.there


def configures(world):
    world.dataset.update_config({"some": "thing"})
    return world.there


def restores(world):
    version = world.dataset.version
    world.foreign_append()
    world.dataset.checkout_version(version).restore()
    return world.there


FOREIGN_WORK = [deletes_some, deletes_all, appends, compacts, updates, merges, overwrites, indexes, configures, restores]


def is_in_memory(dataset):
    """Whether it is none that anybody else sees."""
    return str(getattr(dataset, "uri", dataset)).startswith("memory://")


def meanwhile(monkeypatch, *works):
    """Let others do something when Lance is asked to commit: after our last look at the dataset."""
    waiting, commit = list(works), lance.LanceDataset.commit

    def interrupted(*args, **settings):
        if waiting and not is_in_memory(args[0]):
            waiting.pop(0)()
        return commit(*args, **settings)

    monkeypatch.setattr(lance.LanceDataset, "commit", staticmethod(interrupted))


AFTER_THE_STAGE, AT_THE_COMMIT = "after the stage", "at the moment of the commit"


def disturbed(monkeypatch, scene, work, when):
    """Let others do this work then; their rows that stay, known when it is done."""
    if when == AFTER_THE_STAGE:
        return work(scene.world)
    kept = []
    meanwhile(monkeypatch, lambda: kept.extend(work(scene.world)))
    return kept


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable row ids"])
@pytest.mark.parametrize("work", FOREIGN_WORK)
@pytest.mark.parametrize("when", [AFTER_THE_STAGE, AT_THE_COMMIT])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_what_others_do_to_rows_hinders_no_append_and_no_overwrite(tmp_path, monkeypatch, mode, work, when, stable):
    """What they have stays beside what is appended, and is replaced by an overwrite."""
    scene = Scene(tmp_path, mode, enable_stable_row_ids=stable)
    world = scene.world
    attempt = world.stage(scene.request)
    kept = disturbed(monkeypatch, scene, work, when)
    (landed,) = world.commit(attempt)
    assert landed.landed_now
    assert world.own_versions()[0].number == world.dataset.version > 2
    scene.assert_landed_once(attempt, kept)
    assert len(set(row_ids(world).values())) == len(scene.ids(kept))


#: What leaves rows where they were when they were matched; or, if values were computed for them, also what takes rows away.
LEAVES_ROWS = {"upsert": [indexes, configures, restores], "add_columns": [indexes, configures, restores, deletes_some, deletes_all]}


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable row ids"])
@pytest.mark.parametrize("work", [work for work in FOREIGN_WORK if work is not appends])
@pytest.mark.parametrize("when", [AFTER_THE_STAGE, AT_THE_COMMIT])
@pytest.mark.parametrize("mode", LEAVES_ROWS)
def test_what_others_do_to_rows_that_were_read_is_kept_and_read_by_a_cleared_stage(tmp_path, monkeypatch, mode, work, when, stable):
    scene = Scene(tmp_path, mode, enable_stable_row_ids=stable)
    attempt = scene.world.stage(scene.request)
    kept = disturbed(monkeypatch, scene, work, when)
    lands_after(scene, attempt, kept, refused=work not in LEAVES_ROWS[mode])


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable row ids"])
@pytest.mark.parametrize("when", [AFTER_THE_STAGE, AT_THE_COMMIT])
def test_rows_that_others_append_are_matched_by_a_cleared_stage_before_an_upsert_lands(tmp_path, monkeypatch, when, stable):
    scene = Scene(tmp_path, "upsert", enable_stable_row_ids=stable)
    attempt = scene.world.stage(scene.request)
    kept = disturbed(monkeypatch, scene, lambda world: world.there + world.foreign_append(2), when)
    lands_after(scene, attempt, kept, refused=True)


def lands_after(scene, attempt, kept, refused):
    """It lands beside these rows of others, if refused only after its stage was cleared."""
    world = scene.world
    if refused:
        with pytest.raises(TableMovedError, match="Clear the task"):
            world.commit(attempt)
        assert world.own_versions() == []
        assert world.ids() == sorted(kept)
        attempt = world.stage(scene.request)
    (landed,) = world.commit(attempt)
    assert landed.landed_now
    scene.assert_landed_once(attempt, kept)
    assert len(set(row_ids(world).values())) == len(scene.ids(kept))


def staged_to_replace(world):
    """The key is committed with rows of three files, and staged anew with those of two."""
    world.commit(world.stage())
    (world.input / "2.parquet").unlink()
    return world.stage(world.request(on_rerun="replace"))


@pytest.mark.parametrize("work", [appends, deletes_some, updates, indexes, configures])
def test_what_is_replaced_goes_and_what_others_have_stays(world, monkeypatch, work):
    attempt = staged_to_replace(world)
    kept = []
    meanwhile(monkeypatch, lambda: kept.extend(work(world)))
    world.commit(attempt)
    assert world.table_rows() == expected(*IDS[:8], *kept)
    world.dataset.validate()
    assert [version.key for version in world.own_versions()] == ["orders", "orders"]


def test_rows_that_compaction_moved_at_the_moment_of_the_commit_are_not_replaced(world, monkeypatch):
    attempt = staged_to_replace(world)
    meanwhile(monkeypatch, world.dataset.optimize.compact_files)
    with pytest.raises(TableMovedError, match=r"3 of the files .*Nothing was committed"):
        world.commit(attempt)
    assert world.table_rows() == expected(*IDS, *world.there)
    assert len(world.own_versions()) == 1


def row_ids(world):
    found = world.dataset.to_table(columns=["id"], with_row_id=True)
    return dict(zip(found["id"].to_pylist(), found["_rowid"].to_pylist(), strict=True))


def test_rows_with_stable_ids_keep_them(tmp_path):
    world = LanceWorld(tmp_path)
    world.there = world.create_dataset(enable_stable_row_ids=True)
    before = row_ids(world)
    world.put_files(3, 4)
    world.commit(world.stage())
    after = row_ids(world)
    assert before.items() <= after.items()
    world.dataset.optimize.compact_files()
    assert row_ids(world) == after
    assert len(world.dataset.get_fragments()) == 1


def found_by_index(world, number):
    scanner = world.dataset.scanner(filter=f"id = {number}")
    assert "ScalarIndexQuery" in scanner.explain_plan(), scanner.explain_plan()
    return scanner.to_table()["id"].to_pylist()


@pytest.mark.parametrize("when", ["before the stage", "after the stage", "at the moment of the commit"])
def test_an_index_of_others_finds_old_and_new_rows(world, monkeypatch, when):
    if when == "before the stage":
        indexes(world)
    attempt = world.stage()
    if when == "after the stage":
        indexes(world)
    elif when == "at the moment of the commit":
        meanwhile(monkeypatch, lambda: indexes(world))
    world.commit(attempt)
    assert_landed_once(world, attempt, IDS + world.there)
    for _ in range(2):
        assert [found_by_index(world, number) for number in (0, 11, FOREIGN, 500)] == [[0], [11], [FOREIGN], []]
        world.dataset.optimize.optimize_indices()


# -- staged files -------------------------------------------------------------------------------------------------------------


def staged_paths(world):
    return sorted(Path(path) for path in world.files_on_disk())


@pytest.mark.parametrize("mode", ["append", "overwrite", "create"])
@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")], ids=["gone", "empty"])
def test_rows_whose_staged_file_is_gone_or_damaged_are_not_committed(tmp_path, damage, mode):
    world = LanceWorld(tmp_path)
    if mode != "create":
        world.create_dataset()
    world.put_files(3, 4)
    attempt = world.stage(world.request(mode=mode))
    damage(staged_paths(world)[1])
    before = world.versions()
    with pytest.raises(StagedFileMissingError, match=r"1 of 3 staged files.*Nothing was committed"):
        world.commit(attempt)
    assert world.versions() == before


def test_lances_clean_up_spares_what_was_staged_lately_and_the_commit_lands(world):
    attempt = world.stage()
    world.foreign_append()
    clean_up(world)
    world.commit(attempt)
    assert len(world.own_versions()) == 1


def test_a_clean_up_of_all_unreferenced_files_is_noticed(world):
    attempt = world.stage()
    world.dataset.cleanup_old_versions(older_than=NOTHING_LEFT, delete_unverified=True)
    assert staged_paths(world) == []
    assert_refused(world, attempt, StagedFileMissingError, "3 of 3 staged files")


# -- replies ------------------------------------------------------------------------------------------------------------------


class Faults:
    """Lance's commit, whose replies go wrong: what a network between client and storage does, done on purpose."""

    def __init__(self, patched, names):
        self._names, self._commit, self._late = list(names), lance.LanceDataset.commit, []
        self.requests = 0
        patched.setattr(lance.LanceDataset, "commit", staticmethod(self._answer))

    def _answer(self, *args, **settings):
        if is_in_memory(args[0]):
            return self._commit(*args, **settings)
        self.requests += 1
        fault = self._names.pop(0) if self._names else "none"

        def apply():
            return self._commit(*args, **settings)

        return getattr(self, fault)(apply)

    def none(self, apply):
        return apply()

    def reply_lost(self, apply):
        apply()
        raise OSError("connection reset by peer")

    def landed_but_reported_as_conflict(self, apply):
        apply()
        raise lance.commit.CommitConflictError("the dataset was changed by another process")

    def fails_before(self, apply):
        raise OSError("no route to the storage")

    def applied_later(self, apply):
        self._late.append(apply)
        raise TimeoutError("no answer in time")

    def late_ones_first(self, apply):
        self.apply_late_ones()
        return apply()

    def apply_late_ones(self):
        """Requests that nobody waits for any more reach the storage; the errors nobody sees."""
        errors = []
        while self._late:
            try:
                self._late.pop(0)()
            except OSError as error:
                errors.append(error)
        return errors


def faults(patched, *names):
    return Faults(patched, names)


@pytest.mark.parametrize("mode", ["create", "append without rows", *MODES])
@pytest.mark.parametrize(
    ("names", "requests"),
    [
        (["reply_lost"], 1),
        (["landed_but_reported_as_conflict"], 1),
        (["fails_before"], 2),
        (["fails_before", "fails_before", "reply_lost"], 3),
        (["applied_later"], 2),
        (["applied_later", "late_ones_first"], 2),
        (["applied_later", "applied_later", "late_ones_first"], 3),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_one_version_whatever_the_storage_answers(tmp_path, monkeypatch, mode, names, requests):
    scene = Scene(tmp_path, mode.partition(" ")[0], before=0 if mode == "append without rows" else 5)
    attempt = scene.world.stage(scene.request)
    faulty = faults(monkeypatch, *names)
    scene.world.commit(attempt)
    faulty.apply_late_ones()
    assert faulty.requests == requests
    scene.assert_landed_once(attempt)


@pytest.mark.usefixtures("impatient")
def test_a_request_that_lands_after_the_task_gave_up_is_found_by_the_retry(world, monkeypatch):
    faulty = faults(monkeypatch, "applied_later")
    attempt = world.stage()
    with pytest.raises(OutcomeUnknownError, match=r"'orders'.*orders\.lance.*retry the commit"):
        world.commit(attempt)
    assert world.own_versions() == []
    assert faulty.apply_late_ones() == []
    assert world.attempt().state is State.COMMITTED
    (again,) = world.commit(attempt)
    assert not again.landed_now
    assert_landed_once(world, attempt, IDS + world.there)


def test_a_request_that_was_thought_lost_is_refused_after_the_retry_landed_and_others_wrote(world, monkeypatch):
    faulty = faults(monkeypatch, "applied_later")
    attempt = world.stage()
    world.commit(attempt)
    more = world.foreign_append()
    assert len(faulty.apply_late_ones()) == 1
    assert_landed_once(world, attempt, IDS + world.there + more)


def test_a_request_that_was_thought_lost_does_not_bring_back_what_was_restored_away(world, monkeypatch):
    faulty = faults(monkeypatch, "applied_later")
    attempt = world.stage()
    world.commit(attempt)
    world.dataset.checkout_version(1).restore()
    assert len(faulty.apply_late_ones()) == 1
    assert world.ids() == world.there
    with pytest.raises(RolledBackError):
        world.commit(attempt)


def test_a_request_that_was_thought_lost_is_refused_after_a_compaction(world, monkeypatch):
    faulty = faults(monkeypatch, "applied_later")
    attempt = world.stage()
    world.commit(attempt)
    world.dataset.optimize.compact_files()
    assert len(faulty.apply_late_ones()) == 1
    assert world.table_rows() == expected(*IDS, *world.there)
