"""Upserts into a dataset with stable row ids: an updated row stays the row that it was, by its id and by when it was made."""

from __future__ import annotations

from datetime import timedelta

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.dataset import Transaction
from lance.optimize import Compaction
from support.appending import require_files
from support.lance_upserting import Place, people

from airflow_ckpt_provider.checkpoint.documents import StagedFile
from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite, StagedWrite
from airflow_ckpt_provider.exceptions import RowCountError, StagedFileMissingError, TableMovedError
from airflow_ckpt_provider.tables.keys import key_batches
from airflow_ckpt_provider.tables.lance import scan, updating, writer
from airflow_ckpt_provider.tables.lance.deletions import write_deletions
from airflow_ckpt_provider.tables.lance.files import DatasetFiles
from airflow_ckpt_provider.tables.lance.modes.upsert import Upsert
from airflow_ckpt_provider.tables.lance.operations import carrying
from airflow_ckpt_provider.tables.lance.table import DatasetTable
from airflow_ckpt_provider.tables.lance.upsert import filtering
from airflow_ckpt_provider.tables.lance.upsert.source import KEPT
from airflow_ckpt_provider.write import groups

INSERT_ONLY = {"when_matched": "ignore"}
UPDATE_ONLY = {"when_not_matched": "ignore"}

_VERSIONS = ["_row_created_at_version", "_row_last_updated_at_version"]


@pytest.fixture
def place(tmp_path):
    KEPT.clear()
    return Place(tmp_path / "place")


def begin(place, *files, **options):
    place.begin(*files, enable_stable_row_ids=True, **options)


def rows_of(dataset):
    """Row id of each row, the version that it was made in, and that it was updated in last."""
    dataset.validate()
    found = dataset.scanner(columns=["id", *_VERSIONS], with_row_id=True).to_table().to_pydict()
    rows = {key: (row, made, updated) for key, row, made, updated in zip(*(found[name] for name in ["id", "_rowid", *_VERSIONS]))}  # noqa: B905
    assert len(rows) == len(found["id"]) == len({row for row, _, _ in rows.values()})
    return rows


def identity(dataset):
    """Of each row what an update must not change."""
    return {key: row[:2] for key, row in rows_of(dataset).items()}


def assert_kept(place, before, updated, inserted):
    """Rows that were there are those that they were, and new ones are new."""
    after, version = rows_of(place.dataset()), place.dataset().version
    assert after.keys() == before.keys() | inserted
    for key, (row, made, last) in after.items():
        if key in inserted:
            assert (made, last) == (version, version)
            assert row > max(known for known, _, _ in before.values())
        else:
            assert (row, made) == before[key][:2]
            assert last == (version if key in updated else before[key][2])


# -- what is kept -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "updated", "inserted"),
    [({}, {3, 4, 12, 15}, {50, 51, 60, 61}), (INSERT_ONLY, set(), {50, 51, 60, 61}), (UPDATE_ONLY, {3, 4, 12, 15}, set())],
    ids=["update and insert", "insert only", "update only"],
)
def test_updated_rows_stay_the_rows_that_they_were(place, when, updated, inserted):
    begin(place, people(range(10), "old"), people(range(10, 20), "old"), rows_per_file=4)
    place.dataset().delete("id in (1, 11)")
    before, there = rows_of(place.dataset()), place.notes()
    # Rows that are there and new ones take turns in the first file; the second has only the one kind, the third only the other.
    files = [people([50, 15, 51, 3], "new"), people([12, 4], "new"), people([61, 60], "new")]
    attempt = place.stage("first", files, when=when)
    settled = place.commit(attempt)
    assert settled.commit.rows == len(updated) + len(inserted)
    assert attempt.checkpoint.sealed().counts.get("updated", 0) == len(updated)
    assert place.notes() == there | dict.fromkeys(updated | inserted, "new")
    assert_kept(place, before, updated, inserted)
    dataset = place.dataset()
    delta = dataset.delta(compared_against=dataset.version - 1)
    assert set(delta.get_inserted_rows().read_all()["id"].to_pylist()) == inserted
    assert set(delta.get_updated_rows().read_all()["id"].to_pylist()) == updated


