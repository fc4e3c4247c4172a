"""Ids of a bucket's rows: which are the same in another attempt, and what is given out again if they are not."""

from __future__ import annotations

import struct
from datetime import date
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from support.samples import SAMPLES

from airflow_ckpt_provider.write.ordered import IdDigest, OrderedRows, comparable

PIECE = SAMPLES["piece.json"]

NAN = struct.unpack("<d", struct.pack("<q", 0x7FF8000000000001))[0]


def digest_of(*columns, at_a_time=1000):
    table = pa.table({str(number): column for number, column in enumerate(columns)})
    digest = IdDigest(len(columns))
    for batch in table.to_batches(max_chunksize=at_a_time):
        digest.add([comparable(column) for column in batch.columns])
    return digest.hexdigest()


@pytest.mark.parametrize("at_a_time", [1, 2, 5])
def test_a_digest_does_not_depend_on_the_batches(at_a_time):
    columns = [pa.array([1, None, 3, 4, None]), pa.array(["a", "bc", None, "", "d"])]
    assert digest_of(*columns, at_a_time=at_a_time) == digest_of(*columns)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, None], pa.int8()), pa.array([1, None], pa.int64())),
        (pa.array([0.5, None], pa.float32()), pa.array([0.5, None], pa.float64())),
        (pa.array([0.0, float("nan")]), pa.array([-0.0, NAN])),
        (pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)), pa.array([Decimal("1.50"), None], pa.decimal128(38, 2))),
        (pa.array(["é", None]), pa.array(["é", None], pa.large_string())),
        (pa.array([b"a"]), pa.array([b"a"], pa.large_binary())),
        (pa.array([9, 1, 2]).slice(1), pa.array([1, 2])),
        (pa.array(["z", "a", None]).slice(1), pa.array(["a", None])),
    ],
)
def test_the_same_ids_have_the_same_digest_in_whatever_form_they_are(one, other):
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([pa.array([0])], [pa.array([None], pa.int64())]),
        ([pa.array([""])], [pa.array([None], pa.string())]),
        ([pa.array(["ab", "c"])], [pa.array(["a", "bc"])]),
        ([pa.array(["a", None])], [pa.array([None, "a"])]),
        ([pa.array([1, 2])], [pa.array([2, 1])]),
        ([pa.array(["a"]), pa.array(["b"])], [pa.array(["b"]), pa.array(["a"])]),
        ([pa.array(["ab"]), pa.array([""])], [pa.array(["a"]), pa.array(["b"])]),
        ([pa.array([1, 1])], [pa.array([1])]),
        ([pa.array([date(2026, 1, 1)])], [pa.array([date(2026, 1, 2)])]),
        ([pa.array([Decimal("1.5")])], [pa.array([Decimal("2.5")])]),
        ([pa.array([True])], [pa.array([False])]),
    ],
)
def test_other_ids_have_another_digest(one, other):
    assert digest_of(*one) != digest_of(*other)


def ordered(ids, at_a_time):
    return OrderedRows(pa.table({"id": ids}).to_batches(max_chunksize=at_a_time), ["id"])


def ids_in(batches):
    return [one for batch in batches for one in batch["id"].to_pylist()]


def piece(ids, *, last=False):
    """A piece of all of these rows."""
    return msgspec.structs.replace(PIECE, end=len(ids), last=last, ids=digest_of(pa.array(ids)))


@pytest.mark.parametrize("at_a_time", [1, 3, 4, 100])
@pytest.mark.parametrize("read", [0, 1, 2, 3])
@pytest.mark.parametrize("undone", [1, 2])
def test_rows_that_were_given_out_and_are_not_done_are_given_out_again_whether_others_are_left_out_or_not(at_a_time, read, undone):
    ids = [*range(20)]
    for done in (piece(ids[:9]), piece([*range(8), 99]), piece([0, 99]), piece(ids[:2])):
        with ordered(ids, at_a_time) as rows:
            taken = rows.read(0)
            # Of the last of these batches, nothing is done.
            passed = [next(taken).num_rows for _ in range(min(read, 9 // at_a_time))]
            row = sum(passed[:-undone])
            if row <= done.end:
                counts = rows.skip(row, done)
                assert counts is (done.ids == piece(ids[: done.end]).ids)
                assert ids_in(rows.read(done.end if counts else row)) == ids[done.end if counts else row :]


def test_a_piece_counts_only_where_rows_go_on_as_they_did():
    ids = [*range(9)]

    def counts(now, *, last=False):
        with ordered(now, 3) as rows:
            return rows.skip(0, piece(ids, last=last))

    assert counts(ids, last=True)
    assert counts(ids)
    assert not counts([*ids, 9], last=True)
    assert counts([*ids, 9])
    assert not counts([*ids, 8])
    assert not counts(ids[:-1])
    assert not counts([])


@pytest.mark.parametrize("at_a_time", [1, 2, 3, 100])
def test_a_piece_may_end_where_an_id_does(at_a_time):
    ids = [None, None, 1, 2, 2, 2, 3]
    rows = ordered(pa.array(ids, pa.int64()), at_a_time)
    ends, seen = [], 0
    for batch in rows.read(0):
        ends += [row for row in range(seen + 1, seen + batch.num_rows + 1) if rows.is_between_ids(row)]
        seen += batch.num_rows
    assert ends == [2, 3, 6, 7]
