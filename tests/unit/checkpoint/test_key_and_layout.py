"""Keys, and the names of objects and files that follow from them. Renaming anything breaks checkpoints under way."""

from __future__ import annotations

import pytest
from support.samples import KEY

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.checkpoint.layout import (
    CheckpointPaths,
    OwnedNames,
    Place,
    generation_of,
    id_of,
    in_order_of_removal,
    is_probe,
    place_of,
    probe,
)
from airflow_ckpt_provider.exceptions import InvalidInputError, escaped


@pytest.mark.parametrize("value", ["", " ", "\t", "\n", " key", "key ", "key\n"])
def test_an_empty_or_padded_key_is_refused_with_a_hint_at_the_template(value):
    with pytest.raises(InvalidInputError, match="template"):
        IdempotenceKey(value)


UNSAFE = [
    *("\x00", "\x01", "\x1b", "\x1f", "\x7f", "\x9b", "\n", "\t", "\r", "\u2028", "\u2029"),
    *("\u200e", "\u200f", "\u061c", "\u202a", "\u202e", "\u2066", "\u2069", "\ud800", "\udfff"),
]


@pytest.mark.parametrize("letter", UNSAFE, ids=ascii)
def test_a_key_with_a_control_or_bidirectional_character_inside_is_refused_and_not_shown(letter):
    with pytest.raises(InvalidInputError, match="control or bidirectional") as refused:
        IdempotenceKey(f"a{letter}b")
    assert letter not in str(refused.value)


@pytest.mark.parametrize("letter", UNSAFE, ids=ascii)
def test_a_message_shows_what_it_repeats_as_it_is_read(letter):
    assert escaped(f"a{letter}b").isprintable()
    assert letter == "\n" or letter not in str(InvalidInputError(f"a{letter}b"))
    assert str(InvalidInputError("one\ntwo ä 鍵 🙂")) == "one\ntwo ä 鍵 🙂"


@pytest.mark.parametrize("half", [0xD800, 0xDFFF])
def test_a_key_with_half_a_surrogate_pair_is_refused(half):
    with pytest.raises(InvalidInputError, match="half of a surrogate pair"):
        IdempotenceKey(f"a{chr(half)}b")


def test_a_key_of_512_characters_is_the_longest():
    assert IdempotenceKey("k" * 512).value == "k" * 512
    with pytest.raises(InvalidInputError, match=r"513 characters.*512"):
        IdempotenceKey("k" * 513)


@pytest.mark.parametrize(
    "value", ["a", "a b", "dag/task/run/-1", "run__2026-01-01T00:00:00+00:00", "schlüssel", "鍵", "a/../b", "%2F"]
)
def test_any_other_text_is_a_key_and_is_kept_as_it_is(value):
    assert str(IdempotenceKey(value)) == value


def test_keys_that_differ_have_folders_that_differ_and_no_key_leaves_its_own():
    values = ["a", "A", "a ", "a/../b", "ä", "a\u0308"]
    hashes = {IdempotenceKey(value.strip() + "x").hash for value in values}
    assert len(hashes) == len({value.strip() for value in values})
    assert all(len(name) == 20 and set(name) <= set("0123456789abcdef") for name in hashes)


def test_the_names_of_all_objects_are_these():
    paths = CheckpointPaths(KEY.hash, 3)
    assert KEY.hash == "0db41be169d84ccf06af"
    root = "0db41be169d84ccf06af/g3/"
    assert paths.root == root
    assert {
        "header": paths.header,
        "plan": paths.plan(),
        "plan of a later round": paths.plan(2),
        "attempts": paths.attempts,
        "attempt": paths.attempt("a1b2c3d4e5f6"),
        "staged folder": paths.staged_folder,
        "staged": paths.staged("000012"),
        "seal": paths.seal(),
        "later seal": paths.seal(2),
        "ids folder": paths.ids_folder,
        "ids": paths.ids("000012", "a1b2c3d4e5f6.0"),
        "group": paths.group,
        "members of a group": paths.members("0f" * 16),
        "commit": paths.commit,
        "discard": paths.discard,
    } == {
        "header": f"{root}header.json",
        "plan": f"{root}plan.json.zst",
        "plan of a later round": f"{root}plan-2.json.zst",
        "attempts": f"{root}attempts/",
        "attempt": f"{root}attempts/a1b2c3d4e5f6.json",
        "staged folder": f"{root}staged/",
        "staged": f"{root}staged/000012.json",
        "seal": f"{root}seal.json",
        "later seal": f"{root}seal-2.json",
        "ids folder": f"{root}ids/",
        "ids": f"{root}ids/000012-a1b2c3d4e5f6.0.parquet",
        "group": f"{root}group.json",
        "members of a group": f"{root}groups/{'0f' * 16}.json",
        "commit": f"{root}commit.json",
        "discard": f"{root}discard.json",
    }


