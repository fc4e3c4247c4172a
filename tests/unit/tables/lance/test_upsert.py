"""Upserts into a Lance dataset: what a dictionary does, without copying a row that stays, on nothing but what was matched."""

from __future__ import annotations

from datetime import timedelta

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lance_upserting import SCHEMA, Place, people

from airflow_ckpt_provider.exceptions import DuplicateKeyError, InvalidInputError, TableMovedError
from airflow_ckpt_provider.tables.keys import key_batches
from airflow_ckpt_provider.tables.lance.upsert.source import KEPT


@pytest.fixture
def place(tmp_path):
    KEPT.clear()
    return Place(tmp_path / "place")


def test_rows_with_the_same_key_are_replaced_and_others_added_in_one_version(place):
    place.begin(people(range(20), "old"), people(range(20, 40), "old"))
    before = place.dataset()
    attempt = place.stage("first", [people(range(15, 25), "new"), people(range(100, 103), "new")])
    assert place.dataset().version == before.version
    settled = place.commit(attempt)
    assert settled.commit.commit_id == before.version + 1 == place.dataset().version
    assert place.notes() == {n: "new" if 15 <= n < 25 or n >= 100 else "old" for n in [*range(40), 100, 101, 102]}
    assert len(place.rows()) == 43
    assert attempt.checkpoint.sealed().counts == {"updated": 10}
    # No file of the dataset was written again.
    kept = {file.path for fragment in before.get_fragments() for file in fragment.metadata.files}
    assert kept <= {file.path for fragment in place.dataset().get_fragments() for file in fragment.metadata.files}


def test_the_same_upsert_again_finds_its_version(place):
    place.begin(people(range(10), "old"))
    first = place.upsert("first", [people(range(5), "new")])
    again = place.upsert("first", [people(range(5), "new")])
    assert (first.landed_now, again.landed_now) == (True, False)
    assert first.commit.commit_id == again.commit.commit_id


def test_a_fragment_whose_every_row_is_replaced_is_gone(place):
    place.begin(people(range(10), "old"), people(range(10, 20), "old"))
    place.upsert("all", [people(range(10), "new")])
    assert place.notes() == {n: "new" if n < 10 else "old" for n in range(20)}
    assert len(place.rows()) == 20
    assert len([one for one in place.dataset().get_fragments() if one.count_rows()]) == 2


def test_several_upserts_in_a_row_and_deletes_in_between_are_those_of_a_dictionary(place):
    place.begin(people(range(30), "0"))
    place.upsert("1", [people(range(10, 20), "1")])
    place.dataset().delete("id in (0, 12, 29)")
    place.upsert("2", [people([0, 12, 13, 50], "2")])
    place.dataset().optimize.compact_files()
    place.upsert("3", [people([13, 29], "3")])
    expected = dict.fromkeys(range(30), "0") | dict.fromkeys(range(10, 20), "1")
    for gone in (0, 12, 29):
        del expected[gone]
    assert place.notes() == expected | dict.fromkeys([0, 12, 13, 50], "2") | dict.fromkeys([13, 29], "3")
    assert len(place.rows()) == len(place.notes())


def parts_of_indexes(place):
    """By the name of each index, what it is stored in."""
    return {index.name: {part.uuid for part in index.segments} for index in place.dataset().describe_indices()}


def covered(place):
    """By the name of each index, how many rows it covers, and how many it does not."""
    dataset = place.dataset()
    found = {index.name: dataset.stats.index_stats(index.name) for index in dataset.describe_indices()}
    return {name: (stats["num_indexed_rows"], stats["num_unindexed_rows"]) for name, stats in found.items()}


def documents(ids, note, height):
    """Each with a word and a vector of its own."""
    ids = list(ids)
    words, vectors = [f"{note}{n} common" for n in ids], [[n, height] for n in ids]
    return pa.table({"id": ids, "text": words, "vector": pa.array(vectors, pa.list_(pa.float32(), 2))})


def nearest(place, number, height):
    """The id that the vector index finds, and the square of its distance."""
    query = {"column": "vector", "q": [float(number), float(height)], "k": 1, "nprobes": 2}
    scanner = place.dataset().scanner(columns=["id", "_distance"], nearest=query)
    assert "ANNSubIndex" in scanner.explain_plan()
    (row,) = scanner.to_table().to_pylist()
    return row["id"], row["_distance"]


def matches(place, word):
    """The ids that the full-text index finds."""
    scanner = place.dataset().scanner(columns=["id", "_score"], full_text_query=word)
    assert "MatchQuery" in scanner.explain_plan()
    return sorted(scanner.to_table()["id"].to_pylist())


