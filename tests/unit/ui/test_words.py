"""How numbers and times read, and where the bars of attempts stand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_ckpt_provider.overview.facts import AttemptFacts, SplitFacts, SplitState
from airflow_ckpt_provider.ui import words
from airflow_ckpt_provider.ui.grid import legend, letters
from airflow_ckpt_provider.ui.timeline import bars

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "reads"),
    [
        (0, "0 s"),
        (0.04, "0 s"),
        (0.26, "0.3 s"),
        (3, "3 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3_600, "1 h"),
        (3_725, "1 h 2 min"),
        (90_000, "1 d 1 h"),
        (-5, "0 s"),
    ],
)
def test_a_time_span_reads_by_its_two_largest_units(seconds, reads):
    assert words.duration(seconds) == reads


@pytest.mark.parametrize(
    ("number", "reads"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (5 * 1024**3, "5.0 GiB"), (2**70, "1048576.0 PiB"), (None, words.UNKNOWN)],
)
def test_bytes_read_as_a_person_says_them(number, reads):
    assert words.size(number) == reads


def test_an_age_says_how_long_ago_something_was_even_by_a_clock_that_is_ahead():
    now = datetime.now(UTC)
    spans = {2: "just now", 42: "42 s ago", 200: "3 min ago", 7_300: "2 h ago", 200_000: "2 d ago", -60: "just now"}
    assert {seconds: words.age(now - timedelta(seconds=seconds)) for seconds in spans} == spans
    assert words.age(None) == words.UNKNOWN


def test_a_link_leaves_out_what_is_not_said_and_encodes_the_rest():
    assert words.query(key="a/b&c=<d>", conn_id="", generation=None, page=2) == "key=a%2Fb%26c%3D%3Cd%3E&page=2"


def attempt(number, begun, ended=None):
    return AttemptFacts(
        number=number, started_at=START + timedelta(seconds=begun), try_number=number, host="h", pid=1, engine="e", dag_id="d",
        task_id="t", run_id="r", map_index=-1, staged=1,
        last_staged_at=None if ended is None else START + timedelta(seconds=ended),
    )  # fmt: skip


def test_bars_stand_on_one_axis_and_none_leaves_it():
    first, second, third = bars([attempt(1, 0, 40), attempt(2, 50, 100), attempt(3, 100)], running=False)
    assert (first.start, first.width, first.seconds) == (0, 400, 40)
    assert (second.start, second.width, second.seconds) == (500, 500, 50)
    # It has staged nothing, and is seen all the same.
    assert third.seconds == 0
    assert third.width > 0
    assert third.start + third.width <= 1000
    assert not any(bar.open for bar in (first, second, third))


def test_the_bar_of_a_running_attempt_ends_now():
    begun = datetime.now(UTC) - timedelta(seconds=100)
    (bar,) = bars([attempt(1, (begun - START).total_seconds())], running=True)
    assert bar.open
    assert bar.seconds == pytest.approx(100, abs=5)
    assert bars([], running=True) == []


def test_splits_are_a_letter_each_and_the_legend_counts_every_state():
    splits = [SplitFacts(id=f"s{n}", state=state, input_bytes=1) for n, state in enumerate([*SplitState, SplitState.MISSING])]
    assert letters(splits) == "rwbmm"
    assert [(entry.state.value, entry.number) for entry in legend(splits)] == [
        ("recovered", 1),
        ("written", 1),
        ("begun", 1),
        ("missing", 2),
    ]
