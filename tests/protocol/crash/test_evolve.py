"""Writes before which the table grows, stopped at every effect: it grows once, and the rows land once."""

from __future__ import annotations

import signal

import pytest
from protocol.crash.lance_once import assert_only_own_files_are_left_over
from protocol.crash.lance_scenarios import APPEND
from protocol.crash.points import Points
from protocol.crash.scenarios import UNPARTITIONED
from protocol.crash.thinned import some
from protocol.crash.worlds import Prepared

pytestmark = pytest.mark.crash

WRITE = {"wider": True, "evolve_schema": True}


class Iceberg:
    scenario = UNPARTITIONED
    evolution = "commit of the table"

    @staticmethod
    def rows(world):
        return world.table().scan().to_arrow().to_pylist()

    @staticmethod
    def growths(world):
        return len(world.table().metadata.schemas) - 1


class Lance:
    scenario = APPEND
    evolution = "evolution of the table"

    @staticmethod
    def rows(world):
        world.dataset.validate()
        assert_only_own_files_are_left_over(world)
        return world.table_rows()

    @staticmethod
    def growths(world):
        """Versions that are neither the first nor a checkpoint's."""
        return len(world.versions()) - len(world.own_versions()) - 1


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def kind(request):
    return request.param


@pytest.fixture
def start(request, kind):
    """Runs in processes that have the format's library imported."""
    return request.getfixturevalue("runs" if kind is Iceberg else "lance_runs")


def assert_grown_once(kind, world):
    found = kind.rows(world)
    assert sorted(row["id"] for row in found) == sorted(kind.scenario.ids)
    mine = range(kind.scenario.files * kind.scenario.rows_each)
    assert [row["extra"] for row in found] == ["new" if row["id"] in mine else None for row in found]
    assert kind.growths(world) == 1


@pytest.fixture
def points(kind, start, tmp_path):
    world = kind.scenario.world(tmp_path / "world")
    found = Points(start, world, WRITE)
    assert [one["landed_now"] for one in found.run.result] == [True]
    assert_grown_once(kind, world)
    assert f"before {kind.evolution}" in found.run.effects
    return found


def test_killed_at_any_effect_and_run_again(kind, start, points):
    for point in points:
        world = points.again(point)
        assert start.run(world, WRITE).result, point
        assert_grown_once(kind, world)


def test_suspended_at_any_effect_while_another_attempt_does_it_all(kind, start, points, tmp_path):
    worlds = Prepared(tmp_path / "suspended", kind.scenario.world)
    for number, name in some(points.run.stops, kind.__name__):
        world = worlds.again()
        zombie = start.run(world, WRITE, fatal=number, how=signal.SIGSTOP)
        assert zombie.suspended, name
        assert start.run(world, WRITE).result, name
        start.resume(zombie)
        assert zombie.error is None, name
        assert_grown_once(kind, world)