def test_the_name_of_every_file_tells_key_generation_split_and_attempt():
    stem = CheckpointPaths(KEY.hash, 3).file_stem("000012", "a1b2c3d4e5f6.7")
    assert stem == "ckpt-0db41be169d84ccf06af-g3-s000012-a1b2c3d4e5f6.7"


@pytest.mark.parametrize(
    ("name", "generation"),
    [("ab12/g1/header.json", 1), ("ab12/g10/x", 10), ("ab12/g0/x", None), ("ab12/gx/x", None), ("ab12/g1", None), ("README", None)],
)
def test_the_generation_is_read_from_a_name_and_other_names_have_none(name, generation):
    assert generation_of(name) == generation


def test_the_id_is_read_from_a_name():
    assert id_of("ab12/g1/staged/000012.json") == "000012"


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("ckpt-ab12-g3-s000001-a1.7-00000.parquet", True),
        ("ckpt-ab12-g3-smerged-a1.0-00000.avro", True),
        # Iceberg's location provider for object storage puts digits in front.
        ("01101001-ckpt-ab12-g3-s000001-a1.7-00000.parquet", True),
        ("ckpt-ab12-g3-s000001-a2.7-00000.parquet", False),
        ("ckpt-ab12-g3-s000001-a1", False),
        ("ckpt-ab12-g3-s-a1.7-00000.parquet", False),
        ("ckpt-ab12-g33-s000001-a1.7-00000.parquet", False),
        ("ckpt-ab123-g3-s000001-a1.7-00000.parquet", False),
        ("xckpt-ab12-g3-s000001-a1.7-00000.parquet", False),
        ("ckpt-ab12-g3-s../../x-a1.7-00000.parquet", False),
        ("part-00000.parquet", False),
        ("", False),
    ],
)
def test_a_file_is_a_generations_own_by_key_generation_and_recorded_attempt(name, own):
    assert (name in OwnedNames("ab12", 3, frozenset({"a1"}))) is own


PATHS = CheckpointPaths(KEY.hash, 12)

#: What stays of a generation for good, and what a sweep removes, in the order in which it does. A new name has to join one of them.
STAYS = {"header", "group", "members", "commit", "discard", "compact", "rejected"}
FIRST = [PATHS.seal()]
THEN = [
    PATHS.code("0123456789abcdef"),
    PATHS.continuation(3),
    PATHS.ids("000012", "a1b2c3d4e5f6.0"),
    PATHS.piece("000012.0123456789abcdef", 7),
    PATHS.plan(2),
    PATHS.plan(),
    PATHS.reader("ab" * 10, 2),
    PATHS.staged("000012z2"),
]
LAST = [PATHS.attempt("a1b2c3d4e5f6"), PATHS.seal(2)]

#: Folders, and names of files that are none of the store's.
NO_OBJECTS = {"key_hash", "generation", "root", "attempts", "staged_folder", "codes_folder", "pieces_folder", "ids_folder"} | {
    "file_stem",
    "files",
    "readers_folder",
    "rejected_folder",
}


def test_every_object_stays_or_is_removed_when_its_generation_is_done():
    named = {name for name in dir(PATHS) if not name.startswith("_")} - NO_OBJECTS - STAYS
    assert named == {"plan", "attempt", "staged", "code", "continuation", "piece", "ids", "seal", "reader"}
    staying = [PATHS.header, PATHS.group, PATHS.members("0f" * 16), PATHS.commit, PATHS.discard, PATHS.compact]
    staying.append(PATHS.rejected("000012", "a1b2c3d4e5f6.0"))
    for name in (*staying, *FIRST, *THEN, *LAST):
        assert place_of(name) == Place(KEY.hash, 12, name.removeprefix(PATHS.root)), name
    assert in_order_of_removal([*LAST, *staying, *THEN, *FIRST]) == [FIRST, THEN, LAST]


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "seal.json",
        f"{KEY.hash}/seal.json",
        f"{KEY.hash}/g0/seal.json",
        f"{KEY.hash}0/g1/seal.json",
        f"{KEY.hash[1:]}/g1/seal.json",
        f"{PATHS.root}seal.json.bak",
        f"{PATHS.root}sealed.json",
        f"{PATHS.root}more/seal.json",
        f"{PATHS.root}staged/more/000000.json",
        f"{PATHS.root}staged/000000.txt",
        f"more/{PATHS.root}seal.json",
    ],
)
def test_an_object_of_another_name_is_none_of_ours(name):
    assert place_of(name) is None
    assert not is_probe(name)
    assert in_order_of_removal([name]) == []


def test_an_object_that_reads_the_clock_is_known_by_its_name():
    assert is_probe(probe("0f" * 16))
    assert place_of(probe("0f" * 16)) is None
    assert not is_probe(f"{KEY.hash}/clock-{'0f' * 16}")
