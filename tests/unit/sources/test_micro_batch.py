"""The place of a stream that a table keeps: what is stored of it, and what is read into it."""

from __future__ import annotations

import msgspec
import pytest

from airflow_ckpt_provider.exceptions import BindingMismatchError, CorruptObjectError, InputChangedError
from airflow_ckpt_provider.sources.micro_batch import MicroBatch

#: As tables hold it: a change breaks streams that are under way.
FIRST = b'{"batch":3,"query":"q1"}'
SECOND = b'{"batch":0,"earlier":["q1"],"query":"q2"}'


def stored(watermark):
    return msgspec.json.encode(watermark, order="deterministic")


def test_the_stored_place_of_a_stream_stays_as_it_is():
    first = MicroBatch("orders", "q1", 3).increment(None).end
    second = MicroBatch("orders", "q2", 0, new_query=True).increment(first).end
    assert (stored(first), stored(second)) == (FIRST, SECOND)


def test_a_batch_has_landed_if_the_table_has_come_to_its_number():
    place = msgspec.json.decode(FIRST)
    assert [MicroBatch("orders", "q1", number).has_landed(place) for number in (3, 4)] == [True, False]
    assert not MicroBatch("orders", "q1", 0).has_landed(None)


@pytest.mark.parametrize(
    ("batch", "place", "error"),
    [
        (MicroBatch("orders", "q1", 2), FIRST, InputChangedError),
        (MicroBatch("orders", "q2", 0), FIRST, BindingMismatchError),
        (MicroBatch("orders", "q1", 4, new_query=True), SECOND, BindingMismatchError),
        (MicroBatch("orders", "q1", 4), b'{"batch":"three","query":"q1"}', CorruptObjectError),
        (MicroBatch("orders", "q1", 4), b'{"snapshot_id":7}', CorruptObjectError),
    ],
)
def test_what_cannot_be_told_is_refused(batch, place, error):
    with pytest.raises(error):
        batch.has_landed(msgspec.json.decode(place))
