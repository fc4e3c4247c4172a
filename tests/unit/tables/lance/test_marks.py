"""How far a task has read a growing source, as a Lance dataset keeps it: with the rows, through everything that others do."""

from __future__ import annotations

import ast
import re
from datetime import timedelta

import lance
import pytest
from support.foreign import rows
from support.growing import grow, growing_table, request, run
from support.lance_world import FOREIGN, LanceWorld, expected

from airflow_ckpt_provider.exceptions import CorruptObjectError, HistoryExpiredError
from airflow_ckpt_provider.tables.lance.watermarks import BEGUN_PREFIX
from airflow_ckpt_provider.tables.watermarks import WATERMARK_PREFIX


@pytest.fixture
def source(tmp_path):
    return growing_table(tmp_path / "source")


@pytest.fixture
def world(tmp_path, source):
    """A dataset whose fields are not numbered in a row, because one was dropped."""
    world = LanceWorld(tmp_path / "target")
    there = rows(FOREIGN, 5)
    lance.write_dataset(there.add_column(1, "dropped", there["id"]), world.uri)
    world.dataset.drop_columns(["dropped"])
    return world


def marks(world):
    return {name: text for name, text in (world.dataset.schema_metadata or {}).items() if name.startswith(WATERMARK_PREFIX)}


def own(world):
    """Ids that the task has written."""
    world.dataset.validate()
    return [n for n in world.ids() if n < FOREIGN]


def test_the_mark_comes_with_the_rows_in_one_version_and_its_note_once_before(world, source):
    before = world.dataset.version
    run(world, source, "first")
    assert world.dataset.version == before + 2
    assert not any(name.startswith(WATERMARK_PREFIX) for name in world.dataset.checkout_version(before + 1).schema_metadata or {})
    assert len(marks(world)) == 1
    (noted,) = (name for name in world.dataset.metadata if name.startswith(BEGUN_PREFIX))
    grow(source, range(2, 4))
    run(world, source, "second")
    assert world.dataset.version == before + 3
    assert len(marks(world)) == 1
    assert [name for name in world.dataset.metadata if name.startswith(BEGUN_PREFIX)] == [noted]


def test_fields_keep_their_numbers(world, source):
    numbers = [(field.name(), field.id()) for field in world.dataset.lance_schema.fields()]
    highest = world.dataset.max_field_id
    world.dataset.create_scalar_index("id", "BTREE")
    run(world, source, "first")
    world.dataset.add_columns({"later": "id * 3"})
    found = [(field.name(), field.id()) for field in world.dataset.lance_schema.fields()]
    assert found == [*numbers, ("later", highest + 1)]
    assert [index.name for index in world.dataset.describe_indices()] == ["id_idx"]
    assert world.dataset.to_table(filter="id = 1", columns=["id", "later"]).to_pylist() == [{"id": 1, "later": 3}]
    world.dataset.drop_columns(["later"])
    assert world.table_rows() == expected(0, 1, *range(FOREIGN, FOREIGN + 5))


def test_what_is_restored_to_a_version_before_counts_as_not_read(world, source):
    run(world, source, "first")
    there = world.dataset.version
    grow(source, range(2, 4))
    run(world, source, "second")
    lance.dataset(world.uri, version=there).restore()
    run(world, source, "third")
    assert own(world) == [0, 1, 2, 3]
    lance.dataset(world.uri, version=there - 2).restore()
    run(world, source, "from the beginning")
    assert own(world) == [0, 1, 2, 3]


@pytest.mark.parametrize("cleaned", [False, True], ids=["", "cleaned up"])
def test_after_an_overwrite_by_others_nothing_is_read_again_in_silence(world, source, cleaned):
    run(world, source, "first")
    lance.write_dataset(world.dataset.to_table().replace_schema_metadata(None), world.uri, mode="overwrite")
    if cleaned:
        world.dataset.cleanup_old_versions(older_than=timedelta(0))
    grow(source, range(2, 4))
    with pytest.raises(HistoryExpiredError, match="another task_id") as refused:
        world.stage(request(world, source, "second"))
    if cleaned:
        return
    # What it says to do is what helps.
    name, text = re.search(r"update_schema_metadata\(\{'(.+?)': '(.+?)'\}\)", str(refused.value)).groups()
    world.dataset.update_schema_metadata({name: text})
    run(world, source, "second")
    assert own(world) == [0, 1, 2, 3]


