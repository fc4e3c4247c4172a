"""The harness itself: a run costs a fork and its own work, and a world that is put back is the one that was made."""

from __future__ import annotations

import pytest
from protocol.crash.lance_scenarios import GROWING, STABLE
from protocol.crash.scenarios import CREATE, UNPARTITIONED, UPSERT
from protocol.crash.worlds import Prepared

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("forked_from", "scenario"),
    [("runs", CREATE), ("runs", UPSERT), ("lance_runs", STABLE), ("lance_runs", GROWING)],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_run_imports_nothing_that_the_process_it_is_forked_from_has_not(request, tmp_path, forked_from, scenario):
    runs, world = request.getfixturevalue(forked_from), scenario.world(tmp_path / "world")
    for do in ("write", "clean"):
        run = runs.forked(world, *scenario.writes, do=do)
        assert run.error is None
        assert run.imported == []


def test_a_world_that_is_put_back_has_nothing_of_what_happened_in_it(runs, tmp_path):
    worlds = Prepared(tmp_path / "world", UNPARTITIONED.world)
    for _ in range(2):
        world = worlds.again()
        assert (world.ids(), list(world.store.names("")), world.files_on_disk()) == ([], [], set())
        assert runs.run(world).result[0]["landed_now"]
        assert world.ids() == UNPARTITIONED.ids
        assert list(world.store.names(""))
