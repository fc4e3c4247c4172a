"""What is recorded at the effects of one run is what a process leaves that is killed there."""

from __future__ import annotations

import re
import signal

import pytest
from protocol.crash import lance_scenarios
from protocol.crash.points import Points, State
from protocol.crash.scenarios import UNPARTITIONED
from protocol.crash.thinned import some
from support.lance_world import LanceWorld

pytestmark = pytest.mark.crash

#: Random ids in names, and what stands for the moment at which a generation was begun.
_RANDOM = re.compile(r"(?<=/)[\w-]{8}(?=\.[0-9a-f]{32}\.)|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{10,}")


def plain(name):
    return _RANDOM.sub("*", name)


CASES = {
    "iceberg": ("runs", UNPARTITIONED, False),
    "lance": ("lance_runs", lance_scenarios.APPEND, False),
    "lance upsert": ("lance_runs", lance_scenarios.UPSERT, False),
    "lance on s3": ("lance_runs", lance_scenarios.APPEND, True),
}


def shape(state):
    """Names without what is random in them, each as often as it is there."""
    return sorted(plain(name.partition("/world/")[2]) for name in [*state.files, *state.objects])


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_killed_at_any_effect_leaves_what_was_there_when_one_was_stopped_at_it(request, tmp_path, case):
    name, scenario, on_s3 = CASES[case]
    runs = request.getfixturevalue(name)
    bucket = request.getfixturevalue("s3_bucket") if on_s3 else None

    def world_in(folder):
        root = tmp_path / folder / "world"
        root.mkdir(parents=True)
        if bucket is not None:
            LanceWorld(root, bucket.uri(f"{folder}/world/orders.lance"), bucket.options, bucket.uri(f"{folder}/world/store"))
        return scenario.world(root)

    points = Points(runs, world_in("stopped"), *scenario.writes)
    assert points.run.result
    for point in some(points, case):
        for number in point.numbers:
            world = world_in(str(number))
            killed = runs.run(world, *scenario.writes, fatal=number)
            assert killed.signal == signal.SIGKILL
            assert list(map(plain, killed.effects)) == list(map(plain, points.run.effects[:number]))
            assert shape(State.of(world)) == shape(point.state), f"{number} {killed.effects[-1]}"


def test_a_world_is_put_back_as_it_was(runs, tmp_path):
    world = UNPARTITIONED.world(tmp_path / "world")
    points = Points(runs, world)
    assert world.ids() == UNPARTITIONED.ids
    for point in points:
        again = points.again(point)
        assert State.of(again) == point.state
        landed = "after commit of the table" in points.run.effects[: point.numbers[0]]
        assert again.ids() == (UNPARTITIONED.ids if landed else [])
