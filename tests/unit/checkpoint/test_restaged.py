"""Which ids splits have that are staged again, and what plans remember of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from support.samples import AT

from airflow_ckpt_provider.checkpoint.documents import Plan, Split
from airflow_ckpt_provider.checkpoint.restaged import as_named, first_id, reread, restaged

GOLDEN = Path(__file__).parents[1] / "tables" / "golden" / "restaged.json"


def split(split_id, task="read"):
    return Split(id=split_id, bytes=1, read={"of": first_id(split_id)}, task=task)


PLAN = Plan(created_at=AT, source={"kind": "files"}, splits=(split("000001"), split("000002"), split("match00aa", "match")))


def ids(plan):
    return [one.id for one in plan.splits]


def test_a_lost_split_has_another_id_and_the_same_work_in_a_later_round():
    again = restaged(PLAN, {"000001"}, 2)
    assert ids(again) == ["000001z2", "000002", "match00aa"]
    assert again.splits[0].read == PLAN.splits[0].read
    assert ids(restaged(again, {"000001z2"}, 3)) == ["000001z3", "000002", "match00aa"]


def test_what_plans_remember_is_stored_as_it_always_was():
    again = restaged(restaged(PLAN, {"match00aa"}, 2), {"000001", "match00aaz2"}, 3)
    remembered = msgspec.structs.replace(again, restaged={"match00aa": 3, "000001": 2})
    assert again.restaged == {"match00aa": 3, "000001": 3}
    assert msgspec.json.encode(remembered.restaged) == GOLDEN.read_bytes().strip()
    assert as_named([split("match00aa", "match"), split("match00bb", "match")], remembered).keys() == {"match00aaz3", "match00bb"}


def test_all_that_was_computed_from_lost_rows_has_another_id():
    again = reread(PLAN, {"000002"}, 3)
    assert ids(again) == ["000001", "000002z3"]
    assert (again.source, again.mode, again.restaged) == (PLAN.source, None, {"*": 3})
    own = as_named([split("match00aa", "match"), split("insert", "insert")], again)
    assert list(own) == ["match00aaz3", "insertz3"]
    lost = msgspec.structs.replace(again, splits=tuple(own.values()))
    assert list(as_named([split("match00aa", "match"), split("insert", "insert")], restaged(lost, {"insertz3"}, 5))) == [
        "match00aaz3",
        "insertz5",
    ]