def test_ids_and_versions_are_those_that_lances_own_upsert_gives(place, tmp_path):
    begin(place, people(range(20), "old"), rows_per_file=6)
    place.dataset().delete("id in (2, 3, 17)")
    theirs = tmp_path / "theirs.lance"
    place.dataset().deep_clone(str(theirs), place.dataset().version)
    theirs = lance.dataset(theirs)
    source = people([5, 2, 19, 0, 8], "new")
    theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)
    place.upsert("first", [source])
    ours, same = rows_of(place.dataset()), rows_of(lance.dataset(theirs.uri))
    assert {key: row for key, (row, *_) in ours.items()} == {key: row for key, (row, *_) in same.items()}
    assert {key: (made == last) for key, (_, made, last) in ours.items()} == {
        key: (made == last) for key, (_, made, last) in same.items()
    }


def test_no_round_is_added_if_nothing_is_found(place):
    begin(place, people(range(5), "old"))
    before = rows_of(place.dataset())
    attempt = place.stage("first", [people([50, 51], "new")])
    assert attempt.checkpoint.sealed().round == 2
    place.commit(attempt)
    assert_kept(place, before, set(), {50, 51})


def test_into_a_dataset_without_rows(place):
    begin(place, people([], "old"))
    place.upsert("first", [people([1, 2], "new")])
    place.upsert("second", [people([2, 3], "newer")])
    assert place.notes() == {1: "new", 2: "newer", 3: "newer"}
    assert [made for _, (_, made, _) in sorted(rows_of(place.dataset()).items())] == [3, 3, 4]


def test_every_row_of_a_dataset(place):
    begin(place, people(range(10), "old"), people(range(10, 20), "old"))
    before = rows_of(place.dataset())
    place.upsert("first", [people(reversed(range(20)), "new")])
    assert set(place.notes().values()) == {"new"}
    assert_kept(place, before, set(range(20)), set())
    assert len(place.dataset().get_fragments()) == 1


def test_of_several_rows_with_one_key_the_one_that_was_there_first_stays(place):
    begin(place, people([1, 2, 1], "old"), people([1, 3], "old"))
    first = place.dataset().scanner(filter="id = 1", with_row_id=True).to_table()["_rowid"].to_pylist()
    place.upsert("first", [people([9, 1], "new")])
    assert place.notes() == {1: "new", 2: "old", 3: "old", 9: "new"}
    assert rows_of(place.dataset())[1][0] == min(first)


def test_a_replacement_leaves_what_was_updated_and_gives_new_ids_to_what_it_inserts(place):
    begin(place, people(range(10), "old"))
    before = identity(place.dataset())
    place.upsert("first", [people([50, 3, 51, 4], "new")])
    mine = identity(place.dataset())
    place.replace([people([4, 51, 5, 60], "newer")])
    assert place.notes() == dict.fromkeys(range(10), "old") | {3: "new"} | dict.fromkeys([4, 5, 51, 60], "newer")
    after = identity(place.dataset())
    assert before.items() <= after.items()
    assert {after[51][0], after[60][0]}.isdisjoint({row for row, _ in mine.values()})
    place.replace([people([], "none")])
    assert identity(place.dataset()) == before


def test_a_dataset_without_stable_ids_is_written_in_the_rounds_that_it_was(place):
    place.begin(people(range(10), "old"))
    attempt = place.stage("first", [people([3, 50], "new")])
    assert attempt.checkpoint.sealed().round == 2
    place.commit(attempt)
    assert type(place.dataset().read_transaction(place.dataset().version).operation).__name__ == "Merge"
    assert not any(path.name.endswith("-rowids.arrow") for path in (place.world.root / "people.lance" / "_checkpoints").iterdir())


# -- what is done with the dataset afterwards ---------------------------------------------------------------------------------