@pytest.mark.parametrize("stable", [False, True], ids=["row addresses", "stable row ids"])
def test_an_index_stays_valid_and_is_not_built_again(place, stable):
    place.begin(people(range(100), "old"), enable_stable_row_ids=stable)
    place.dataset().create_scalar_index("id", "BTREE")
    parts = parts_of_indexes(place)
    place.upsert("first", [people([*range(10), 500], "new")])
    assert parts_of_indexes(place) == parts
    assert covered(place) == {"id_idx": (90, 11)}
    dataset = place.dataset()
    for number, note in ((3, "new"), (50, "old"), (500, "new")):
        assert dataset.to_table(filter=f"id = {number}").column("note").to_pylist() == [note]
    dataset.optimize.optimize_indices()
    assert covered(place) == {"id_idx": (101, 0)}
    dataset = place.dataset()
    assert dataset.to_table(filter="id = 3").column("note").to_pylist() == ["new"]
    dataset.validate()


@pytest.mark.parametrize("stable", [False, True], ids=["row addresses", "stable row ids"])
def test_indexes_of_vectors_and_of_text_answer_rightly_after_an_append_and_an_upsert_and_are_not_built_again(place, stable):
    place.begin(documents(range(200), "old", height=0), rows_per_file=100, enable_stable_row_ids=stable)
    place.dataset().create_index("vector", index_type="IVF_FLAT", num_partitions=2)
    place.dataset().create_scalar_index("text", "INVERTED")
    parts = parts_of_indexes(place)
    place.upsert("more", [documents(range(300, 303), "more", height=0)], mode="append", parameters={})
    assert parts_of_indexes(place) == parts
    assert covered(place) == dict.fromkeys(parts, (200, 3))
    assert [nearest(place, number, 0) for number in (3, 199, 301)] == [(3, 0), (199, 0), (301, 0)]
    assert [matches(place, word) for word in ("old3", "old199", "more301")] == [[3], [199], [301]]
    place.upsert("first", [documents([*range(10), 400], "new", height=50)])
    assert parts_of_indexes(place) == parts
    assert covered(place) == dict.fromkeys(parts, (190, 14))
    for _ in range(2):
        assert [nearest(place, number, 50) for number in (3, 400)] == [(3, 0), (400, 0)]
        # No vector of a row that was replaced is found: of those that stay, that of row 10 is nearest to where row 3 was.
        assert [nearest(place, number, 0) for number in (3, 50, 301)] == [(10, 49), (50, 0), (301, 0)]
        assert [matches(place, word) for word in ("old3", "new3", "old50", "more301", "new400")] == [[], [3], [50], [301], [400]]
        assert matches(place, "common") == [*range(200), 300, 301, 302, 400]
        place.dataset().optimize.optimize_indices()
        assert covered(place) == dict.fromkeys(parts, (204, 0))
    place.dataset().validate()


def test_an_overwrite_drops_the_indexes_with_the_rows(place):
    place.begin(documents(range(20), "old", height=0))
    place.dataset().create_scalar_index("text", "INVERTED")
    place.upsert("all", [documents(range(3), "new", height=0)], mode="overwrite", parameters={})
    assert place.dataset().describe_indices() == []
    found = [place.dataset().to_table(filter=f"contains_tokens(text, '{word}')")["id"].to_pylist() for word in ("old2", "new2")]
    assert found == [[], [2]]


def test_keys_of_several_columns_with_nulls(place):
    pairs = [(1, "a"), (1, "b"), (1, None), (None, "a"), (None, None)]
    rows = lambda note, of: pa.table(  # noqa: E731 - of this test only
        {"id": [one for one, _ in of], "kind": [two for _, two in of], "note": [note] * len(of), "vector": [[0.0, 0.0]] * len(of)},
        schema=SCHEMA,
    )
    place.begin(rows("old", pairs))
    place.upsert("first", [rows("new", [(1, None), (None, None), (2, "a")])], keys=("id", "kind"))
    found = {(row["id"], row["kind"]): row["note"] for row in place.rows()}
    assert found == {(1, "a"): "old", (1, "b"): "old", (1, None): "new", (None, "a"): "old", (None, None): "new", (2, "a"): "new"}
    assert len(place.rows()) == 6


def test_a_key_that_is_there_twice_in_the_source_is_refused_with_examples(place):
    place.begin(people(range(10), "old"))
    with pytest.raises(DuplicateKeyError, match=r"(?s)\(7\): 2 rows"):
        place.stage("twice", [people([7, 8], "x"), people([7], "y")])
    assert set(place.notes().values()) == {"old"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [(["ident"], "does not have"), (["id", "id"], "more than once"), (["vector"], "cannot be one of the upsert_keys")],
)
def test_keys_that_cannot_be_are_refused_before_anything_is_stored(place, keys, said):
    place.begin(people(range(3), "old"))
    with pytest.raises(InvalidInputError, match=said):
        place.attempt("first", [people([1], "x")], keys)
    assert place.world.store.names("") == []


