"""Eight processes that commit at the same moment: one key lands in one version, eight keys in eight.

``ROUNDS`` says how often each race is run; the one round of an ordinary run would not find what happens once in a hundred.
"""

from __future__ import annotations

import os

import pyarrow.parquet as pq
import pytest
from protocol.crash.run_to import growing
from support.columns import computed, stage_columns
from support.foreign import rows as foreign_rows
from support.growing import request
from support.lance_racers import START, SWAP, Racers
from support.lance_world import LanceWorld, expected
from support.world import rows

from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.sources import Files
from airflow_ckpt_provider.write import groups

pytestmark = pytest.mark.crash

RACERS = 8

#: Of each race; ``dev.py matrix`` runs many.
ROUNDS = int(os.environ.get("ROUNDS", "1"))

IDS = list(range(6))


@pytest.fixture(scope="module")
def racers():
    started = Racers(RACERS)
    yield started
    started.close()


@pytest.fixture(params=["local", "s3"])
def worlds(request, tmp_path):
    """A new world for each round; the dataset in a folder, or in the fake S3."""
    bucket = request.getfixturevalue("s3_bucket") if request.param == "s3" else None

    def all_of_them():
        for number in range(ROUNDS):
            root = tmp_path / str(number)
            if bucket is None:
                yield LanceWorld(root)
            else:
                yield LanceWorld(root, bucket.uri(f"{number}/orders.lance"), bucket.options)

    return all_of_them()


class Write:
    """A mode, and what is in the dataset before and after it."""

    def __init__(self, mode, before=5, *, kept=True, **settings):
        self.mode, self.before, self.kept, self.settings = mode, before, kept, settings

    def prepare(self, world):
        """Everything up to the commit; the checkpoint, and the ids that have to be there after it."""
        there = world.create_dataset(count=self.before, **self.settings) if self.before is not None else []
        world.put_files(2, 3)
        return world.stage(world.request(mode=self.mode)).checkpoint, IDS + (there if self.kept else [])

    def check(self, world):
        """What has to hold of the dataset besides its rows."""


class WithoutRows(Write):
    """The dataset comes into being with columns and no rows."""

    def prepare(self, world):
        world.put_files(1, 0)
        request = world.request(mode=self.mode, parameters={"storage_version": "2.1"})
        return world.stage(request).checkpoint, []


class Replace(Write):
    """The key is committed with other rows, among those of others, and staged anew."""

    def prepare(self, world):
        there = world.create_dataset()
        world.put_files(3, 3)
        world.commit(world.stage(world.request(mode=self.mode)))
        there = (there if self.kept else []) + world.foreign_append()
        (world.input / "2.parquet").unlink()
        attempt = world.stage(world.request(mode=self.mode, on_rerun="replace"))
        assert attempt.checkpoint.header.generation == 2
        return attempt.checkpoint, IDS + there


class ReplaceUpsert(Write):
    """An upsert is committed, and staged anew with other rows: one of what it inserted goes, and one of what it updated stays."""

    def prepare(self, world):
        world.create_dataset(start=3, count=4)
        world.put_files(3, 2)
        upsert = {"mode": "upsert", "parameters": {"upsert_keys": ["id"]}}
        world.commit(world.stage(world.request(**upsert)))
        there = world.foreign_append()
        (world.input / "0.parquet").unlink()
        (world.input / "2.parquet").unlink()
        return world.stage(world.request(**upsert, on_rerun="replace", on_change="restart")).checkpoint, [2, 3, 4, 5, 6, *there]


class ReplaceAlone(Write):
    """As above, and nobody else has rows: all fragments there are go."""

    def prepare(self, world):
        world.create_dataset(count=0)
        world.put_files(3, 3)
        world.commit(world.stage())
        (world.input / "2.parquet").unlink()
        return world.stage(world.request(on_rerun="replace")).checkpoint, IDS


class Upsert(Write):
    """Half of the keys are there; so is a row that stays."""

    def __init__(self, ids=(*IDS, 6), **parameters):
        super().__init__("upsert")
        self.ids, self.parameters = ids, {"upsert_keys": ["id"]} | parameters

    def prepare(self, world):
        world.create_dataset(start=3, count=4)
        world.put_files(2, 3)
        return world.stage(world.request(mode="upsert", parameters=self.parameters)).checkpoint, list(self.ids)


class UpsertThatKeepsIds(Write):
    """Every other key is there, in a dataset with stable row ids: staged files are split into what is there and what is new."""

    def prepare(self, world):
        world.create_dataset(start=3, count=5, enable_stable_row_ids=True, max_rows_per_file=2)
        world.dataset.delete("id % 2 = 0")
        world.put_files(2, 3)
        self.identities = world.identities()
        return world.stage(world.request(mode="upsert", parameters={"upsert_keys": ["id"]})).checkpoint, [*IDS, 7]

    def check(self, world):
        assert self.identities.items() <= world.identities().items()


WRITES = {
    "create": Write("create", before=None),
    "create without rows": WithoutRows("create"),
    "append": Write("append"),
    "append to a dataset without rows": Write("append", before=0),
    "append to a dataset with stable row ids": Write("append", enable_stable_row_ids=True),
    "overwrite": Write("overwrite", kept=False),
    "upsert": Upsert(),
    "upsert with stable row ids": UpsertThatKeepsIds("upsert"),
    "upsert that only inserts": Upsert(when_matched="ignore"),
    "upsert that only updates": Upsert(ids=(3, 4, 5, 6), when_not_matched="ignore"),
    "append that replaces": Replace("append"),
    "overwrite that replaces": Replace("overwrite", kept=False),
    "append that replaces all there is": ReplaceAlone("append"),
    "upsert that replaces": ReplaceUpsert("upsert"),
}