LATER = {
    "optimize indices": lambda place: place.dataset().optimize.optimize_indices(),
    "compact": lambda place: place.dataset().optimize.compact_files(),
    "delete": lambda place: place.dataset().delete("id in (9, 300)"),
    "merge_insert": lambda place: (
        place.dataset()
        .merge_insert("id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(people([7, 8, 400], "theirs"))
    ),
    "upsert": lambda place: place.upsert("second", [people([300, 8, 401, 99], "newer")]),
    "clean up": lambda place: place.dataset().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True),
}


def assert_indexes_answer(place):
    """As a scan without any index does."""
    dataset = place.dataset()
    there = dataset.to_table().to_pylist()
    for column, values in (("id", [7, 8, 9, 50, 99, 300, 301, 400, 12345]), ("note", ["old", "new", "newer", "theirs"])):
        for value in values:
            found = dataset.to_table(filter=f"{column} = {value!r}").column("id").to_pylist()
            assert sorted(found) == sorted(row["id"] for row in there if row[column] == value), (column, value)
            assert dataset.count_rows(f"{column} = {value!r}") == len(found)
    for number in (7, 50, 300, 1007):
        query = np.array([number, 1.0], np.float32)
        nearest = {"column": "vector", "q": query, "k": 5, "nprobes": 2}
        found = dataset.to_table(columns=["id", "_distance"], nearest=nearest).to_pydict()
        true = {row["id"]: (row["vector"][0] - number) ** 2 for row in there}
        assert [true[key] for key in found["id"]] == found["_distance"]
        assert sorted(found["_distance"]) == sorted(true.values())[:5]


@pytest.mark.parametrize("later", [(one, two) for one in LATER for two in LATER if one != two], ids=" then ".join)
def test_indexes_that_were_made_before_answer_right_whatever_follows(place, later):
    begin(place, people(range(100), "old"), rows_per_file=40)
    place.dataset().delete("id in (5, 45)")
    dataset = place.dataset()
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("note", "BTREE")
    dataset.create_index("vector", "IVF_FLAT", num_partitions=2, metric="l2")
    before = identity(place.dataset())
    source = people([300, 7, 301, 8, 50], "new")
    moved = pa.array([[1000.0 + n, 1.0] for n in source["id"].to_pylist()], source.schema.field("vector").type)
    place.upsert("first", [source.set_column(3, source.schema.field("vector"), moved)])
    assert_indexes_answer(place)
    for step in later:
        LATER[step](place)
        assert_indexes_answer(place)
        now = identity(place.dataset())
        assert {key: now[key] for key in before.keys() & now.keys()} == {key: before[key] for key in before.keys() & now.keys()}


# -- what others do between the look at the dataset and the commit ------------------------------------------------------------


class Interrupted(DatasetTable):
    """Somebody does something after the dataset was loaded for the commit."""

    def __init__(self, place, *steps):
        super().__init__(place.uri)
        self.steps, self.tries = list(steps), 0

    def state(self, binding=None):
        state = super().state(binding)
        change = state.change

        def then(commit):
            self.tries += 1
            for step in self.steps if self.tries == 1 else ():
                step()
            return change(commit)

        state.change = then
        return state


def theirs(place, *ids):
    return lambda: lance.write_dataset(people(ids, "theirs"), place.uri, mode="append")


def merged(place, ids, *, update):
    merge = place.dataset().merge_insert("id").when_not_matched_insert_all()
    return (merge.when_matched_update_all() if update else merge).execute(people(ids, "theirs"))


def compacted(place, rows=None):
    return place.dataset().optimize.compact_files(**({} if rows is None else {"target_rows_per_fragment": rows}))


def optimized(place):
    return place.dataset().optimize.optimize_indices()


