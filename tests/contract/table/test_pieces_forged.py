"""Pieces that a hand has altered in the store: no row lands twice or is left out, and no file of others is removed (I15)."""

from __future__ import annotations

import msgspec
import pytest
from contract.table.both import Iceberg
from contract.table.test_pieces import UPSERT, Function, Killed, asked, die, modal, one_split, world
from support.forging import forge

from airflow_ckpt_provider.checkpoint.documents import Piece
from airflow_ckpt_provider.checkpoint.pieces import input_id
from airflow_ckpt_provider.exceptions import CorruptObjectError

__all__ = ["modal", "world"]


def piece(world, number, key="orders"):
    """The store, the name of a piece of the only split, and the piece."""
    checkpoint = world.attempt(asked(world, Function())).checkpoint
    name = checkpoint.paths.piece(input_id(checkpoint.plan().splits[0]), number)
    return checkpoint.store, name, checkpoint.store.read(name, Piece)


def test_a_piece_that_names_the_file_of_another_piece_is_refused(world):
    """Its rows would land twice, in the place of others, and every count would agree."""
    die(world, at=65)
    _, _, first = piece(world, 0)
    store, name, second = piece(world, 1)
    forge(store, name, second, writer=first.writer, files=first.files, manifest=first.manifest, intermediate=first.intermediate)
    before = world.read()
    with pytest.raises(CorruptObjectError, match="names the same file"):
        world.stage(asked(world, Function()))
    assert world.read() == before


def test_a_piece_that_names_one_file_twice_is_refused(world):
    die(world, at=65)
    store, name, second = piece(world, 1)
    forge(store, name, second, files=second.files * 2, rows=second.rows * 2)
    with pytest.raises(CorruptObjectError, match="names the same file"):
        world.stage(asked(world, Function()))


@pytest.mark.parametrize("changes", [{}, UPSERT], ids=["append", "upsert"])
def test_a_piece_whose_manifest_is_of_the_table_is_refused_before_it_is_removed(tmp_path, changes):
    world = one_split(Iceberg, tmp_path)
    world.make()
    die(world, at=65, **changes)
    checkpoint = world.attempt(asked(world, Function(), **changes)).checkpoint
    name = checkpoint.paths.piece(input_id(checkpoint.plan().splits[0]), 1)
    second = checkpoint.store.read(name, Piece)
    (manifest,) = world.table().current_snapshot().manifests(world.table().io)
    of_table = {"path": manifest.manifest_path, "bytes": manifest.manifest_length}
    forge(checkpoint.store, name, second, manifest=(second.manifest or {}) | of_table)
    with pytest.raises(CorruptObjectError):
        world.stage(asked(world, Function(), **changes))
    assert len(world.read()) == 5


@pytest.mark.parametrize("number", [0, 1])
def test_a_piece_that_is_no_document_is_an_error_that_names_it(world, number):
    die(world, at=65)
    _, name, _ = piece(world, number)
    (path,) = world.root.glob(f"store/{name}")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CorruptObjectError, match=rf"pieces/000000\.[0-9a-f]+\.{number}\.json"):
        world.stage(asked(world, Function()))


def test_a_piece_that_another_task_finds_and_that_was_altered_is_refused(world):
    """Not only the driver reads pieces."""
    slow = world.attempt(asked(world, Function(at=95)))
    (split,) = slow.next_round().missing
    work = slow.begin("test", 1)
    die(world, at=65)
    _, _, first = piece(world, 0)
    store, name, second = piece(world, 1)
    forge(store, name, second, writer=first.writer, files=first.files, manifest=first.manifest, intermediate=first.intermediate)
    with pytest.raises(CorruptObjectError, match="names the same file"):
        work.run(split, "0")


def test_rows_of_a_piece_that_were_miscounted_do_not_land(world):
    die(world, at=65)
    store, name, second = piece(world, 1)
    forge(store, name, second, rows=second.rows - 1)
    with pytest.raises(Exception, match=r"rows") as caught:
        world.stage(asked(world, Function()))
    assert not isinstance(caught.value, Killed)
    assert msgspec.structs.asdict(second)["rows"] == 30
