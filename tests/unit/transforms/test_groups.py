"""``Aggregate`` over rows whose groups come one after the other: where groups begin, what the function sees, what comes out."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ckpt_provider.exceptions import InvalidInputError, TransformError
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.transforms import Aggregate

OUT = {"total": pa.int64(), "rows": pa.int64()}


def total(amount):
    return {"total": sum(amount), "rows": len(amount)}


def batches(rows, sizes=()):
    """Rows, cut into batches of these sizes and one of the rest."""
    table = pa.Table.from_pylist(rows, schema=pa.schema([("shop", pa.string()), ("amount", pa.int64())]))
    begin, found = 0, []
    for size in sizes:
        found += table.slice(begin, size).to_batches()
        begin += size
    return found + table.slice(begin).to_batches()


def rows_of(aggregate, given_batches):
    return [row for batch in aggregate.over(given_batches) for row in batch.to_pylist()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), max_size=8), st.lists(st.integers(0, 6), max_size=8))
def test_a_group_is_one_however_its_rows_are_cut_into_batches(groups, sizes):
    rows = [{"shop": f"s{number}", "amount": amount} for number, size in enumerate(groups) for amount in range(size)]
    made = rows_of(Aggregate(total, by="shop", output=OUT), batches(rows, sizes))
    assert made == [{"shop": f"s{n}", "total": sum(range(size)), "rows": size} for n, size in enumerate(groups)]


def test_nulls_nans_and_both_zeros_are_values_like_others():
    values = [None, None, -0.0, 0.0, 1.0, math.nan, math.nan]
    batch = pa.RecordBatch.from_pydict({"at": pa.array(values, pa.float64()), "amount": pa.array(range(7), pa.int64())})
    made = [
        row
        for out in Aggregate(total, by="at", output=OUT).over([batch.slice(0, 1), batch.slice(1, 2), batch.slice(3)])
        for row in out.to_pylist()
    ]
    assert [row["rows"] for row in made] == [2, 2, 1, 2]


def test_a_function_of_the_value_and_the_rows():
    def described(shop, amount):
        return f"{shop}: {sorted(amount)}"

    rows = [{"shop": "a", "amount": 2}, {"shop": "a", "amount": 1}, {"shop": "b", "amount": 3}]
    made = rows_of(Aggregate(described, by=["shop"], output={"said": str}), batches(rows))
    assert made == [{"shop": "a", "said": "a: [1, 2]"}, {"shop": "b", "said": "b: [3]"}]


def test_a_generator_makes_any_number_of_rows():
    def large(amount):
        for value in amount:
            if value > 1:
                yield {"value": value}

    rows = [{"shop": "a", "amount": 2}, {"shop": "a", "amount": 3}, {"shop": "b", "amount": 1}]
    assert rows_of(Aggregate(large, by="shop", output={"value": int}), batches(rows)) == [
        {"shop": "a", "value": 2}, {"shop": "a", "value": 3},
    ]  # fmt: skip


def test_a_function_of_tables():
    def longest(table):
        return table.sort_by([("amount", "descending")]).slice(0, 1).select(["amount"])

    rows = [{"shop": "a", "amount": 2}, {"shop": "a", "amount": 3}, {"shop": "b", "amount": 1}]
    made = rows_of(Aggregate(longest, by="shop", output={"amount": pa.int64()}, batched=True), batches(rows))
    assert made == [{"shop": "a", "amount": 3}, {"shop": "b", "amount": 1}]


def test_a_failure_names_the_group_and_the_line():
    def broken(amount):
        return {"total": 1 // (sum(amount) - 1), "rows": 0}

    rows = [{"shop": "a", "amount": 2}, {"shop": "b", "amount": 1}]
    with pytest.raises(TransformError, match=r"failed at the group of 1 rows with shop=b: ZeroDivisionError.*test_groups.py, line"):
        rows_of(Aggregate(broken, by="shop", output=OUT), batches(rows))


def test_a_value_of_another_type_names_the_group():
    aggregate = Aggregate(lambda shop: f"no number of {shop}", by="shop", output={"total": int})
    with pytest.raises(TransformError, match=r"with shop=a: Arrow"):
        rows_of(aggregate, batches([{"shop": "a", "amount": 2}]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"by": []}, r"by=\[\] has to name a column"),
        ({"by": "shop", "order_by": "shop"}, "other ones"),
        ({"by": "total"}, "the columns total are both in by and in output"),
        ({"by": "shop", "buckets": 0}, "buckets=0 has to be between 1 and"),
        ({"by": "shop", "function": 3}, "function=3 is neither a function"),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(changes, said):
    facts = {"function": total, "output": OUT} | changes
    with pytest.raises(InvalidInputError, match=said):
        Aggregate(facts.pop("function"), **facts)


def test_the_columns_that_it_takes_are_known_before_anything_is_shuffled():
    assert Aggregate(total, by="shop", output=OUT, order_by="at").columns_of(["at", "shop", "amount", "note"]) == [
        "shop",
        "at",
        "amount",
    ]
    with pytest.raises(InvalidInputError, match="needs the columns amount; the rows have shop"):
        Aggregate(total, by="shop", output=OUT).columns_of(["shop"])


def test_what_it_makes_is_known_without_calling_it():
    rows = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
    aggregate = Aggregate(total, by="shop", output=OUT)
    assert aggregate.made_of(rows) == pa.schema([("shop", pa.string()), ("total", pa.int64()), ("rows", pa.int64())])
    assert aggregate.made_of(None) is None
    assert aggregate.kind == "Aggregate by (shop) in 64 buckets to (total int64, rows int64)"


def test_a_group_that_goes_on_in_the_next_batch_of_a_split_is_one_group():
    """Spark hands out a bucket in batches of some thousand rows: a group may begin in one and end in another."""
    rows = [{"shop": shop, "amount": amount} for shop, size in (("a", 3), ("b", 6)) for amount in range(size)]
    steps = list(Transform(Aggregate(total, by="shop", output=OUT)).steps(batches(rows, [2, 2, 2])))
    made = [row for step in steps if step.batch is not None for row in step.batch.to_pylist()]
    assert made == [{"shop": "a", "total": 3, "rows": 3}, {"shop": "b", "total": 15, "rows": 6}]
    assert sum(step.done for step in steps) == len(rows)


def test_an_async_function_is_refused():
    async def later(amount):
        return {"total": 0, "rows": len(amount)}

    class Later:
        async def __call__(self, amount):
            return {"total": 0, "rows": len(amount)}

    for function in (later, Later, Later()):
        with pytest.raises(InvalidInputError, match="the function is async"):
            Aggregate(function, by="shop", output=OUT)


def test_a_column_that_is_not_there_is_named_before_anything_is_read():
    with pytest.raises(InvalidInputError, match="needs the columns Shop; the rows have shop, amount"):
        Aggregate(total, by="Shop", output=OUT).made_of(pa.schema([("shop", pa.string()), ("amount", pa.int64())]))