CHANGING = {
    "append": lambda place: [theirs(place, 50)],
    "append of much": lambda place: [theirs(place, *range(50, 60)), theirs(place, 60), theirs(place, 61), theirs(place, 62)],
    "append, compaction of it": lambda place: [theirs(place, 50), theirs(place, 60), lambda: compacted(place, 2)],
    "append, update of it": lambda place: [theirs(place, 50), lambda: place.dataset().update({"note": "'x'"}, where="id = 50")],
    "append, upsert of it": lambda place: [theirs(place, 50), lambda: merged(place, [50, 60], update=True)],
    "merge_insert that inserts": lambda place: [lambda: merged(place, [50], update=False)],
    "merge_insert that updates": lambda place: [lambda: merged(place, [9], update=True)],
    "merge_insert, delete": lambda place: [
        lambda: merged(place, [50], update=False),
        lambda: place.dataset().delete("id = 50"),
        lambda: merged(place, [50], update=False),
    ],
    "delete": lambda place: [lambda: place.dataset().delete("id = 9")],
    "delete of a whole fragment": lambda place: [lambda: place.dataset().delete("id >= 4 and id < 8")],
    "update": lambda place: [lambda: place.dataset().update({"note": "'x'"}, where="id = 9")],
    "compaction": lambda place: [lambda: compacted(place)],
    "column": lambda place: [lambda: place.dataset().add_columns({"twice": "id * 2"})],
    "overwrite": lambda place: [lambda: lance.write_dataset(people([3, 50], "theirs"), place.uri, mode="overwrite")],
    "an upsert of ours": lambda place: [lambda: place.upsert("second", [people([9, 60], "theirs")])],
    "an upsert of ours that inserts": lambda place: [lambda: place.upsert("second", [people([50, 60], "theirs")])],
    "an append of ours": lambda place: [lambda: place.upsert("second", [people([50], "theirs")], mode="append", parameters={})],
}


def staged(place, when=None):
    begin(place, people(range(12), "old"), rows_per_file=4)
    place.dataset().delete("id = 1")
    place.dataset().create_scalar_index("id", "BTREE")
    files = [people([50, 3, 60, 10], "new"), people([70], "new")]
    return files, place.stage("first", files, when=when)


@pytest.mark.parametrize("when", [{}, UPDATE_ONLY], ids=["update and insert", "update only"])
@pytest.mark.parametrize("change", CHANGING)
def test_whatever_changes_rows_is_seen_and_then_matched(place, change, when):
    files, attempt = staged(place, when)
    target = Interrupted(place, *CHANGING[change](place))
    with pytest.raises(TableMovedError, match="Clear the task"):
        groups.commit([attempt.checkpoint], target)
    assert target.tries == 2
    before, there = rows_of(place.dataset()), {row["id"]: row["note"] for row in place.rows()}
    place.commit(place.stage("first", files, when=when))
    source = {50, 3, 60, 10, 70}
    landing = source & before.keys() if when else source
    assert place.notes() == there | dict.fromkeys(landing, "new")
    assert_kept(place, before, landing & before.keys(), landing - before.keys())


HARMLESS = {
    "an index is made": lambda place: [lambda: place.dataset().create_scalar_index("note", "BTREE")],
    "indexes are optimized": lambda place: [lambda: optimized(place)],
    "an entry of the configuration": lambda place: [lambda: place.dataset().update_config({"a": "b"})],
    "a column without values": lambda place: [lambda: place.dataset().add_columns(pa.field("more", pa.int64()))],
}


@pytest.mark.parametrize("change", HARMLESS)
def test_what_changes_no_row_does_not_hinder(place, change):
    _, attempt = staged(place)
    before = rows_of(place.dataset())
    groups.commit([attempt.checkpoint], Interrupted(place, *HARMLESS[change](place)))
    assert_kept(place, before, {3, 10}, {50, 60, 70})
    assert place.dataset().to_table(filter="id = 3").column("note").to_pylist() == ["new"]


