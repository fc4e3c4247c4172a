"""Which ids splits have that are staged once more, and what plans remember of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from support.samples import AT

from airflow_ckpt_provider.checkpoint.anew import as_named, first_id, read_anew, staged_anew
from airflow_ckpt_provider.checkpoint.documents import Plan, Split

GOLDEN = Path(__file__).parents[1] / "tables" / "golden" / "anew.json"


def split(split_id, task="read"):
    return Split(id=split_id, bytes=1, read={"of": first_id(split_id)}, task=task)


PLAN = Plan(created_at=AT, source={"kind": "files"}, splits=(split("000001"), split("000002"), split("match00aa", "match")))


def ids(plan):
    return [one.id for one in plan.splits]


def test_a_lost_split_has_another_id_and_the_same_work_in_a_later_round():
    again = staged_anew(PLAN, {"000001"}, 2)
    assert ids(again) == ["000001z2", "000002", "match00aa"]
    assert again.splits[0].read == PLAN.splits[0].read
    assert ids(staged_anew(again, {"000001z2"}, 3)) == ["000001z3", "000002", "match00aa"]


def test_what_plans_remember_is_stored_as_it_always_was():
    again = staged_anew(staged_anew(PLAN, {"match00aa"}, 2), {"000001", "match00aaz2"}, 3)
    remembered = msgspec.structs.replace(again, anew={"match00aa": 3, "000001": 2})
    assert again.anew == {"match00aa": 3, "000001": 3}
    assert msgspec.json.encode(remembered.anew) == GOLDEN.read_bytes().strip()
    assert as_named([split("match00aa", "match"), split("match00bb", "match")], remembered).keys() == {"match00aaz3", "match00bb"}


def test_all_that_was_computed_from_lost_rows_has_another_id():
    again = read_anew(PLAN, {"000002"}, 3)
    assert ids(again) == ["000001", "000002z3"]
    assert (again.source, again.mode, again.anew) == (PLAN.source, None, {"*": 3})
    own = as_named([split("match00aa", "match"), split("insert", "insert")], again)
    assert list(own) == ["match00aaz3", "insertz3"]
    lost = msgspec.structs.replace(again, splits=tuple(own.values()))
    assert list(as_named([split("match00aa", "match"), split("insert", "insert")], staged_anew(lost, {"insertz3"}, 5))) == [
        "match00aaz3",
        "insertz5",
    ]
