"""Functions of rows: what they are called with, what becomes of what they return, and what is said when they fail."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import time
from functools import partial

import pyarrow as pa
import pydantic
import pytest

from airflow_ckpt_provider.exceptions import InvalidInputError, TransformError
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.transforms import FlatMap, Map


def batch(count=4, first=0):
    ids = range(first, first + count)
    return pa.record_batch({"nid": pa.array(ids, pa.int64()), "text": [f"word {n}" for n in ids]})


def rows_of(transform, *batches):
    """All rows that come out, and that each row of the input is done once."""
    given = batches or (batch(),)
    steps = list(Transform(transform).steps(given))
    assert sum(step.done for step in steps) == sum(one.num_rows for one in given)
    return [row for step in steps if step.batch is not None for row in step.batch.to_pylist()]


@dataclasses.dataclass
class Words:
    words: int
    first: str | None


class Model(pydantic.BaseModel):
    words: int
    first: str | None = None


WORDS = {"words": pa.int64(), "first": pa.string()}

RESULTS = {
    "dict": (WORDS, lambda text: {"first": text[0], "words": 2}),
    "tuple": (WORDS, lambda text: (2, text[0])),
    "dataclass": (Words, lambda text: Words(2, text[0])),
    "model": (Model, lambda text: Model(words=2, first=text[0])),
    "python types": ({"words": int, "first": str | None}, lambda text: (2, text[0])),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_a_row_is_made_of_each_whatever_the_function_returns(kind):
    output, function = RESULTS[kind]
    assert rows_of(Map(function, output=output)) == [{"words": 2, "first": "w"}] * 4


def test_a_value_alone_is_a_row_of_one_column():
    assert rows_of(Map(lambda nid: nid * 2, output={"twice": pa.int32()})) == [{"twice": 2 * n} for n in range(4)]


def test_the_parameters_name_the_columns_and_may_be_all_of_them():
    assert rows_of(Map(lambda **columns: max(columns), output={"v": pa.string()})) == [{"v": "text"}] * 4
    assert rows_of(Map(lambda nid, other=7: nid + other, output={"v": pa.int64()}))[0] == {"v": 7}
    with pytest.raises(InvalidInputError, match=r"needs the columns nope; the rows have nid, text"):
        rows_of(Map(lambda nope: nope, output={"v": pa.int64()}))


@pytest.mark.parametrize(("keep", "names"), [(True, ["nid", "text", "v"]), (["text"], ["text", "v"]), (False, ["v"])])
def test_columns_of_the_input_stay_beside_what_is_made(keep, names):
    made = rows_of(Map(lambda nid: nid, output={"v": pa.int64()}, keep=keep))
    assert [list(row) for row in made] == [names] * 4


def test_a_column_that_is_kept_and_made_is_refused():
    with pytest.raises(InvalidInputError, match="the columns nid are both in keep and in output"):
        Map(lambda nid: nid, output={"nid": pa.int64()}, keep=["nid"])
    with pytest.raises(InvalidInputError, match="keeps and makes the columns nid"):
        rows_of(Map(lambda nid: nid, output={"nid": pa.int64()}, keep=True))


def test_any_number_of_rows_is_made_of_each_beside_what_is_kept():
    made = rows_of(FlatMap(lambda nid: list(range(nid)), output={"n": pa.int64()}, keep=["nid"]))
    assert made == [{"nid": 1, "n": 0}, {"nid": 2, "n": 0}, {"nid": 2, "n": 1}, *({"nid": 3, "n": n} for n in range(3))]


def test_rows_that_are_yielded_and_rows_that_yield_nothing_are_done():
    def words(text):
        if text != "word 1":
            yield from text.split()

    assert [row["w"] for row in rows_of(FlatMap(words, output={"w": str}))] == ["word", "0", "word", "2", "word", "3"]
    assert rows_of(FlatMap(lambda nid: None if nid < 99 else [], output={"w": str})) == []


def test_all_that_is_made_of_a_row_comes_before_it_is_done_however_much_it_is():
    steps = list(Transform(FlatMap(lambda nid: range(nid, 20_000 + nid), output={"n": pa.int64()})).steps([batch(2)]))
    made = done = 0
    for step in steps:
        made += step.batch.num_rows if step.batch is not None else 0
        done += step.done
        assert made >= 20_000 * done
    assert max(step.batch.num_rows for step in steps if step.batch is not None) <= 8192
    assert (made, done) == (40_000, 2)


def test_a_slow_function_gives_out_what_it_has_made_long_before_the_batch_ends():
    steps = Transform(Map(lambda nid: time.sleep(0.2) or nid, output={"v": pa.int64()})).steps([batch(50)])
    start = time.monotonic()
    first = next(steps)
    assert time.monotonic() - start < 2
    assert 1 <= first.done < 10


def test_async_functions_wait_at_the_same_time_and_rows_keep_their_order():
    waiting, most = 0, 0

    async def ask(nid):
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.01 * (4 - nid % 4))
        waiting -= 1
        return nid

    assert rows_of(Map(ask, output={"v": pa.int64()}, concurrency=8), batch(20)) == [{"v": n} for n in range(20)]
    assert most == 8


def test_an_async_function_that_is_given_some_of_its_arguments_before_is_awaited_too():
    async def scaled(factor, nid):
        await asyncio.sleep(0)
        return factor * nid

    class Scaled:
        async def __call__(self, nid):
            return await scaled(3, nid)

    expected = [{"v": 3 * n} for n in range(4)]
    for function in (partial(scaled, 3), partial(partial(scaled), 3), Scaled):
        assert rows_of(Map(function, output={"v": pa.int64()})) == expected


def test_one_slow_answer_does_not_keep_the_calls_behind_it_back():
    done = []

    async def ask(nid):
        await asyncio.sleep(0.3 if nid == 0 else 0.01)
        done.append(nid)
        return nid

    assert rows_of(Map(ask, output={"v": pa.int64()}, concurrency=4), batch(20)) == [{"v": n} for n in range(20)]
    assert done.index(0) >= 8


def test_a_connection_that_a_setup_has_opened_is_used_by_all_batches():
    loops = set()

    async def ask(nid):
        loops.add(asyncio.get_running_loop())
        return nid

    function = Map(ask, output={"v": pa.int64()}, concurrency=2)
    assert rows_of(function) == rows_of(function) == [{"v": n} for n in range(4)]
    assert len(loops) == 1


def test_calls_that_wait_behind_a_row_that_fails_are_stopped():
    ended = []

    async def ask(nid):
        try:
            await asyncio.sleep(0.01 if nid == 0 else 60)
        finally:
            ended.append(nid)
        raise ValueError("no answer")

    start = time.monotonic()
    with pytest.raises(TransformError, match=r"row 0 .*no answer"):
        rows_of(Map(ask, output={"v": pa.int64()}, concurrency=4))
    assert time.monotonic() - start < 10
    assert sorted(ended) == [0, 1, 2, 3]


def test_async_generators_make_any_number_of_rows():
    async def letters(text):
        for letter in text[:2]:
            await asyncio.sleep(0)
            yield letter

    assert [row["l"] for row in rows_of(FlatMap(letters, output={"l": str}), batch(2))] == ["w", "o", "w", "o"]


def test_what_is_set_up_is_set_up_once_and_handed_to_the_function():
    calls = []

    def load():
        calls.append(1)
        return {"factor": 10}

    function = Map(lambda nid, state: nid * state["factor"], output={"v": pa.int64()}, setup=load)
    assert rows_of(function) == rows_of(function) == [{"v": 10 * n} for n in range(4)]
    assert calls == [1]
    with pytest.raises(InvalidInputError, match="no parameter 'state'"):
        rows_of(Map(lambda nid: nid, output={"v": pa.int64()}, setup=load))


def test_a_class_is_made_once_and_torn_down_when_the_process_ends():
    code = """