def test_rows_of_others_that_came_and_went_were_seen(place):
    """An index may know by then which rows were in the fragment that these were in, and takes others for them that have its id."""
    _, attempt = staged(place)
    before = rows_of(place.dataset())
    target = Interrupted(
        place,
        theirs(place, 200, 201),
        lambda: optimized(place),
        lambda: place.dataset().delete("id in (200, 201)"),
    )
    told = []
    groups.commit([attempt.checkpoint], target, tell_tries=told.append)
    assert [(taken.tries, taken.conflicts) for taken in told] == [(target.tries, 1)] == [(2, 1)]
    after = rows_of(place.dataset())
    assert after.keys() == before.keys() | {50, 60, 70}
    for key in (3, 10, 50, 60, 70, 200):
        found = place.dataset().to_table(filter=f"id = {key}").column("note").to_pylist()
        assert found == (["new"] if key in after else [])


def test_rows_that_others_add_behind_reserved_ids_are_seen(place):
    """A compaction reserves ids in a version of its own, and then did not succeed, because rows were deleted that it had read."""
    begin(place, people(range(12), "old"), rows_per_file=2)
    before = place.dataset()
    work = Compaction.plan(before, options={"target_rows_per_fragment": 4})
    done = [task.execute(before) for task in work.tasks]
    place.dataset().delete("id = 1")
    files = [people([50, 3], "new")]
    attempt = place.stage("first", files)

    def reserve():
        version = place.dataset().version
        with pytest.raises(OSError, match="conflict"):
            Compaction.commit(before, done)
        assert place.dataset().version == version + 1

    target = Interrupted(place, reserve, theirs(place, 50))
    with pytest.raises(TableMovedError, match="Clear the task"):
        groups.commit([attempt.checkpoint], target)
    assert place.dataset().get_fragments()[-1].fragment_id > 6 + 1
    assert target.tries == 2
    place.upsert("first", files)
    assert place.notes() == {n: "old" for n in range(12) if n != 1} | {3: "new", 50: "new"}
    rows_of(place.dataset())


def test_rows_of_others_that_landed_beside_it_all_the_same_are_told(place, monkeypatch):
    """As above, with a compaction that has reserved more ids than anybody expects."""
    _, attempt = staged(place)
    monkeypatch.setattr(updating, "_next_fragment_id", lambda *_: 1_000_000)
    with pytest.raises(RowCountError, match=r"landed in version .* 1 fragments that others added .* there twice"):
        groups.commit([attempt.checkpoint], Interrupted(place, theirs(place, 50)))


def test_two_upserts_of_ours_with_the_same_new_rows_do_not_both_land(place):
    files, attempt = staged(place)
    other = place.stage("second", files)
    with pytest.raises(TableMovedError):
        groups.commit([attempt.checkpoint], Interrupted(place, lambda: place.commit(other)))
    assert len(place.rows()) == 11 + 3


def test_a_second_commit_of_the_same_key_that_comes_in_between_is_found(place):
    _, attempt = staged(place)
    before = rows_of(place.dataset())
    told = []
    (settled,) = groups.commit([attempt.checkpoint], Interrupted(place, lambda: place.commit(attempt)), tell_tries=told.append)
    assert not settled.landed_now
    assert [(taken.tries, taken.conflicts) for taken in told] == [(1, 0)]
    assert place.dataset().version == settled.commit.commit_id
    assert_kept(place, before, {3, 10}, {50, 60, 70})


def test_the_change_with_another_schema_keeps_its_deletions(place):
    """No commit that keeps ids carries how far a source was read; were it to, no row that it takes away may come back."""
    begin(place, people(range(10), "old"), people(range(10, 20), "old"))
    dataset, files = place.dataset(), DatasetFiles(f"file://{place.uri}")
    last = dataset.get_fragments()[-1].fragment_id
    deletions, _ = write_deletions(files, last, dataset.version, np.arange(3, dtype=np.uint32), "ckpt-test")
    swap = updating.updating(dataset, [], {last: deletions}, {})
    operation = carrying(dataset, swap, dataset.lance_schema).operation
    lance.LanceDataset.commit(dataset, Transaction(read_version=dataset.version, operation=operation))
    assert sorted(place.notes()) == [*range(10), *range(13, 20)]


