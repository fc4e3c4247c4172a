"""Signed stores: what nobody with the key has written is refused, wherever it is put, and tasks hold a key for their own only."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import msgspec
import obstore
import pytest
from msgspec.structs import replace
from support.samples import HEADER, KEY, SAMPLES
from support.world import World, ids_of, rows

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Header, from_json, to_json
from airflow_ckpt_provider.checkpoint.signing import ConnectionKeys
from airflow_ckpt_provider.checkpoint.state import State, state_of
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError, SignatureError
from airflow_ckpt_provider.write.cleanup import clean

GOLDEN = Path(__file__).parent / "golden"

FIRST = "0f" * 16
SECOND = "a5" * 20

NAME = f"{KEY.hash}/g1/header.json"


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(CheckpointStore.at(str(tmp_path / "store")).location, ConnectionKeys([FIRST]))


def unsigned(store):
    return CheckpointStore(store.location)


def plant(store, name, data):
    obstore.put(store.location.open(create=True), name, data)


def stored(store, name):
    return bytes(obstore.get(store.location.open(), name).bytes())


def test_a_signed_document_is_written_as_it_always_was():
    golden = (GOLDEN / "signed" / "header.json").read_bytes()
    assert to_json(NAME, HEADER, ConnectionKeys([FIRST])) == golden
    assert from_json(NAME, golden, Header, ConnectionKeys([FIRST])) == HEADER


@pytest.mark.parametrize("name", [*SAMPLES, "plan.json.zst"])
def test_a_signed_document_is_read_back_and_has_no_checksum_that_anybody_could_compute(store, name):
    document = SAMPLES[name.removesuffix(".zst")]
    name = f"{KEY.hash}/g1/{name}"
    assert store.create(name, document)
    assert store.create(name, document)
    assert store.read(name, type(document)) == document
    assert b"hmac_sha256" in stored(store, name) or name.endswith(".zst")
    assert b'"sha256"' not in stored(store, name)


@pytest.mark.parametrize("forge", ["unsigned", "altered", "of another key", "without a tail", "with a checksum"])
def test_what_the_key_did_not_sign_is_refused_by_name(store, forge):
    signed = to_json(NAME, HEADER, ConnectionKeys([FIRST]))
    altered = signed.replace(b'"mode":"append"', b'"mode":"create"')
    body = msgspec.json.encode(HEADER)[:-1]
    plant(
        store,
        NAME,
        {
            "unsigned": to_json(NAME, HEADER),
            "altered": altered,
            "of another key": to_json(NAME, HEADER, ConnectionKeys([SECOND])),
            "without a tail": body + b"}\n",
            "with a checksum": body + b',"hmac_sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n',
        }[forge],
    )
    with pytest.raises(
        (SignatureError, CorruptObjectError), match=rf"{KEY.hash}/g1/header\.json.*(previous_signing_secrets|no checksum)"
    ):
        Checkpoint.latest(store, KEY)


@pytest.mark.parametrize("name", [f"{KEY.hash}/g2/header.json", f"{'ab' * 10}/g1/header.json", f"{KEY.hash}/g1/staged/000000.json"])
def test_a_signed_document_cannot_be_moved_to_another_name(store, name):
    store.create(NAME, HEADER)
    plant(store, name, stored(store, NAME))
    with pytest.raises(SignatureError, match="under another name"):
        store.read(name, Header)


def test_a_store_without_the_key_refuses_what_is_signed_and_says_what_is_missing(store):
    store.create(NAME, HEADER)
    with pytest.raises(SignatureError, match=r"is signed.*signing_secret"):
        unsigned(store).read(NAME, Header)


def test_a_key_is_rotated_by_keeping_the_earlier_one(store):
    store.create(NAME, HEADER)
    rotated = CheckpointStore(store.location, ConnectionKeys([SECOND, FIRST]))
    later = f"{KEY.hash}/g2/header.json"
    rotated.create(later, replace(HEADER, generation=2))
    assert rotated.read(NAME, Header) == HEADER
    assert rotated.read(later, Header).generation == 2
    with pytest.raises(SignatureError, match="previous_signing_secrets"):
        store.read(later, Header)


@pytest.mark.parametrize("secrets", [[], ["short"], [FIRST, ""]])
def test_a_key_that_could_be_guessed_is_refused(secrets):
    with pytest.raises(InvalidInputError, match=r"32 characters.*openssl rand"):
        ConnectionKeys(secrets)


# -- what travels ---------------------------------------------------------------------------------------------------------


def test_executors_get_a_key_for_their_own_generation_and_no_other(store):
    checkpoint = Checkpoint.create(store, HEADER)
    with pytest.raises(TypeError, match="stay in the process"):
        pickle.dumps(store)
    data = pickle.dumps(store.of_generation(checkpoint.paths))
    assert FIRST.encode() not in data
    travelled = pickle.loads(data)
    staged = f"{KEY.hash}/g1/staged/000000.json"
    assert travelled.create(staged, SAMPLES["staged.json"])
    assert store.read(staged, type(SAMPLES["staged.json"])) == SAMPLES["staged.json"]
    for other in (f"{KEY.hash}/g2/header.json", f"{'ab' * 10}/g1/header.json", "header.json"):
        with pytest.raises(SignatureError, match="has no key"):
            travelled.create(other, HEADER)


def test_no_key_is_ever_shown(store):
    of_generation = store.of_generation(Checkpoint.create(store, HEADER).paths)
    derived = of_generation.signer.derived[0]
    shown = f"{store!r} {store.signer!r} {of_generation!r} {of_generation.signer!r} {store} {of_generation}"
    assert FIRST not in shown
    assert derived.hex() not in shown
    assert repr(derived)[2:-1] not in shown


# -- whole writes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.store = CheckpointStore(world.store.location, ConnectionKeys([FIRST]))
    world.put_files()
    world.create_table()
    return world


def test_a_signed_write_is_staged_resumed_committed_and_cleaned_up(world):
    world.stage(splits=2)
    attempt = world.stage()
    assert attempt.recovered(attempt.checkpoint.sealed()) == 2
    world.commit(attempt)
    assert world.ids() == ids_of([rows(0, 400)])
    assert world.stage().commit is not None
    (cleaned,) = clean(attempt.checkpoint, lambda _: world.as_table())
    assert cleaned.state is State.COMMITTED
    assert all(b"hmac_sha256" in stored(world.store, name) for name in world.store.names("") if name.endswith(".json"))


@pytest.mark.parametrize("document", ["commit", "discard", "seal"])
def test_a_planted_object_does_not_change_how_far_a_write_is(world, document):
    checkpoint = world.stage(splits=1).checkpoint
    name = getattr(checkpoint.paths, document)
    name = name() if callable(name) else name
    plant(world.store, name, to_json(name, SAMPLES[f"{document}.json"]))
    with pytest.raises(SignatureError, match=name):
        state_of(checkpoint)
    with pytest.raises(SignatureError, match=name):
        world.commit(world.stage())
    assert world.ids() == []


@pytest.mark.parametrize("document", ["plan.json.zst", "staged/000000.json", "header.json", "group.json"])
def test_a_write_with_a_forged_document_does_not_land(world, document):
    attempt = world.stage(splits=3)
    name = attempt.checkpoint.paths.root + document
    kind = {"plan.json.zst": "plan.json", "staged/000000.json": "staged.json"}.get(document, document)
    plant(world.store, name, to_json(name, SAMPLES[kind]))
    with pytest.raises(SignatureError, match=document):
        world.commit(world.stage())
    assert world.ids() == []