import pyarrow as pa
from airflow_ckpt_provider.transforms import Map

class Model:
    def __init__(self): print("made")
    def setup(self): self.factor = 3; print("set up")
    def __call__(self, nid): return nid * self.factor
    def teardown(self): print("torn down")

batch = pa.record_batch({"nid": [1, 2]})
mapped = Map(Model, output={"v": pa.int64()})
print([row for _ in range(2) for made in mapped(batch) for row in made.to_pylist()])
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert printed == ["made", "set up", "[{'v': 3}, {'v': 6}, {'v': 3}, {'v': 6}]", "torn down"]


def test_a_function_of_batches_makes_a_row_of_each_or_any_number():
    def double(batch):
        return pa.table({"v": pa.array([2 * n for n in batch["nid"].to_pylist()], pa.int32())})

    assert rows_of(Map(double, output={"v": pa.int64()}, batched=True, keep=["nid"]))[3] == {"nid": 3, "v": 6}
    assert len(rows_of(FlatMap(lambda batch: [double(batch), double(batch)], output={"v": pa.int64()}, batched=True))) == 8
    with pytest.raises(InvalidInputError, match="returned 8 rows for 4"):
        rows_of(Map(lambda batch: [double(batch), double(batch)], output={"v": pa.int64()}, batched=True))
    with pytest.raises(InvalidInputError, match="returned the columns v; its output has w"):
        rows_of(Map(double, output={"w": pa.int64()}, batched=True))