def member(checkpoint):
    return [checkpoint.key.value, checkpoint.header.generation]


@pytest.mark.parametrize("gate", [START, SWAP])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_eight_processes_that_commit_one_key_land_one_version_and_all_report_it(worlds, racers, write, gate):
    for world in worlds:
        checkpoint, ids = write.prepare(world)
        before = len(world.versions())
        found = [one for (one,) in racers.race(world, [{"do": "land", "keys": [member(checkpoint)]}] * RACERS, gate)]
        carriers = [version for version in world.versions() if version.group == bound_group(checkpoint).id]
        assert [version.number for version in carriers] == [before + 1], f"{len(carriers)} versions carry the key"
        assert {version for version, _ in found} == {before + 1}
        assert [landed_now for _, landed_now in found].count(True) == 1
        assert world.table_rows() == expected(*ids)
        world.dataset.validate()
        assert checkpoint.committed().commit_id == before + 1
        write.check(world)


def stage_keys(world, number):
    """So many keys of ten rows each, staged and sealed."""
    for n in range(number):
        folder = world.input / str(n)
        folder.mkdir()
        pq.write_table(rows(n * 10, 10), folder / "0.parquet")
        world.stage(world.request(f"key-{n}", source=Files(f"{folder}/*.parquet")))


@pytest.mark.parametrize("gate", [START, SWAP])
@pytest.mark.parametrize("again", [False, True], ids=["", "replacing them"])
def test_eight_processes_that_add_the_same_columns_add_them_once(worlds, racers, gate, again):
    for world in worlds:
        ids = world.create_dataset(count=9, max_rows_per_file=4)
        checkpoint = stage_columns(world, rows_per_split=2).checkpoint
        if again:
            groups.commit([checkpoint], world.as_table())
            checkpoint = stage_columns(world, rows_per_split=2, on_rerun="replace").checkpoint
        found = [one for (one,) in racers.race(world, [{"do": "land", "keys": [member(checkpoint)]}] * RACERS, gate)]
        landed = 3 if again else 2
        assert [version.number for version in world.own_versions()] == list(range(2, landed + 1))
        assert {version for version, _ in found} == {landed}
        assert [landed_now for _, landed_now in found].count(True) == 1
        assert computed(world) == world.ids() == ids


def stage_growing(world, key):
    """A run of the task that copies what an Iceberg table has got since its last commit."""
    return world.stage(request(world, growing(world), key)).checkpoint


@pytest.mark.parametrize("gate", [START, SWAP])
@pytest.mark.parametrize("runs", [1, RACERS], ids=["one run", "eight runs"])
def test_of_eight_processes_that_commit_the_first_of_a_growing_table_one_lands(worlds, racers, runs, gate):
    """The task is noted in the dataset, in a version of its own, before the first commit: what lands in between must be seen."""
    for world in worlds:
        there = world.create_dataset()
        source = growing(world)
        source.create_table().append(foreign_rows(0, 6))
        checkpoints = [stage_growing(world, f"run {n}") for n in range(runs)] * (RACERS // runs)
        jobs = [{"do": "land_unless_moved", "keys": [member(checkpoint)]} for checkpoint in checkpoints]
        found = [one for one in racers.race(world, jobs, gate) if one]
        assert len(found) == RACERS // runs
        assert [landed_now for ((_, landed_now),) in found].count(True) == 1
        assert {version for ((version, _),) in found} == {version.number for version in world.own_versions()}
        assert len(world.own_versions()) == 1
        assert world.table_rows() == expected(*range(6), *there)
        source.table().append(foreign_rows(6, 3))
        groups.commit([stage_growing(world, "later")], world.as_table())
        assert world.table_rows() == expected(*range(9), *there)
        world.dataset.validate()


@pytest.mark.parametrize("gate", [START, SWAP])
@pytest.mark.parametrize("before", [5, 0], ids=["beside rows", "without rows"])
def test_eight_processes_that_commit_eight_keys_all_land(worlds, racers, before, gate):
    for world in worlds:
        there = world.create_dataset(count=before)
        stage_keys(world, RACERS)
        found = racers.race(world, [{"do": "land", "keys": [[f"key-{n}", 1]]} for n in range(RACERS)], gate)
        assert [landed_now for ((_, landed_now),) in found] == [True] * RACERS
        assert sorted(version for ((version, _),) in found) == list(range(2, 2 + RACERS))
        own = world.own_versions()
        assert {version.key: version.number for version in own} == {f"key-{n}": one[0][0] for n, one in enumerate(found)}
        assert len(own) == RACERS == len(world.versions()) - 1
        assert world.table_rows() == expected(*range(10 * RACERS), *there)
        world.dataset.validate()


def test_processes_that_commit_overlapping_groups_land_each_key_once(worlds, racers):
    lists = [(0, 1), (1, 2), (0, 1, 2), (2, 3), (3,), (0, 3), (4, 0), (4,)]
    for world in worlds:
        there = world.create_dataset()
        stage_keys(world, 5)
        found = racers.race(world, [{"do": "land", "keys": [[f"key-{n}", 1] for n in numbers]} for numbers in lists])
        said = [
            (n, version) for numbers, one in zip(lists, found, strict=True) for n, (version, _) in zip(numbers, one, strict=True)
        ]
        assert len(set(said)) == 5, "a key is said to be in several versions"
        own = world.own_versions()
        assert {version.number for version in own} == {version for _, version in said}
        assert len({version.group for version in own}) == len(own) <= 5
        assert world.table_rows() == expected(*range(50), *there)
        world.dataset.validate()
