"""Members of stored documents that have another shape than any task gives them: each ends in an error of ours (I7, I15).

The forger can write to the checkpoint store, and to nothing else. Members that a document's own type does not say are tried with
values of all kinds: what the header says of the table, what splits read, and what records say of their files.
"""

from __future__ import annotations

import random
import shutil

import msgspec
import pytest
from contract.table.both import UPSERT, Iceberg, Lance, marked
from support.forging import forge

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Header, Plan, Seal, Staged
from airflow_ckpt_provider.exceptions import CheckpointError, OutcomeUnknownError
from airflow_ckpt_provider.write import commit_loop, groups

KINDS = {"header": Header, "plan": Plan, "seal": Seal, "staged": Staged}

ODD = (None, -1, 7, 1.5, True, "x", [], ["x"], [7], [[None]], {}, {"a": 1})

#: Members of which a document's own type does not say what is in them, and those that name what is in the table.
FREE = {
    "base", "creation", "schema_id", "spec_id", "parameters", "source", "mode", "increment", "read", "manifest", "manifests",
    "intermediate",
}  # fmt: skip

WAYS = {
    "append": {"mode": "append"},
    "create": {"mode": "create"},
    "upsert": UPSERT | {"transform": marked},
}

#: Values of members that are tried of each document; those that were once found to end in another error are tried always.
TRIED = 3
ALWAYS = {
    ("table", "base", "columns"), ("table", "base", "columns", 1), ("table", "base", "version"), ("table", "creation", "schema"),
    ("mode", "source", "key_bytes"), ("mode", "source", "sizes"),
}  # fmt: skip


def places(value, path=()):
    """Where there is anything in a document; of a list, the first two."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list | tuple) else ()
    for name, one in inner:
        yield from places(one, (*path, name))


def with_other(value, path, other):
    """A document with another value at a place."""
    if not path:
        return other
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = with_other(changed[path[0]], path[1:], other)
    return changed


@pytest.fixture(params=[Iceberg, Lance], ids=["iceberg", "lance"])
def world(request, tmp_path):
    world = request.param(tmp_path / "world")
    world.put_files(2, 20)
    world.make(range(10, 30))
    return world


def commit(world, request, forged):
    groups.commit([Checkpoint.at(world.store, request.key, 1)], world.as_table())


def stage_what_is_missing(world, request, forged):
    """The seal and a split were lost before: they are staged again, by what the store says."""
    store = world.root / "store"
    for one in [*store.rglob("seal*"), *sorted(store.rglob("staged/*"))[-1:]]:
        if str(one.relative_to(store)) != forged:
            one.unlink()
    world.stage(request)


@pytest.mark.parametrize("way", WAYS)
def test_a_member_of_another_shape_is_an_error_of_ours_in_the_stage_and_in_the_commit(world, tmp_path, monkeypatch, way):
    monkeypatch.setattr(commit_loop, "PATIENCE_S", 0.0)
    if way == "create":
        world.drop()
    request = world.request(**WAYS[way])
    world.stage(request)
    root, kept = world.root, tmp_path / "kept"
    shutil.copytree(root, kept)
    numbers = random.Random(way)
    seen = set()
    for path in sorted(path for path in (kept / "store").rglob("*") if path.is_file()):
        name = str(path.relative_to(kept / "store"))
        kind = KINDS.get("staged" if "/staged/" in name else path.name.split(".")[0].split("-")[0])
        if kind is None or (kind is Staged and kind in seen):
            continue
        seen.add(kind)
        stored = world.store.read(name, kind)
        facts = msgspec.to_builtins(stored)
        free = [place for place in places(facts) if FREE & set(place)]
        tried = [(place, other) for place in free for other in ODD]
        tried = numbers.sample(tried, min(TRIED, len(tried))) + [
            (place, other) for place, other in tried if place in ALWAYS and other in (-1, [[None]])
        ]
        for place, other in tried:
            changed = with_other(facts, place, other)
            for act in (commit, stage_what_is_missing):
                forge(world.store, name, stored, **{place[0]: changed[place[0]]})
                # Where it changes nothing that counts, it goes through. Any error but ours ends the test.
                try:
                    act(world, request, name)
                except OutcomeUnknownError as error:
                    pytest.fail(f"{name}, {place} = {other!r}: a commit was tried again and again: {error}")
                except CheckpointError:
                    pass
                shutil.rmtree(root)
                shutil.copytree(kept, root)
                world = type(world)(root)