FAILURES = {
    "an error": (
        lambda nid: 1 // (nid - 2),
        r"at row 102 of .*input \(nid=2\): ZeroDivisionError: .*test_rows\.py, line \d+",
    ),
    "a wrong type": (lambda nid: "x" if nid == 2 else nid, r"at row 102 .*its value of 'v' is no int64"),
    "another column": (
        lambda nid: {"w": 1} if nid == 2 else nid,
        r"at row 102 .*returned lacks v and has w beside the output",
    ),
    "too many values": (
        lambda nid: (1, 2) if nid == 2 else nid,
        r"at row 102 .*2 values, and the output has 1 columns: v",
    ),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_names_the_row_its_id_and_the_users_own_line(what):
    function, said = FAILURES[what]
    with pytest.raises(TransformError, match=said):
        list(Transform(Map(function, output={"v": pa.int64()})).steps([batch()], begin=100))


@pytest.mark.parametrize(
    "wrong",
    [{"output": {}}, {"output": int}, {"keep": "nid"}, {"concurrency": 0}, {"setup": 7}, {"function": "nowhere"}],
    ids=str,
)
def test_what_cannot_work_is_refused_when_it_is_said(wrong):
    facts = {"function": lambda nid: nid, "output": {"v": pa.int64()}} | wrong
    with pytest.raises(InvalidInputError, match=r"Map|function="):
        Map(facts.pop("function"), **facts)


def test_a_type_that_stands_for_no_arrow_type_is_named():
    with pytest.raises(InvalidInputError, match="column 'v' is of the type <class 'complex'>"):
        rows_of(Map(lambda nid: nid, output={"v": complex}))


def twice(nid):
    return nid * 2


def test_what_makes_other_rows_has_another_fingerprint_and_what_does_not_has_the_same():
    def of(function=twice, kind=Map, **changes):
        return Transform(kind(function, **({"output": {"v": pa.int64()}} | changes))).fingerprint

    assert of() == of() == of(concurrency=3)
    others = [
        of(lambda nid: nid * 3),
        of(kind=FlatMap),
        of(output={"v": pa.int32()}),
        of(keep=True),
        of(batched=True),
        of(setup=list),
    ]
    assert len({of(), *others}) == 1 + len(others)


def test_the_kind_says_what_comes_out():
    mapped = Transform(Map(twice, output={"v": int, "w": list[str]}, keep=["nid"]))
    assert mapped.kind == "Map to (v int64, w list<item: string>) beside nid"
    assert mapped.name == "Map(twice)"


def test_importing_them_imports_no_arrow():
    code = "import sys; from airflow_ckpt_provider.transforms import Map, FlatMap; print('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_what_comes_out_is_known_without_calling_the_function():
    rows = batch().schema
    assert Transform(Map(twice, output={"v": int})).made_of(None) == pa.schema([("v", pa.int64())])
    kept = Transform(Map(twice, output={"v": int}, keep=["nid"]))
    assert kept.made_of(rows) == pa.schema([("nid", pa.int64()), ("v", pa.int64())])
    assert kept.made_of(None) is None
    assert Transform(twice).made_of(rows) is None