@pytest.mark.parametrize("gone", ["nothing", "delete", "compaction", "upsert", "restore"])
def test_the_id_of_the_next_fragment_is_the_one_that_lance_gives(place, gone):
    """Also if fragments with higher ids were there, and are not any more."""
    begin(place, people(range(10), "old"), people(range(10, 20), "old"))
    if gone == "delete":
        place.dataset().delete("id >= 10")
    elif gone == "compaction":
        place.dataset().optimize.compact_files()
        place.dataset().delete("id < 0")
    elif gone == "upsert":
        place.upsert("first", [people([3, 50], "new")])
        place.dataset().delete("id in (3, 50)")
    elif gone == "restore":
        lance.write_dataset(people([77], "x"), place.uri, mode="append")
        lance.dataset(place.uri, version=place.dataset().version - 1).restore()
    dataset = place.dataset()
    there = [fragment.metadata for fragment in dataset.get_fragments()]
    said = updating._next_fragment_id(dataset, there)
    lance.write_dataset(people([99], "theirs"), place.uri, mode="append")
    (added,) = {one.fragment_id for one in place.dataset().get_fragments()} - {one.id for one in there}
    assert added == said


def test_a_manifest_that_is_not_one_is_refused(place):
    begin(place, people(range(10), "old"))
    manifest = place.dataset()._ds.serialized_manifest()
    assert updating._number(manifest, updating._MAX_FRAGMENT_ID) == 0
    assert updating._number(manifest, 999) is None
    for broken in (manifest[:-1], manifest + b"\xff", manifest + b"\x04"):
        with pytest.raises((IndexError, ValueError)):
            updating._number(broken, updating._MAX_FRAGMENT_ID)


def test_rows_that_keep_their_ids_are_put_in_order_so_that_there_are_few_runs_of_versions(place, monkeypatch):
    """Otherwise Lance takes a minute for a million rows, each time that they are updated again."""
    monkeypatch.setattr(filtering, "_BACK", 10)
    begin(place, people(range(50), "old"), people(range(50, 100), "old"))
    before = rows_of(place.dataset())
    place.upsert("first", [people([n * 37 % 100 for n in range(100)], "new"), people([100], "new")])
    assert_kept(place, before, set(range(100)), {100})
    dataset = place.dataset()
    assert dataset.to_table(columns=["id"])["id"].to_pylist() == list(range(101))
    assert {tuple(row["vector"]) for row in place.rows()} == {(float(n), 1.0) for n in range(101)}
    # A file that is about in order lands as it is.
    place.upsert("second", [people([*range(60, 80), *range(20)], "newer")])
    assert any("-source-" in name for name in place.files())


# -- what is staged -----------------------------------------------------------------------------------------------------------


def test_one_that_stopped_in_any_round_goes_on_there(place):
    """Each attempt does one split and stops; no split is done twice."""
    begin(place, people(range(5), "old"), people(range(5, 10), "old"))
    before = rows_of(place.dataset())
    files = [people([1, 50], "new"), people([6, 7], "new"), people([60], "new")]
    done = []
    while (found := (attempt := place.attempt("first", files)).next_round()) is not None:
        assert attempt.begin("a test", 1).run(found.missing[0], "0")
        done.append(found.missing[0].id)
    attempt.seal()
    place.commit(attempt)
    assert len(done) == len(set(done)) == 3 + 2 + 1 + 2 * 3
    assert_kept(place, before, {1, 6, 7}, {50, 60})


def test_only_what_a_change_affects_is_done_again(place):
    begin(place, people(range(10), "old"))
    files = [people([1, 50], "new"), people([2, 60], "new")]

    def done(attempt):
        return attempt.checkpoint.staged_ids()

    first = done(place.stage("first", files))
    lance.write_dataset(people([500], "theirs"), place.uri, mode="append")
    second = done(place.stage("first", files))
    assert [name[:5] for name in second - first] == ["match"]
    lance.write_dataset(people([60], "theirs"), place.uri, mode="append")
    before = rows_of(place.dataset())
    last = place.stage("first", files)
    assert sorted(name[:5] for name in done(last) - second) == ["filte", "filte", "match"]
    place.commit(last)
    assert_kept(place, before, {1, 2, 60}, {50})


