"""Eight processes at the same moment, on every catalog: the catalog's own compare-and-swap decides.

More of them, with crashes and foreign writers, on SQLite: in ``protocol/races``.
"""

from __future__ import annotations

from contract.catalog.landed import assert_landed
from contract.catalog.modes import rows
from protocol.crash.exactly_once import own_snapshots
from support.readers import assert_same_everywhere

RACERS = 8


def key_of(number):
    return f"key-{number}"


def landing(number):
    return ("land", [{"key": key_of(number)}])


def test_eight_processes_that_commit_one_key_land_one_snapshot_and_all_report_it(world, mode, runs):
    mode.stage(world, key_of(0))
    found = runs.together(*[(world, *landing(0))] * RACERS)
    outcomes = [run.result[0] for run in found]
    assert {one["snapshot_id"] for one in outcomes} == {world.table().current_snapshot().snapshot_id}
    assert [one["landed_now"] for one in outcomes].count(True) == 1
    assert_landed(world, mode, key_of(0))


def test_eight_processes_that_commit_eight_keys_land_one_snapshot_each(world, mode, runs):
    written = {}
    for number in range(RACERS):
        mode.stage(world, key_of(number), number * 4, 4)
        written[key_of(number)] = rows(number * 4, 4)
    found = runs.together(*[(world, *landing(number)) for number in range(RACERS)])
    landed = [run.result[0] for run in found if run.error not in mode.loses]
    assert landed
    assert all(one["landed_now"] for one in landed)
    if not mode.loses:
        assert len(landed) == RACERS
    own = own_snapshots(world)
    assert {snapshot.snapshot_id for snapshot in own} == {one["snapshot_id"] for one in landed}
    # The table is what it would be had they come one after the other.
    place = {snapshot.snapshot_id: snapshot.sequence_number for snapshot in own}
    landed.sort(key=lambda one: place[one["snapshot_id"]])
    assert_same_everywhere(world.table(), mode.expected(*(written[one["key"]] for one in landed)))
