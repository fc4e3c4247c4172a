"""Upserts into a Lance dataset of which only one half happens: what is there stays as it is, or nothing new comes."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.appending import require_files
from support.lance_upserting import SCHEMA, Place, people

from airflow_ckpt_provider.checkpoint.staged_write import SealedWrite
from airflow_ckpt_provider.exceptions import DuplicateKeyError, InvalidInputError, StagedFileMissingError, TableMovedError
from airflow_ckpt_provider.tables.keys import key_batches
from airflow_ckpt_provider.tables.lance import scan, writer
from airflow_ckpt_provider.tables.lance.table import DatasetTable
from airflow_ckpt_provider.tables.lance.upsert import sidecar
from airflow_ckpt_provider.tables.lance.upsert.source import KEPT

INSERT_ONLY = {"when_matched": "ignore"}
UPDATE_ONLY = {"when_not_matched": "ignore"}
BOTH = pytest.mark.parametrize("when", [INSERT_ONLY, UPDATE_ONLY], ids=["insert only", "update only"])


@pytest.fixture
def place(tmp_path):
    KEPT.clear()
    return Place(tmp_path / "place")


def after(there, new, when):
    """What a dictionary does."""
    if when == INSERT_ONLY:
        return new | there
    return there | {key: note for key, note in new.items() if key in there}


def sealed(attempt):
    return attempt.checkpoint.sealed()


def test_rows_that_are_there_stay_as_they_are_and_only_others_are_inserted(place):
    place.begin(people(range(10), "old"))
    attempt = place.stage("first", [people(range(5, 15), "new")], when=INSERT_ONLY)
    settled = place.commit(attempt)
    assert place.notes() == {n: "old" if n < 10 else "new" for n in range(15)}
    assert (settled.commit.rows, settled.commit.commit_id) == (5, place.dataset().version)
    assert (sealed(attempt).rows, sealed(attempt).counts) == (5, {"inserted": 5, "ignored": 5})
    assert all(fragment.num_deletions == 0 for fragment in place.dataset().get_fragments())


def test_rows_that_are_there_are_replaced_and_no_others_come(place):
    place.begin(people(range(10), "old"))
    attempt = place.stage("first", [people(range(5, 15), "new")], when=UPDATE_ONLY)
    settled = place.commit(attempt)
    assert place.notes() == {n: "old" if n < 5 else "new" for n in range(10)}
    assert len(place.rows()) == 10
    assert settled.commit.rows == 5
    assert (sealed(attempt).rows, sealed(attempt).counts) == (5, {"updated": 5, "ignored": 5})


@BOTH
def test_a_staged_file_lands_as_it_is_or_without_some_rows_or_not_at_all(place, when):
    place.begin(people([0, 1, 2], "old"), people([3, 4, 5], "old"))
    before = place.files()
    attempt = place.stage("first", [people([0, 1], "there"), people([2, 10], "half"), people([11, 12], "new")], when=when)
    place.commit(attempt)
    landed = sorted(place.files() - before, key=lambda name: "-source-" in name)
    assert ["-source-" in name for name in landed] == [False, True]
    assert ["-sfilter" in name for name in landed] == [True, False]
    assert sealed(attempt).rows == 3
    assert len(place.rows()) == (9 if when == INSERT_ONLY else 6)
    # The seal has what lands and nothing else, so that checks see the rows that a commit would add.
    one = SealedWrite(attempt.checkpoint)
    assert {file.path for file in data_files(place, one)} == set(landed)


@BOTH
def test_what_changes_nothing_makes_no_version(place, when):
    place.begin(people(range(5), "old"))
    version = place.dataset().version
    rows = range(5) if when == INSERT_ONLY else range(5, 9)
    settled = place.upsert("first", [people(rows, "new")], when=when)
    assert (settled.commit.commit_id, settled.commit.rows) == (None, 0)
    assert place.dataset().version == version


@BOTH
def test_into_a_dataset_without_rows(place, when):
    place.begin(people([], "old"))
    place.upsert("first", [people(range(3), "new"), people([], "new")], when=when)
    assert place.notes() == (dict.fromkeys(range(3), "new") if when == INSERT_ONLY else {})


@BOTH
def test_the_same_again_finds_its_version(place, when):
    place.begin(people(range(5), "old"))
    first, again = (place.upsert("first", [people(range(3, 8), "new")], when=when) for _ in range(2))
    assert (first.landed_now, again.landed_now) == (True, False)
    assert first.commit.commit_id == again.commit.commit_id


@BOTH
def test_keys_that_the_dataset_has_several_times(place, when):
    place.begin(people([1, 1, 2], "old"), people([1, 3], "old"))
    attempt = place.stage("first", [people([1, 9], "new")], when=when)
    place.commit(attempt)
    found = sorted((row["id"], row["note"]) for row in place.rows())
    if when == INSERT_ONLY:
        assert found == [(1, "old"), (1, "old"), (1, "old"), (2, "old"), (3, "old"), (9, "new")]
        assert sealed(attempt).counts == {"inserted": 1, "ignored": 1}
    else:
        assert found == [(1, "new"), (2, "old"), (3, "old")]
        assert sealed(attempt).counts == {"updated": 3, "ignored": 1}


@BOTH
def test_a_key_that_is_there_twice_in_the_source_is_refused(place, when):
    place.begin(people(range(10), "old"))
    for key, twice in (("matched", 7), ("not matched", 70)):
        with pytest.raises(DuplicateKeyError, match=rf"(?s)\({twice}\): 2 rows"):
            place.stage(key, [people([twice, 8], "x"), people([twice], "y")], when=when)
    assert set(place.notes().values()) == {"old"}


@pytest.mark.parametrize(
    ("when", "said"),
    [
        (INSERT_ONLY | UPDATE_ONLY, "nothing at all"),
        ({"when_matched": "delete"}, "'update' and 'ignore'"),
        ({"when_not_matched": "update"}, "'insert' and 'ignore'"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_stored(place, when, said):
    place.begin(people(range(3), "old"))
    with pytest.raises(InvalidInputError, match=said):
        place.attempt("first", [people([1], "x")], when=when)
    assert place.world.store.names("") == []


# -- a dataset that moves -----------------------------------------------------------------------------------------------------

CHANGES = {
    "appended rows with two of the keys": lambda place: lance.write_dataset(people([2, 99], "theirs"), place.uri, mode="append"),
    "deleted a row with one of the keys": lambda place: place.dataset().delete("id = 15"),
    "compacted": lambda place: place.dataset().optimize.compact_files(),
    "replaced everything": lambda place: lance.write_dataset(people([1, 2], "theirs"), place.uri, mode="overwrite"),
}


@BOTH
@pytest.mark.parametrize("change", CHANGES)
def test_a_dataset_that_was_changed_after_it_was_matched_is_matched_again(place, when, change):
    place.begin(people([0, 1, 3], "old"), people(range(10, 20), "old"))
    files = [people([1, 2], "new"), people([15, 98, 99], "new")]
    attempt = place.stage("first", files, when=when)
    CHANGES[change](place)
    there, version = place.notes(), place.dataset().version
    with pytest.raises(TableMovedError, match="Clear the task"):
        place.commit(attempt)
    assert place.notes() == there
    again = place.stage("first", files, when=when)
    settled = place.commit(again)
    assert place.notes() == after(there, dict.fromkeys([1, 2, 15, 98, 99], "new"), when)
    assert len(place.rows()) == len(place.notes())
    assert settled.commit.rows == sealed(again).rows
    assert place.dataset().version == version + 1


@BOTH
def test_only_what_a_change_affects_is_done_again(place, when):
    place.begin(people(range(10), "old"))
    files = [people([1, 50], "new"), people([2, 60], "new")]

    def done(attempt):
        return attempt.checkpoint.staged_ids()

    first = done(place.stage("first", files, when=when))
    lance.write_dataset(people([500], "theirs"), place.uri, mode="append")
    second = done(place.stage("first", files, when=when))
    assert [name.partition("x")[0][:5] for name in second - first] == ["match"]
    lance.write_dataset(people([60], "theirs"), place.uri, mode="append")
    last = place.stage("first", files, when=when)
    assert sorted(name[:5] for name in done(last) - second) == ["filte", "match"]
    place.commit(last)
    there = dict.fromkeys(range(10), "old") | dict.fromkeys([500, 60], "theirs")
    assert place.notes() == after(there, dict.fromkeys([1, 50, 2, 60], "new"), when)


@BOTH
def test_one_that_stopped_in_any_round_goes_on_there(place, when):
    """Each attempt does one split and stops; no split is done twice."""
    place.begin(people(range(5), "old"), people(range(5, 10), "old"))
    files = [people([1, 50], "new"), people([6, 7], "new"), people([60], "new")]
    done = []
    while (found := (attempt := place.attempt("first", files, when=when)).next_round()) is not None:
        assert attempt.begin("a test", 1).run(found.missing[0], "0")
        done.append(found.missing[0].id)
    attempt.seal()
    place.commit(attempt)
    assert len(done) == len(set(done)) == 3 + 2 + 1 + 3
    assert place.notes() == after(dict.fromkeys(range(10), "old"), dict.fromkeys([1, 50, 6, 7, 60], "new"), when)


@BOTH
def test_a_split_that_lost_the_race_removes_what_it_wrote_and_nothing_of_the_source(place, when):
    place.begin(people(range(5), "old"))
    files = [people([0, 50], "half"), people([1, 2] if when == UPDATE_ONLY else [60, 61], "whole")]
    attempt = place.attempt("first", files, when=when)
    assert place.stage_losing(attempt) == 4
    require_files([SealedWrite(attempt.checkpoint)], DatasetTable(place.uri))
    place.commit(attempt)
    new = {0: "half", 50: "half"} | dict.fromkeys([1, 2] if when == UPDATE_ONLY else [60, 61], "whole")
    assert place.notes() == after(dict.fromkeys(range(5), "old"), new, when)


def data_files(place, write):
    return DatasetTable(place.uri).state(write.header.table).storage.data_files([write])


@BOTH
def test_a_staged_file_that_is_gone_is_noticed_if_it_was_to_land(place, when):
    place.begin(people(range(5), "old"))
    attempt = place.stage("first", [people([1, 2], "new"), people([10, 11], "new")], when=when)
    there, landing = place.world.root / "people.lance" / "data", SealedWrite(attempt.checkpoint)
    (lands,) = data_files(place, landing)
    (left_out,) = {path.name for path in there.glob("*-source-*")} - {lands.path}
    (there / left_out).unlink()
    require_files([landing], DatasetTable(place.uri))
    (there / lands.path).unlink()
    with pytest.raises(StagedFileMissingError, match=lands.path):
        require_files([landing], DatasetTable(place.uri))


# -- on_rerun="replace" -------------------------------------------------------------------------------------------------------


def test_a_replacement_takes_away_what_was_inserted_and_inserts_anew(place):
    place.begin(people(range(5), "old"))
    place.upsert("first", [people([0, 50, 51], "new"), people([60, 61], "new"), people([1, 2], "new")], when=INSERT_ONLY)
    lance.write_dataset(people([70, 51], "theirs"), place.uri, mode="append")
    place.replace([people([2, 51, 61], "newer"), people([70, 80], "newer")], when=INSERT_ONLY)
    found = sorted((row["id"], row["note"]) for row in place.rows())
    old, theirs = [(n, "old") for n in range(5)], [(51, "theirs"), (70, "theirs")]
    assert found == sorted([*old, *theirs, (61, "newer"), (80, "newer")])


def test_a_replacement_updates_again_what_was_updated_and_leaves_the_rest(place):
    """What an update has written took the place of rows of others: taking it away would take those away."""
    place.begin(people(range(5), "old"))
    place.upsert("first", [people([0, 1], "new"), people([2, 50], "new")], when=UPDATE_ONLY)
    lance.write_dataset(people([70], "theirs"), place.uri, mode="append")
    place.dataset().optimize.compact_files()
    place.replace([people([1, 2, 3, 70, 90], "newer")], when=UPDATE_ONLY)
    assert place.notes() == {0: "new", 1: "newer", 2: "newer", 3: "newer", 4: "old", 70: "newer"}
    assert len(place.rows()) == 6


def test_a_replacement_of_an_insert_that_was_compacted_meanwhile_is_refused(place):
    place.begin(people(range(5), "old"))
    place.upsert("first", [people([0, 50], "new")], when=INSERT_ONLY)
    place.dataset().optimize.compact_files()
    there = place.notes()
    with pytest.raises(TableMovedError, match="compaction or another write"):
        place.replace([people([51], "newer")], when=INSERT_ONLY)
    assert place.notes() == there


@BOTH
def test_a_replacement_without_rows(place, when):
    place.begin(people(range(5), "old"))
    place.upsert("first", [people([0, 50], "new")], when=when)
    place.replace([people([], "newer")], when=when)
    assert place.notes() == dict.fromkeys(range(5), "old") | ({} if when == INSERT_ONLY else {0: "new"})


# -- rows of any type ---------------------------------------------------------------------------------------------------------

COLUMNS = {
    "dictionary": (pa.field("c", pa.dictionary(pa.int32(), pa.string())), lambda n: f"v{n % 2}", "2.2"),
    "struct": (pa.field("c", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])), lambda n: {"a": n, "b": [None]}, "2.1"),
    "nulls": (pa.field("c", pa.large_string()), lambda n: None if n % 2 else "x" * n, "2.2"),
    "vectors": (pa.field("c", pa.list_(pa.float16(), 3)), lambda n: [n, n, n], "2.2"),
    "required": (
        pa.field("c", pa.list_(pa.field("item", pa.struct([pa.field("a", pa.int32(), nullable=False)]), nullable=False))),
        lambda n: [{"a": n}] * n,
        "2.2",
    ),
    "blobs": (pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"}), lambda n: b"x" * 1000 * n, "2.1"),
}


@pytest.mark.parametrize("stable", [False, True], ids=["row addresses", "stable row ids"])
@pytest.mark.parametrize("when", [INSERT_ONLY, UPDATE_ONLY, {}], ids=["insert only", "update only", "both"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_rows_that_are_written_again_are_the_rows_that_were_staged(place, when, kind, stable):
    field, value, version = COLUMNS[kind]
    schema = pa.schema([pa.field("id", pa.int64()), field])

    def table(ids, add):
        return pa.table([pa.array(ids, pa.int64()), pa.array([value(n + add) for n in ids], field.type)], schema=schema)

    place.begin(table([0, 1, 2, 3], 0), data_storage_version=version, enable_stable_row_ids=stable)
    place.upsert("first", [table([2, 3, 4, 5], 10)], when=when)
    dataset = place.dataset()
    ids = dataset.to_table(columns=["id"])["id"].to_pylist()
    if kind == "blobs":
        values = [blob.read() for blob in dataset.take_blobs("c", indices=list(range(len(ids))))]
    else:
        values = dataset.to_table(columns=["c"])["c"].to_pylist()
    there, new = {n: value(n) for n in range(4)}, {n: value(n + 10) for n in range(2, 6)}
    assert dict(zip(ids, values, strict=True)) == (after(there, new, when) if when else there | new)


# -- a dictionary -------------------------------------------------------------------------------------------------------------

#: Keys of two columns, nulls among them.
one_key = st.tuples(st.none() | st.integers(0, 4), st.sampled_from([None, "a", "b"]))
some_keys = st.lists(one_key, max_size=8, unique=True)
an_upsert = st.tuples(st.sampled_from([INSERT_ONLY, UPDATE_ONLY, {}]), st.lists(some_keys, min_size=1, max_size=3), some_keys)


def pairs(keys, note):
    columns = [[one for one, _ in keys], [two for _, two in keys], [note] * len(keys), [[0.0, 0.0]] * len(keys)]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def condition(key):
    return " and ".join(
        f"{name} is null" if value is None else f"{name} = {value!r}" for name, value in zip(("id", "kind"), key, strict=True)
    )


@settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.lists(some_keys, min_size=1, max_size=3),
    upserts=st.lists(an_upsert, min_size=1, max_size=3),
    many=st.booleans(),
)
def test_upserts_do_what_a_dictionary_does(tmp_path_factory, seed, upserts, many):
    """Over several files and fragments, and deletes in between; source files of a few rows, keys in many key_batches."""
    KEPT.clear()
    place = Place(tmp_path_factory.mktemp("model"))
    expected, files = {}, []
    for keys in seed:
        fresh = [key for key in keys if key not in expected]
        expected |= dict.fromkeys(fresh, "seed")
        files.append(pairs(fresh, "seed"))
    place.begin(*files, rows_per_file=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_batches, "PORTION_BYTES", 100)
        patch.setattr(writer, "FILE_ROWS", 3)
        patch.setattr(scan, "_RANGE_ROWS", 2)
        patch.setattr(sidecar, "_NAMED", 0 if many else 16)
        for number, (when, splits, deleted) in enumerate(upserts):
            seen, source = {}, []
            for keys in splits:
                source.append(pairs([key for key in keys if key not in seen], f"{number}"))
                seen |= dict.fromkeys(keys, f"{number}")
            attempt = place.stage(f"{number}", source, keys=("id", "kind"), when=when)
            before, expected = expected, (expected | seen if when == {} else after(expected, seen, when))
            landing = sum(expected.get(key) == f"{number}" for key in seen)
            assert place.commit(attempt).commit.rows == sealed(attempt).rows == landing
            counts = sealed(attempt).counts
            assert counts.get("updated", 0) == (len(seen.keys() & before.keys()) if when != INSERT_ONLY else 0)
            if when:
                assert counts.get("inserted", 0) == len(expected) - len(before)
                assert counts.get("ignored", 0) == len(seen) - landing
            assert {(row["id"], row["kind"]): row["note"] for row in place.rows()} == expected
            assert len(place.rows()) == len(expected)
            for key in deleted:
                place.dataset().delete(condition(key))
                expected.pop(key, None)
