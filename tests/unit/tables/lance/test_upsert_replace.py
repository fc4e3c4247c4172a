"""``on_rerun="replace"`` of an upsert: what it had inserted goes; what it had updated stays, and is matched again."""

from __future__ import annotations

import shutil
from datetime import timedelta

import lance
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lance_upserting import Place, people

from airflow_ckpt_provider.exceptions import StagedFileMissingError, TableMovedError
from airflow_ckpt_provider.tables.keys import key_batches
from airflow_ckpt_provider.tables.lance.upsert.source import KEPT


@pytest.fixture
def place(tmp_path):
    """Rows 0 to 9 of others, of which the upsert ``first`` has updated 3 and 4; 50 and 51 it has inserted, and 60 is of others."""
    KEPT.clear()
    place = Place(tmp_path / "place")
    place.begin(people(range(10), "old"))
    place.upsert("first", [people([3, 50], "new"), people([4, 51], "new")])
    lance.write_dataset(people([60], "theirs"), place.uri, mode="append")
    return place


OLD = dict.fromkeys(range(10), "old") | {60: "theirs"}
UPDATED = OLD | {3: "new", 4: "new"}


def assert_holds(place, expected):
    assert place.notes() == expected
    assert len(place.rows()) == len(expected)


def test_the_same_rows_again(place):
    version = place.dataset().version
    place.replace([people([3, 50], "newer"), people([4, 51], "newer")])
    assert_holds(place, OLD | dict.fromkeys([3, 4, 50, 51], "newer"))
    assert place.dataset().version == version + 1


def test_other_rows(place):
    place.replace([people([4, 5, 51, 60, 70], "newer")])
    assert_holds(place, UPDATED | dict.fromkeys([4, 5, 51, 60, 70], "newer"))


def test_no_rows(place):
    place.replace([people([], "newer")])
    assert_holds(place, UPDATED)


def test_what_is_inserted_again_is_not_told_as_updated(place):
    attempt = place.replace([people([3, 50, 70], "newer")])
    assert attempt.checkpoint.sealed().counts == {"updated": 1}


def test_again_and_again(place):
    place.replace([people([4, 51, 70], "second")])
    place.replace([people([5, 70, 80], "third")])
    assert_holds(place, UPDATED | {4: "second", 5: "third", 70: "third", 80: "third"})
    place.replace([people([], "fourth")])
    assert_holds(place, UPDATED | {4: "second", 5: "third"})


def test_rows_that_others_deleted_meanwhile_are_gone(place):
    place.dataset().delete("id in (3, 51)")
    place.replace([people([3, 51], "newer")])
    assert_holds(place, UPDATED | {3: "newer", 51: "newer"})


def test_rows_that_others_wrote_anew_are_theirs(place):
    place.dataset().delete("id in (3, 51)")
    lance.write_dataset(people([3, 51], "theirs"), place.uri, mode="append")
    place.replace([people([3, 70], "newer")])
    assert_holds(place, UPDATED | {3: "newer", 51: "theirs", 70: "newer"})


def test_a_file_of_which_others_left_no_row_cannot_be_told_from_one_that_was_compacted(place):
    place.dataset().delete("id in (3, 50)")
    with pytest.raises(TableMovedError, match="under another idempotence key"):
        place.replace([people([3, 70], "newer")])


def test_a_column_that_others_added_meanwhile_does_not_hinder(place):
    place.dataset().add_columns({"twice": "id * 2"})
    place.replace([people([3, 51], "newer")])
    assert_holds(place, UPDATED | {3: "newer", 51: "newer"})


def test_versions_that_were_cleaned_up_do_not_hinder(place):
    place.dataset().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert len(place.dataset().versions()) == 1
    place.replace([people([4, 5, 70], "newer")])
    assert_holds(place, UPDATED | dict.fromkeys([4, 5, 70], "newer"))


def test_what_was_inserted_and_compacted_since_cannot_be_told_from_the_rest(place):
    place.dataset().optimize.compact_files()
    there = place.notes()
    with pytest.raises(TableMovedError, match=r"2 of the files .* under another idempotence key"):
        place.replace([people([3, 70], "newer")])
    assert_holds(place, there)


def test_a_compaction_between_stage_and_commit_is_seen(place):
    attempt = place.stage("first", [], on_rerun="replace", on_change="restart", restart_token="now")
    place.dataset().optimize.compact_files()
    there = place.notes()
    with pytest.raises(TableMovedError, match="under another idempotence key"):
        place.commit(attempt)
    assert_holds(place, there)


def test_a_compaction_of_what_was_only_updated_does_not_hinder(tmp_path):
    place = Place(tmp_path / "place")
    place.begin(people(range(10), "old"))
    place.upsert("first", [people([3, 4], "new")])
    place.dataset().optimize.compact_files()
    place.replace([people([4, 5, 70], "newer")])
    assert_holds(place, dict.fromkeys(range(10), "old") | {3: "new"} | dict.fromkeys([4, 5, 70], "newer"))


def test_a_folder_of_the_dataset_that_somebody_removed_is_named(place):
    shutil.rmtree(f"{place.uri}/_checkpoints")
    with pytest.raises(StagedFileMissingError, match=r"_checkpoints/.* under another idempotence key"):
        place.replace([people([3, 70], "newer")])
    assert_holds(place, UPDATED | {50: "new", 51: "new"})


numbers = st.lists(st.integers(0, 12), max_size=8, unique=True)


@settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=numbers, generations=st.lists(st.lists(numbers, min_size=1, max_size=2), min_size=1, max_size=4), foreign=numbers)
def test_replacements_do_what_a_dictionary_does_that_knows_what_was_inserted(tmp_path_factory, seed, generations, foreign):
    KEPT.clear()
    place = Place(tmp_path_factory.mktemp("model"))
    place.begin(people(seed, "seed"))
    expected, inserted = dict.fromkeys(seed, "seed"), set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_batches, "PORTION_BYTES", 100)
        for number, splits in enumerate(generations):
            seen, source = set(), []
            for ids in splits:
                source.append(people([n for n in ids if n not in seen], f"{number}"))
                seen |= set(ids)
            if number == 0:
                place.upsert("first", source)
            else:
                place.replace(source)
            for key in inserted:
                del expected[key]
            inserted = seen - expected.keys()
            expected |= dict.fromkeys(seen, f"{number}")
            if number == 1:
                theirs = [n for n in foreign if n not in expected]
                lance.write_dataset(people(theirs, "theirs"), place.uri, mode="append")
                expected |= dict.fromkeys(theirs, "theirs")
    assert_holds(place, expected)
