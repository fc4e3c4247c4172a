"""Functions that fail at some rows: what comes out of the others, and what is said of those."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from airflow_ckpt_provider.exceptions import InvalidInputError, TransformError
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.transforms import FlatMap, Map

INT = {"v": pa.int64()}


def batch(count=10, first=0):
    ids = range(first, first + count)
    return pa.record_batch({"nid": pa.array(ids, pa.int64()), "text": [f"word {n}" for n in ids]})


def outcome(transform, *batches, begin=0):
    """What comes out, and the failures by the ids of their rows; each row of the input is done once."""
    given = batches or (batch(),)
    steps = list(Transform(transform).steps(given, begin, rejecting=True))
    assert sum(step.done for step in steps) == sum(one.num_rows for one in given)
    made = [row for step in steps if step.batch is not None for row in step.batch.to_pylist()]
    failed = [step.failed for step in steps if step.failed is not None]
    return made, {nid: failure for one in failed for nid, failure in zip(one.rows["nid"].to_pylist(), one.failures, strict=True)}


def third(nid):
    if nid % 3 == 0:
        raise KeyError(nid)
    return nid


async def third_later(nid):
    await asyncio.sleep(0.001 * (nid % 4))
    return third(nid)


def third_of_batches(batch):
    return pa.table({"v": [third(nid) for nid in batch["nid"].to_pylist()]})


@pytest.mark.parametrize(
    "transform",
    [
        Map(third, output=INT, keep=["nid"]),
        Map(third_later, output=INT, keep=["nid"], concurrency=4),
        Map(third_of_batches, output=INT, keep=["nid"], batched=True),
        FlatMap(lambda nid: [third(nid)], output=INT, keep=["nid"]),
    ],
    ids=["rows", "async", "batches", "many"],
)
def test_rows_that_fail_are_handed_out_with_what_was_wrong_and_the_others_come_out_in_their_order(transform):
    made, failed = outcome(transform, batch(5), batch(5, 5), begin=100)
    assert made == [{"nid": n, "v": n} for n in range(10) if n % 3]
    assert {nid: (failure.row, failure.error) for nid, failure in failed.items()} == {
        n: (100 + n, f"KeyError: {n}") for n in (0, 3, 6, 9)
    }
    for failure in failed.values():
        assert "in third" in failure.traceback
        assert "airflow_ckpt_provider/" not in failure.traceback


def test_a_row_that_fails_half_way_leaves_nothing_and_one_that_makes_very_many_comes_out_as_a_whole():
    def several(nid):
        yield from range(10_000)
        if nid == 1:
            raise ValueError("too late")

    made, failed = outcome(FlatMap(several, output=INT, keep=["nid"]), batch(3))
    assert [row["nid"] for row in made] == [0] * 10_000 + [2] * 10_000
    assert {*failed} == {1}


def test_rows_made_by_an_async_generator_that_fails_half_way_are_dropped():
    async def letters(text):
        yield text[0]
        if text.endswith("1"):
            raise ValueError("no")

    made, failed = outcome(FlatMap(letters, output={"l": str}), batch(3))
    assert len(made) == 2
    assert {*failed} == {1}


WRONG = {
    "a wrong type": (lambda nid: "x" if nid == 2 else nid, "its value of 'v' is no int64"),
    "another column": (lambda nid: {"w": 1} if nid == 2 else nid, "lacks v and has w beside the output"),
    "too many values": (lambda nid: (1, 2) if nid == 2 else nid, "2 values, and the output has 1 columns"),
    "too large": (lambda nid: 2**70 if nid == 2 else nid, "its value of 'v' is no int64"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_row_of_which_something_is_made_that_does_not_fit_the_output_fails(what):
    function, said = WRONG[what]
    made, failed = outcome(Map(function, output=INT))
    assert [row["v"] for row in made] == [n for n in range(10) if n != 2]
    assert {*failed} == {2}
    assert said in failed[2].error


@pytest.mark.parametrize("wrong", [{"w": [1]}, {"v": ["x"]}, {"v": [1, 2]}], ids=["column", "type", "rows"])
def test_so_does_a_row_of_a_batch(wrong):
    def function(batch):
        ids = batch["nid"].to_pylist()
        return pa.table(wrong if 2 in ids else {"v": ids})

    made, failed = outcome(Map(function, output=INT, batched=True))
    assert [row["v"] for row in made] == [n for n in range(10) if n != 2]
    assert {*failed} == {2}


def test_a_function_of_batches_is_called_again_with_halves_only_where_it_fails():
    sizes = []

    def only_one(nid):
        return 1 // (nid - 64)

    def fails_at_one(batch):
        sizes.append(batch.num_rows)
        return pa.table({"v": [only_one(nid) for nid in batch["nid"].to_pylist()]})

    _, failed = outcome(Map(fails_at_one, output=INT, batched=True), batch(128))
    assert {*failed} == {64}
    assert len(sizes) == 1 + 2 * 7
    assert sum(sizes) < 3 * 128


@pytest.mark.parametrize("batched", [False, True])
def test_what_is_no_rows_fault_is_raised(batched):
    def failing(error):
        def of_row(nid):
            raise error

        def of_batch(batch):
            raise error

        return Map(of_batch if batched else of_row, output=INT, batched=batched)

    for error, raised in (
        (MemoryError("all of it"), (TransformError, MemoryError)),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (InvalidInputError("as this package says"), (TransformError, InvalidInputError)),
    ):
        with pytest.raises(raised):
            outcome(failing(error))


def test_what_is_kept_of_an_error_can_be_stored_and_holds_no_password():
    class OddError(Exception):
        def __str__(self):
            raise ValueError

    def function(nid):
        secret = "hidden"  # noqa: F841 - a value of a local
        if nid == 0:
            raise ConnectionError("https://ann:topsecret@example.org/x does not answer")
        if nid == 1:
            raise ValueError("\ud800 is half a character")
        if nid == 2:
            raise OddError
        raise ValueError("x" * 100_000)

    _, failed = outcome(Map(function, output=INT), batch(4))
    texts = [failed[n].error + failed[n].traceback for n in range(4)]
    assert "topsecret" not in texts[0]
    assert "ConnectionError: https://" in texts[0]
    assert "\\ud800 is half" in texts[1]
    assert "OddError: (it cannot be shown)" in texts[2]
    assert len(texts[3]) < 21_000
    for text in texts:
        text.encode()
        # Neither the values of variables, nor anything of them.
        assert "hidden" not in text


def test_a_batch_without_rows_keeps_its_columns():
    (step,) = Transform(Map(third, output=INT)).steps([batch(0)], rejecting=True)
    assert step.batch.schema.names == ["v"]
    assert step.failed is None