def test_rows_that_others_overwrite_with_their_marks_stay_read(world, source):
    """Whoever reads a dataset as a table and writes it back takes the mark along."""
    run(world, source, "first")
    lance.write_dataset(world.dataset.to_table(), world.uri, mode="overwrite")
    grow(source, range(2, 4))
    run(world, source, "second")
    assert own(world) == [0, 1, 2, 3]


def test_a_first_commit_that_was_noted_and_never_landed_leaves_the_beginning(world, source, monkeypatch):
    attempt = world.stage(request(world, source, "first"))
    commit = lance.LanceDataset.commit

    def fails_after_the_note(dataset, transaction, **settings):
        if isinstance(transaction.operation, lance.LanceOperation.UpdateConfig):
            commit(dataset, transaction, **settings)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lance.LanceDataset, "commit", staticmethod(fails_after_the_note))
        with pytest.raises(KeyboardInterrupt):
            world.commit(attempt)
    assert any(name.startswith(BEGUN_PREFIX) for name in world.dataset.metadata)
    grow(source, range(2, 4))
    run(world, source, "second")
    assert own(world) == [0, 1, 2, 3]


def test_whether_a_noted_commit_landed_must_be_there_to_be_seen(world, source, monkeypatch):
    test_a_first_commit_that_was_noted_and_never_landed_leaves_the_beginning(world, source, monkeypatch)
    world.dataset.update_schema_metadata(dict.fromkeys(marks(world)))
    world.foreign_append()
    world.dataset.cleanup_old_versions(older_than=timedelta(0))
    with pytest.raises(HistoryExpiredError, match=r"Nothing was changed\. .* another task_id"):
        world.stage(request(world, source, "third"))


def test_a_commit_that_landed_while_the_note_was_written_is_found(world, source, monkeypatch):
    """The note moves the dataset on: what came in between has to be looked at."""
    attempt = world.stage(request(world, source, "first"))
    commit = lance.LanceDataset.commit

    def slow(dataset, transaction, **settings):
        if isinstance(transaction.operation, lance.LanceOperation.UpdateConfig):
            monkeypatch.undo()
            world.commit(attempt)
        return commit(dataset, transaction, **settings)

    monkeypatch.setattr(lance.LanceDataset, "commit", staticmethod(slow))
    (settled,) = world.commit(attempt)
    assert not settled.landed_now
    assert own(world) == [0, 1]


def test_a_mark_that_somebody_edited_is_named(world, source):
    run(world, source, "first")
    (name,) = marks(world)
    world.dataset.update_schema_metadata({name: "edited"})
    with pytest.raises(CorruptObjectError, match=name):
        world.stage(request(world, source, "second"))


def test_a_mark_that_came_with_a_schema_from_another_dataset_is_not_believed(world, source, tmp_path):
    run(world, source, "first")
    other = LanceWorld(tmp_path / "other")
    lance.write_dataset(world.dataset.schema.empty_table(), other.uri)
    (name,) = marks(other)
    with pytest.raises(CorruptObjectError, match="was copied from another dataset") as refused:
        other.stage(request(other, source, "first"))
    (said,) = re.findall(r"update_schema_metadata\((\{.+?\})\)", str(refused.value))
    other.dataset.update_schema_metadata(ast.literal_eval(said))
    run(other, source, "first")
    assert own(other) == [0, 1]
    assert name in marks(other)


def test_a_dataset_that_is_created_from_another_takes_no_mark_of_it(world, source, tmp_path):
    from airflow_ckpt_provider.sources import LanceDataset

    run(world, source, "first")
    copy = LanceWorld(tmp_path / "copy")
    copy.commit(copy.stage(copy.request(mode="create", source=LanceDataset(world.uri))))
    assert marks(world)
    assert not marks(copy)
