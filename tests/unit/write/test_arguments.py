"""What a user may say of when pieces are saved."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.write.arguments import require_save_every
from airflow_ckpt_provider.write.pieces import SaveEvery


def test_buckets_are_sorted_to_be_saved_only_if_somebody_says_how_often():
    assert require_save_every(None) == SaveEvery(rows=None, seconds=30.0, buckets=False)
    assert require_save_every(500) == SaveEvery(rows=500, seconds=None, buckets=True)
    assert require_save_every(timedelta(minutes=2)) == SaveEvery(rows=None, seconds=120.0, buckets=True)


@pytest.mark.parametrize("value", [0, -1, True, "30s", 1.5, timedelta(0)])
def test_what_is_no_number_of_rows_and_no_time_is_refused(value):
    with pytest.raises(InvalidInputError, match="neither a number of input rows"):
        require_save_every(value)