def test_a_split_that_lost_the_race_removes_what_it_wrote_and_nothing_of_the_source(place):
    begin(place, people(range(5), "old"))
    before = rows_of(place.dataset())
    attempt = place.attempt("first", [people([0, 50], "half"), people([1, 2], "whole"), people([60], "whole")])
    assert place.stage_losing(attempt) == 1 + 1 + 2 * 3
    require_files([SealedWrite(attempt.checkpoint)], DatasetTable(place.uri))
    place.commit(attempt)
    assert_kept(place, before, {0, 1, 2}, {50, 60})


def test_row_ids_that_are_gone_are_noticed(place):
    _, attempt = staged(place)
    there = rows_of(place.dataset())
    for path in (place.world.root / "people.lance" / "_checkpoints").glob("*-rowids.arrow"):
        path.unlink()
    with pytest.raises(StagedFileMissingError, match=r"staged files .* are gone or damaged, for instance .*rowids\.arrow"):
        place.commit(attempt)
    assert rows_of(place.dataset()) == there


def test_a_clean_up_leaves_what_is_needed_to_replace_it_and_no_row_ids(place):
    _, attempt = staged(place)
    place.commit(attempt)
    checkpoint = attempt.checkpoint
    target = DatasetTable(place.uri)
    files = target.orphans(StagedWrite(checkpoint), SealedWrite(checkpoint), target.written(checkpoint.header.table))
    assert all(isinstance(file, StagedFile) for file in files)
    target.remove(checkpoint.header.table, files)
    beside = (place.world.root / "people.lance" / "_checkpoints").iterdir()
    assert {path.name.rpartition("-")[2] for path in beside} == {"matched.arrow"}
    before = rows_of(place.dataset())
    place.replace([people([3, 60], "newer")])
    kept = {key: row for key, row in before.items() if key < 50}
    assert {key: row[:2] for key, row in rows_of(place.dataset()).items() if key < 50} == {k: r[:2] for k, r in kept.items()}
    assert place.notes().keys() == kept.keys() | {60}


# -- what versions of this provider have staged that did not keep ids ---------------------------------------------------------


@pytest.fixture
def earlier_version(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Upsert, "_keeps_ids", lambda *_: False)
        yield patched


def test_what_was_sealed_lands_as_it_was_sealed(place, earlier_version):
    _, attempt = staged(place)
    earlier_version.undo()
    place.commit(attempt)
    assert place.notes() == {n: "new" if n in {3, 10} else "old" for n in range(12) if n != 1} | dict.fromkeys([50, 60, 70], "new")


def test_what_was_matched_is_matched_anew_and_what_was_read_is_not_read_again(place, earlier_version):
    begin(place, people(range(10), "old"))
    before = rows_of(place.dataset())
    files = [people([3, 50], "new"), people([60], "new")]
    attempt = place.attempt("first", files)
    for _ in range(2):
        found = attempt.next_round()
        for split in found.missing:
            attempt.begin("a test", 1).run(split, "0")
    done = attempt.checkpoint.staged_ids()
    earlier_version.undo()
    again = place.stage("first", files)
    assert not any(name.startswith("read") for name in again.checkpoint.staged_ids() - done)
    place.commit(again)
    assert_kept(place, before, {3}, {50, 60})


def test_what_was_committed_is_replaced(place, earlier_version):
    begin(place, people(range(10), "old"))
    place.upsert("first", [people([3, 50, 51], "new")])
    earlier_version.undo()
    before = identity(place.dataset())
    place.replace([people([3, 51, 60], "newer")])
    after = identity(place.dataset())
    assert place.notes() == dict.fromkeys(range(10), "old") | dict.fromkeys([3, 51, 60], "newer")
    assert {key: after[key] for key in range(10)} == {key: before[key] for key in range(10)}


# -- a dictionary -------------------------------------------------------------------------------------------------------------

