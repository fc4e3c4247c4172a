"""Keys are found by themselves, never by their hashes alone: here most hashes are the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ckpt_provider.tables.keys.index import KeyIndex
from airflow_ckpt_provider.tables.keys.values import canonical, equal, hashes

KEYS = st.lists(st.tuples(st.none() | st.integers(0, 5), st.none() | st.sampled_from(["", "a", "b"])), max_size=30)


def columns_of(keys):
    return [pa.array([key[0] for key in keys], pa.int64()), pa.array([key[1] for key in keys], pa.string())]


def colliding(columns, different: int):
    return hashes(columns) % np.uint64(different) << np.uint64(62)


@settings(deadline=None)
@given(known=KEYS, asked=KEYS, different=st.sampled_from([1, 2, 4]))
def test_keys_are_told_apart_where_their_hashes_are_the_same(known, asked, different):
    columns, others = columns_of(known), columns_of(asked)
    index = KeyIndex(columns, colliding(columns, different))
    found = index.find(others, colliding(others, different)).tolist()
    assert [position >= 0 for position in found] == [key in known for key in asked]
    assert all(known[position] == key for position, key in zip(found, asked, strict=True) if position >= 0)


@settings(deadline=None)
@given(known=KEYS, different=st.sampled_from([1, 2, 4]))
def test_only_keys_that_are_there_twice_are_duplicates(known, different):
    columns = columns_of(known)
    found = KeyIndex(columns, colliding(columns, different)).duplicates(3)
    again = {key: times for key, times in Counter(known).items() if times > 1}
    assert (found.keys if found else 0) == len(again)
    if found:
        assert len(found.positions) == min(3, len(again))
        assert all(again[known[position]] == times for position, times in zip(found.positions, found.times, strict=True))


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_nan_is_nan_and_minus_zero_is_zero(kind):
    other_nan = np.array([0x7FF8000000000001], np.int64).view(np.float64)[0]
    left = canonical(pa.array([np.nan, -0.0, None, 1.0], kind))
    right = canonical(pa.array([other_nan, 0.0, None, 1.5], kind))
    assert equal([left], [right]).tolist() == [True, True, True, False]
    assert (hashes([left]) == hashes([right])).tolist() == [True, True, True, False]


def test_hashes_of_a_slice_are_those_of_its_rows():
    for column in (
        pa.array(["a", None, "b", "c"]),
        pa.array([1, None, 2, 3], pa.decimal128(9, 2)),
        pa.array([True, None, False, True]),
    ):
        assert hashes([column])[1:].tolist() == hashes([column[1:]]).tolist()
        assert hashes([column])[2:].tolist() == hashes([pa.concat_arrays([column[2:]])]).tolist()
