"""When staged files are looked at: all that a clean-up, however hasty, could have taken, and no other (I5)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from support.world import World

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Seal, Staged, to_json
from airflow_ckpt_provider.exceptions import StagedFileMissingError
from airflow_ckpt_provider.tables.presence import TRUSTED

SPLITS = ["000000", "000001", "000002", "000003"]


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files(4, 10)
    return world


def aged(checkpoint, name, kind, field, by):
    """The stored document as it would be if it had been written so long ago."""
    document = checkpoint.store.read(name, kind)
    path = Path(checkpoint.store.uri.removeprefix("file://")) / name
    path.write_bytes(to_json(name, msgspec.structs.replace(document, **{field: now() - by})))


def seal_aged(checkpoint, by):
    aged(checkpoint, checkpoint.paths.seal(), Seal, "sealed_at", by)


def lose_a_data_file(checkpoint, split="000001"):
    lost = checkpoint.staged([split])[0].files[0].path
    Path(lost.removeprefix("file://")).unlink()
    return lost


def test_a_commit_long_after_the_seal_looks_at_every_file(world):
    attempt = world.stage()
    seal_aged(attempt.checkpoint, TRUSTED)
    lost = lose_a_data_file(attempt.checkpoint)
    with pytest.raises(
        StagedFileMissingError, match=f"1 of 8 staged files of shop.orders are gone or damaged, for instance {lost}"
    ):
        world.commit(attempt)
    assert world.table().snapshots() == []


def test_a_seal_from_a_clock_that_is_ahead_proves_nothing(world):
    attempt = world.stage()
    seal_aged(attempt.checkpoint, -timedelta(hours=1))
    lose_a_data_file(attempt.checkpoint)
    with pytest.raises(StagedFileMissingError):
        world.commit(attempt)


def test_a_commit_that_was_begun_long_after_the_seal_and_killed_looks_again(world):
    attempt = world.stage()
    checkpoint = attempt.checkpoint
    seal_aged(checkpoint, TRUSTED)
    lost = Path(lose_a_data_file(checkpoint).removeprefix("file://"))
    for _ in range(2):
        with pytest.raises(StagedFileMissingError):
            world.commit(attempt)
    assert checkpoint.group() is not None
    assert not lost.exists()


def test_the_list_of_files_is_looked_at_in_every_commit(world):
    attempt = world.stage()
    manifest = attempt.checkpoint.sealed().manifests[2]["path"]
    Path(manifest.removeprefix("file://")).unlink()
    with pytest.raises(StagedFileMissingError, match=f"1 of 4 staged files .* for instance {manifest}"):
        world.commit(attempt)
    assert world.table().snapshots() == []


def test_a_commit_right_after_the_seal_opens_no_record_of_a_split(world):
    attempt = world.stage()
    for split in SPLITS:
        (Path(attempt.checkpoint.store.uri.removeprefix("file://")) / attempt.checkpoint.paths.staged(split)).unlink()
    world.commit(attempt)
    assert world.ids() == list(range(40))


def test_what_an_earlier_attempt_staged_is_looked_at_before_the_seal(world):
    checkpoint = world.stage(splits=2).checkpoint
    early = sorted(checkpoint.staged_ids())
    for split in early:
        aged(checkpoint, checkpoint.paths.staged(split), Staged, "published_at", TRUSTED)
    lost = lose_a_data_file(checkpoint, early[0])
    with pytest.raises(StagedFileMissingError, match=f"1 of 2 staged files .* for instance {lost}"):
        world.stage()
    assert checkpoint.sealed() is None
