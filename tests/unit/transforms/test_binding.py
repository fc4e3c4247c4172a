"""What two tries of one write do when the code between them changed."""

from __future__ import annotations

import operator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.world import World

from airflow_ckpt_provider.exceptions import BindingMismatchError, InvalidInputError
from airflow_ckpt_provider.sources.transform import Transform

LEAST = 0


class Scale:
    """A callable object with an ordinary attribute."""

    def __init__(self, factor, handle=None):
        self.factor = factor
        self.handle = handle

    def __call__(self, batch):
        return batch.set_column(1, "value", pc.multiply(batch["value"], float(self.factor)))


def enough(batch):
    return batch.filter(pc.greater_equal(batch["id"], LEAST))


class Pick:
    def __init__(self, get):
        self.get = get

    def __call__(self, batch):
        return pa.Table.from_batches([self.get([batch, batch.slice(0, 1)])])


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files()
    return world


def refused(world, function):
    with pytest.raises(BindingMismatchError, match="with other code"):
        world.stage(world.request(transform=function))
    assert world.table().snapshots() == []


def test_splits_of_two_transforms_never_land_together(world, monkeypatch):
    world.stage(world.request(transform=Scale(2)), splits=2)
    refused(world, Scale(3))
    world.commit(world.stage(world.request(transform=Scale(2))))
    assert world.ids() == list(range(400))


def test_an_itemgetter_of_another_item_is_another_transform(world):
    world.stage(world.request(transform=Pick(operator.itemgetter(0))), splits=2)
    refused(world, Pick(operator.itemgetter(1)))


def test_a_constant_of_the_module_that_changed_is_another_transform(world, monkeypatch):
    world.stage(world.request(transform=enough), splits=2)
    monkeypatch.setattr(f"{__name__}.LEAST", 200)
    refused(world, enough)


def test_what_has_no_stable_form_is_refused_before_anything_is_written(world, tmp_path):
    with (tmp_path / "log").open("w") as handle, pytest.raises(InvalidInputError, match=r"Scale → handle is a .*transform_version"):
        world.stage(world.request(transform=Scale(2, handle)))
    assert list((tmp_path / "store").rglob("*.json")) == []


def test_a_version_stands_for_the_code_and_another_one_is_another_write(world, tmp_path):
    with (tmp_path / "log").open("w") as handle:
        world.stage(world.request(transform=Scale(2, handle), transform_version="1"), splits=2)
        with pytest.raises(BindingMismatchError, match="transform_version: was '1', is now '2'"):
            world.stage(world.request(transform=Scale(2, handle), transform_version="2"))
        with pytest.raises(BindingMismatchError, match="transform_version: was '1', is now None"):
            world.stage(world.request(transform=Scale(2)))
        attempt = world.stage(world.request(transform=Scale(2), transform_version="1"))
    assert attempt.checkpoint.header.transform_version == "1"
    assert attempt.checkpoint.header.transform_fingerprint == ""
    world.commit(attempt)
    assert world.ids() == list(range(400))


def test_a_transform_that_runs_before_it_is_bound_is_bound_as_it_was_before(tmp_path):
    """Making a table runs the transform in the task; what it remembers of that makes no difference to a retry."""
    seen = []

    def clean(batch):
        known = seen
        known.append(batch.num_rows)
        return batch

    world = World(tmp_path)
    world.catalog.create_namespace("shop")
    world.put_files()
    world.stage(world.request(transform=clean, mode="create"), splits=2)
    assert seen
    seen.clear()
    world.commit(world.stage(world.request(transform=clean, mode="create")))
    assert world.ids() == list(range(400))


def test_a_fingerprint_is_a_digest_and_says_nothing_of_what_it_covers():
    assert len(Transform(Scale("secret")).fingerprint) == 64