numbers = st.lists(st.integers(0, 12), max_size=8, unique=True)
a_step = st.one_of(
    st.tuples(st.just("upsert"), st.sampled_from([{}, INSERT_ONLY, UPDATE_ONLY]), st.lists(numbers, min_size=1, max_size=3)),
    st.tuples(st.just("replace"), st.just({}), st.lists(numbers, min_size=1, max_size=2)),
    st.tuples(st.just("delete"), st.just({}), st.lists(numbers, min_size=1, max_size=1)),
    st.tuples(st.just("merge_insert"), st.just({}), st.lists(numbers, min_size=1, max_size=1)),
    st.tuples(st.just("compact"), st.just({}), st.just([[]])),
)


class Model:
    """What a dataset has to hold: the note of each row, its identity, and which identities must not come back."""

    def __init__(self, place, seed):
        self.place = place
        self.notes = dict.fromkeys([n for ids in seed for n in ids], "seed")
        fresh = list(self.notes)
        begin(place, *(people(fresh[start : start + 4], "seed") for start in range(0, len(fresh) + 1, 4)), rows_per_file=3)
        self.kept, self.gone = identity(place.dataset()), set()
        #: Rows that the upsert ``first`` has inserted, by their identities; None if it was not there yet, or cannot be replaced.
        self.inserted, self.begun = None, False

    def forget(self, ids):
        for n in ids & self.kept.keys():
            self.gone.add(self.kept.pop(n)[0])
            del self.notes[n]

    def delete(self, when, note, source, seen):
        self.place.dataset().delete(f"id in ({', '.join(map(str, [*seen, -1]))})")
        self.forget(seen)

    def merge_insert(self, when, note, source, seen):
        merge = self.place.dataset().merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(source[0])
        self.notes |= dict.fromkeys(seen, note)

    def compact(self, when, note, source, seen):
        compacted(self.place)

    def upsert(self, when, note, source, seen):
        landing = {n for n in seen if not when or (n in self.notes) == (when == UPDATE_ONLY)}
        first, self.begun = not self.begun and not when, self.begun or not when
        self.place.upsert("first" if first else note, source, when=when)
        new = landing - self.notes.keys()
        self.notes |= dict.fromkeys(landing, note)
        if first:
            self.remember(new)

    def replace(self, when, note, source, seen):
        if self.inserted is None:
            return
        try:
            self.place.replace(source)
        except TableMovedError:
            # Others have deleted, updated or compacted what it had inserted.
            self.inserted = None
            return
        now = identity(self.place.dataset())
        # What others have updated since is theirs, and stays.
        mine = {n for n, row in self.inserted.items() if self.kept.get(n) == row and now.get(n) != row}
        self.forget(mine)
        new = seen - self.notes.keys()
        self.notes |= dict.fromkeys(seen, note)
        self.remember(new)

    def remember(self, new):
        now = identity(self.place.dataset())
        self.inserted = {n: now[n] for n in new}

    def check(self):
        assert self.place.notes() == self.notes
        now = identity(self.place.dataset())
        assert self.kept.items() <= now.items()
        assert self.gone.isdisjoint({row for row, _ in now.values()})
        self.kept = now


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.lists(numbers, min_size=1, max_size=3), steps=st.lists(a_step, min_size=1, max_size=5))
def test_upserts_do_what_a_dictionary_does_whose_rows_have_identities(tmp_path_factory, seed, steps):
    """What is updated keeps its identity; what is deleted, or inserted and then replaced, has a new one if it comes again."""
    KEPT.clear()
    model = Model(Place(tmp_path_factory.mktemp("model")), seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_batches, "PORTION_BYTES", 100)
        patch.setattr(writer, "FILE_ROWS", 3)
        patch.setattr(scan, "_RANGE_ROWS", 2)
        patch.setattr(filtering, "_BACK", 1)
        for number, (what, when, splits) in enumerate(steps):
            seen, source = set(), []
            for ids in splits:
                source.append(people([n for n in ids if n not in seen], f"{number}"))
                seen |= set(ids)
            getattr(model, what)(when, f"{number}", source, seen)
            model.check()