CHANGES = {
    "appended a row with one of the keys": lambda place: lance.write_dataset(people([2, 77], "foreign"), place.uri, mode="append"),
    "deleted a row": lambda place: place.dataset().delete("id = 9"),
    "compacted": lambda place: place.dataset().optimize.compact_files(),
    "replaced everything": lambda place: lance.write_dataset(people([1, 2], "foreign"), place.uri, mode="overwrite"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_dataset_that_was_changed_after_it_was_matched_is_matched_again(place, change):
    place.begin(people(range(10), "old"), people(range(10, 20), "old"))
    files = [people([1, 2, 15, 99], "new")]
    attempt = place.stage("first", files)
    CHANGES[change](place)
    there = {row["id"]: row["note"] for row in place.rows()}
    with pytest.raises(TableMovedError, match="Clear the task"):
        place.commit(attempt)
    assert {row["id"]: row["note"] for row in place.rows()} == there
    again = place.stage("first", files)
    assert again.checkpoint.sealed().round == 3
    place.commit(again)
    assert place.notes() == there | dict.fromkeys([1, 2, 15, 99], "new")
    assert len(place.rows()) == len(place.notes())


def test_a_fragment_is_matched_in_the_last_version_if_that_which_was_planned_is_gone(place):
    """An index was made, and versions were cleaned up, between a kill and its retry: no row has changed."""
    place.begin(people(range(10), "old"), people(range(10, 20), "old"))
    attempt = place.attempt("first", [people([1, 15, 99], "new")])
    for _ in range(2):
        found = attempt.next_round()
        work = attempt.begin("a test", 1)
        for split in found.missing[:1]:
            work.run(split, "0")
    place.dataset().create_scalar_index("id", "BTREE")
    place.dataset().cleanup_old_versions(older_than=timedelta(0))
    place.upsert("first", [])
    assert place.notes() == dict.fromkeys(range(20), "old") | dict.fromkeys([1, 15, 99], "new")
    assert len(place.rows()) == 21


def test_only_what_a_change_affects_is_matched_again(place):
    place.begin(people(range(10), "old"), people(range(10, 20), "old"))
    files = [people([1, 15], "new")]
    first = place.stage("first", files).checkpoint.staged_ids()
    lance.write_dataset(people([500], "foreign"), place.uri, mode="append")
    again = place.stage("first", files)
    assert len(again.checkpoint.staged_ids() - first) == 1
    place.commit(again)
    assert len(place.rows()) == 21


def test_a_source_without_rows_changes_nothing(place):
    place.begin(people(range(3), "old"))
    version = place.dataset().version
    assert place.upsert("nothing", [people([], "x")]).commit.commit_id is None
    assert place.dataset().version == version


numbers = st.lists(st.integers(0, 12), max_size=8, unique=True)


@settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.lists(numbers, min_size=1, max_size=3), upserts=st.lists(st.lists(numbers, min_size=1, max_size=2), max_size=3))
def test_upserts_do_what_a_dictionary_does(tmp_path_factory, seed, upserts):
    KEPT.clear()
    place = Place(tmp_path_factory.mktemp("model"))
    expected, files = {}, []
    for ids in seed:
        fresh = [n for n in ids if n not in expected]
        expected |= dict.fromkeys(fresh, "seed")
        files.append(people(fresh, "seed"))
    place.begin(*files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_batches, "PORTION_BYTES", 100)
        for number, splits in enumerate(upserts):
            seen, source = set(), []
            for ids in splits:
                source.append(people([n for n in ids if n not in seen], f"{number}"))
                seen |= set(ids)
            place.upsert(f"{number}", source)
            expected |= dict.fromkeys(seen, f"{number}")
    assert place.notes() == expected
    assert len(place.rows()) == len(expected)


floats = st.one_of(st.none(), st.sampled_from([float("nan"), -0.0, 0.0, 0.5, 0.1, float("inf"), float("-inf")]))


@settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from([pa.float32(), pa.float64()]),
    seed=st.lists(floats, min_size=1, max_size=5),
    upserts=st.lists(st.lists(floats, min_size=1, max_size=4), max_size=2),
)
def test_upserts_by_floats_take_minus_zero_for_zero_and_nan_for_nan(tmp_path_factory, kind, seed, upserts):
    KEPT.clear()
    place = Place(tmp_path_factory.mktemp("floats"))

    def keyed(values, note):
        fresh = {repr(plain(value)): value for value in values}
        return pa.table({"key": pa.array(fresh.values(), kind), "note": [note] * len(fresh)}), dict.fromkeys(fresh, note)

    def plain(value):
        return None if value is None else pa.scalar(value, kind).as_py() + 0.0

    table, expected = keyed(seed, "seed")
    place.begin(table)
    for number, values in enumerate(upserts):
        source, changed = keyed(values, f"{number}")
        place.upsert(f"{number}", [source], keys=["key"])
        expected |= changed
    assert {repr(plain(row["key"])): row["note"] for row in place.rows()} == expected
    assert len(place.rows()) == len(expected)
