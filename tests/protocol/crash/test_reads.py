"""Which effects have no read between them, so that a run that is suspended at either is in one place."""

from __future__ import annotations

import threading

import obstore
import pytest
from obstore.store import MemoryStore
from protocol.crash.effects import Effects, stops_in
from protocol.crash.reads import Reads
from protocol.crash.scenarios import UNPARTITIONED

pytestmark = pytest.mark.crash


@pytest.fixture
def reads(monkeypatch):
    # They are counted where they are asked, until the test ends.
    monkeypatch.setattr(obstore, "head", obstore.head)
    monkeypatch.setattr(obstore, "list", obstore.list)
    monkeypatch.setattr(obstore, "list_with_delimiter", obstore.list_with_delimiter)
    counting = Reads()
    counting.count_questions(obstore)
    return counting


def stops(tmp_path, reads, between):
    """Names of the effects to stop at, of a process that does this between two effects."""
    ledger = tmp_path / "ledger"
    effects = Effects(ledger, reads=reads)
    effects.around("one", lambda: None)
    between(tmp_path)
    effects.around("two", lambda: None)
    return [name for _, name in stops_in(ledger)]


def asks_for_an_object(tmp_path):
    with pytest.raises(FileNotFoundError):
        obstore.head(MemoryStore(), "there")


LOOKS = {
    "reads a file": lambda tmp_path: (tmp_path / "ledger").read_bytes(),
    "reads a file in another thread": lambda tmp_path: in_a_thread((tmp_path / "ledger").read_bytes),
    "asks whether an object exists": asks_for_an_object,
    "asks for names": lambda _: list(obstore.list(MemoryStore())),
}


def in_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_behind_an_effect_is_before_the_next_if_nothing_was_read_in_between(tmp_path, reads):
    def writes(folder):
        (folder / "new").write_text("some")

    assert stops(tmp_path, reads, writes) == ["before one", "before two", "after two"]


@pytest.mark.parametrize("look", LOOKS)
def test_behind_an_effect_is_a_place_of_its_own_if_something_was_read_after_it(tmp_path, reads, look):
    assert stops(tmp_path, reads, LOOKS[look]) == ["before one", "after one", "before two", "after two"]


def test_effects_of_several_threads_are_all_places_of_their_own(tmp_path, reads):
    effects = Effects(tmp_path / "ledger", reads=reads)
    effects.around("one", lambda: None)
    in_a_thread(lambda: effects.around("two", lambda: None))
    assert len(stops_in(tmp_path / "ledger")) == 4


def test_a_write_has_fewer_places_than_effects_and_looks_before_it_seals_and_commits(runs, tmp_path):
    # What a process reads once, be it from its packages, it has read in the first.
    run = [runs.run(UNPARTITIONED.world(tmp_path / name), *UNPARTITIONED.writes) for name in ("first", "second")][-1]
    names = [name for _, name in run.stops]
    # It writes what it has read before.
    assert not {"after create data file of g1/000000", "after create manifest list", "after create metadata"} & set(names)
    assert {"after put g1/staged/000000.json", "after put g1/seal.json", "after put g1/group.json"} <= set(names)
    assert {name for name in run.effects if name.startswith("before")} <= set(names)
