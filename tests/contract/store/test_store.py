"""What a checkpoint store promises, checked on every storage it can be in: a local folder, memory, S3."""

from __future__ import annotations

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import obstore
import pytest
from msgspec.structs import replace
from obstore.exceptions import AlreadyExistsError, GenericError
from support.s3 import SECRET
from support.samples import AT, GROUP, HEADER, PLAN, SAMPLES

from airflow_ckpt_provider.checkpoint.documents import Group, Header, Plan, Seal, Tombstone, to_json
from airflow_ckpt_provider.checkpoint.store import CheckpointStore, StoreError
from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError, NewerFormatError, RetryableError

_memories = itertools.count()


@pytest.fixture(params=["local", "memory", "s3"])
def store(request, tmp_path):
    if request.param == "local":
        return CheckpointStore.at(str(tmp_path / "store"))
    if request.param == "memory":
        return CheckpointStore.at(f"memory:///{next(_memories)}")
    bucket = request.getfixturevalue("s3_bucket")
    return CheckpointStore.at(bucket.uri("team/checkpoints"), **bucket.options)


@pytest.fixture
def s3_store(s3_bucket):
    return CheckpointStore.at(s3_bucket.uri("checkpoints"), **s3_bucket.options)


def reason(text):
    return Tombstone(discarded_at=AT, reason=text)


def damage(store, name, data):
    """Put bytes there as if something else than this provider had written them."""
    obstore.put(store.location.open(create=True), name, data)


def stored(store, name):
    return bytes(obstore.get(store.location.open(), name).bytes())


@pytest.mark.parametrize("name", [*SAMPLES, "plan.json.zst"])
def test_a_document_is_read_back_as_it_was_put(store, name):
    document = SAMPLES[name.removesuffix(".zst")]
    assert store.create(f"k/g1/{name}", document)
    assert store.read(f"k/g1/{name}", type(document)) == document
    assert store.exists(f"k/g1/{name}")


def test_what_was_never_put_is_absent_and_no_error(store):
    assert store.read("k/g1/seal.json", Seal) is None
    assert not store.exists("k/g1/seal.json")
    assert store.names("k/") == []


def test_the_first_document_stays_and_the_second_is_told_so(store):
    assert store.create("k/discard.json", reason("first"))
    assert not store.create("k/discard.json", reason("second"))
    assert store.read("k/discard.json", Tombstone) == reason("first")


def test_putting_the_very_same_document_again_is_no_loss(store):
    assert store.create("k/discard.json", reason("mine"))
    assert store.create("k/discard.json", reason("mine"))


def test_of_many_threads_exactly_one_creates_an_object(store):
    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            name = f"k/{number}.json"
            won = list(pool.map(lambda who, name=name: store.create(name, reason(str(who))), range(8)))
            assert won.count(True) == 1
            assert store.read(name, Tombstone) == reason(str(won.index(True)))


def test_names_are_listed_sorted_below_a_folder_and_not_beside_it(store):
    names = ["aa/g1/header.json", "aa/g1/staged/000000.json", "aa/g1/staged/000001.json", "aa/g10/header.json"]
    for name in [*reversed(names), "aab/g1/header.json"]:
        store.create(name, HEADER)
    assert store.names("aa/") == names
    assert store.names("aa/g1/") == names[:3]
    assert store.names("aa/g1/staged/") == names[1:3]


def test_many_documents_are_read_in_the_order_asked_for(store):
    names = [f"k/{number:03d}.json" for number in range(40)]
    for name in names:
        store.create(name, reason(name))
    order = names[::-1]
    assert [document.reason for document in store.read_many(order, Tombstone)] == order


def test_a_listed_document_that_is_gone_is_an_error_that_names_it(store):
    store.create("k/0.json", reason("there"))
    with pytest.raises(StoreError, match=r"k/1\.json"):
        store.read_many(["k/0.json", "k/1.json"], Tombstone)


def damaged_forms():
    whole = to_json("group.json", GROUP)
    newer = whole.replace(b'"format_version":1', b'"format_version":2')
    return {
        "empty": b"",
        "cut short by one byte": whole[:-1],
        "cut in the middle": whole[: len(whole) // 2],
        "one digit altered": whole.replace(b'"horizon":7', b'"horizon":8'),
        "checksum altered": whole[:-10] + bytes([whole[-10] ^ 1]) + whole[-9:],
        "something appended": whole + b"\n",
        "JSON of somebody else": b'{"horizon": 7}',
        "newer, but altered": newer,
        "bytes": bytes(range(256)),
    }


@pytest.mark.parametrize("form", damaged_forms())
def test_a_damaged_object_is_an_error_that_names_it_and_never_absent(store, form):
    damage(store, "k/g1/group.json", damaged_forms()[form])
    with pytest.raises(CorruptObjectError, match=r"k/g1/group\.json"):
        store.read("k/g1/group.json", Group)
    assert not store.create("k/g1/group.json", GROUP)


def damaged_frames():
    whole = to_json("plan.json.zst", PLAN)
    return {"cut short": whole[:-1], "half": whole[: len(whole) // 2], "appended": whole + b"x", "no frame": b"{}", "empty": b""}


@pytest.mark.parametrize("form", damaged_frames())
def test_a_damaged_compressed_object_is_an_error_that_names_it(store, form):
    damage(store, "k/g1/plan.json.zst", damaged_frames()[form])
    with pytest.raises(CorruptObjectError, match=r"k/g1/plan\.json\.zst"):
        store.read("k/g1/plan.json.zst", Plan)


def test_an_object_of_a_newer_version_is_an_error_that_says_what_to_upgrade(store):
    newer = replace(GROUP, format_version=2)
    damage(store, "k/g1/group.json", to_json("group.json", newer))
    with pytest.raises(NewerFormatError, match=r"k/g1/group\.json .*version 2.*airflow-provider-ckpt"):
        store.read("k/g1/group.json", Group)


def test_an_object_of_another_kind_is_an_error_that_names_it(store):
    store.create("k/g1/seal.json", GROUP)
    with pytest.raises(CorruptObjectError, match=r"k/g1/seal\.json"):
        store.read("k/g1/seal.json", Seal)


def test_a_listing_says_when_each_object_was_put_by_the_clock_that_the_store_has_now(store):
    before = store.now()
    store.create("aa/g1/header.json", HEADER)
    store.create("ab/g1/header.json", HEADER)
    after = store.now()
    listed = {one.name: one for one in store.listed()}
    # What reads the clock leaves nothing behind.
    assert listed.keys() == {"aa/g1/header.json", "ab/g1/header.json"}
    assert {one.name for one in store.listed("aa/")} == {"aa/g1/header.json"}
    size = len(stored(store, "aa/g1/header.json"))
    for one in listed.values():
        # Object storage may count whole seconds.
        assert before.replace(microsecond=0) <= one.modified <= after + timedelta(seconds=1)
        assert one.bytes == size


def test_what_is_removed_is_gone_and_what_was_gone_before_is_passed_over(store):
    names = [f"k/{number:04d}.json" for number in range(6)]
    for name in names:
        store.create(name, reason(name))
    store.remove([])
    store.remove(["k/none.json", *names[:3], "l/none.json", *names[:1]])
    assert store.names("k/") == names[3:]
    assert store.read(names[3], Tombstone) == reason(names[3])
    store.remove(names)
    assert store.names("") == []


def test_more_objects_than_one_request_takes_are_removed(s3_store):
    objects = s3_store.location.open()
    names = [f"k/{number:04d}" for number in range(1003)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: obstore.put(objects, name, b""), names))
    s3_store.remove(names)
    assert s3_store.names("k/") == []


def test_a_removal_that_fails_is_an_error_that_a_retry_may_help(s3_store, monkeypatch):
    s3_store.create("k/0.json", reason("there"))
    monkeypatch.setattr(obstore, "delete", _fail)
    with pytest.raises(StoreError, match=r"k/0\.json.*s3://.*connection reset"):
        s3_store.remove(["k/0.json"])
    assert s3_store.exists("k/0.json")
    with pytest.raises(StoreError, match="connection reset"):
        s3_store.now()


def test_a_store_that_travelled_to_another_process_is_the_same_store(store):
    store.create("k/header.json", HEADER)
    travelled = pickle.loads(pickle.dumps(store))
    assert travelled == store
    assert travelled.read("k/header.json", Header) == HEADER


def test_a_store_that_can_be_listed_passes_its_check(store):
    store.check()


def test_no_credential_is_shown_or_stored(s3_store):
    for name, document in SAMPLES.items():
        s3_store.create(f"k/g1/{name}", document)
    assert SECRET not in repr(s3_store) + str(s3_store) + s3_store.uri
    assert not any(SECRET.encode() in stored(s3_store, name) for name in s3_store.names("k/"))


def test_a_lost_reply_to_our_own_put_is_not_taken_for_a_lost_race(s3_store, monkeypatch):
    put = obstore.put

    def put_and_lose_the_reply(*args, **kwargs):
        put(*args, **kwargs)
        raise GenericError("connection reset by peer")

    monkeypatch.setattr(obstore, "put", put_and_lose_the_reply)
    assert s3_store.create("k/staged.json", reason("mine"))


def test_a_resent_put_that_finds_our_own_object_is_not_taken_for_a_lost_race(s3_store, monkeypatch):
    put = obstore.put

    def put_twice(*args, **kwargs):
        put(*args, **kwargs)
        with pytest.raises(AlreadyExistsError) as refused:
            put(*args, **kwargs)
        raise refused.value

    monkeypatch.setattr(obstore, "put", put_twice)
    assert s3_store.create("k/staged.json", reason("mine"))


def test_a_lost_reply_to_a_put_that_came_second_is_a_lost_race(s3_store, monkeypatch):
    s3_store.create("k/staged.json", reason("theirs"))
    monkeypatch.setattr(obstore, "put", _fail)
    assert not s3_store.create("k/staged.json", reason("mine"))
    assert s3_store.read("k/staged.json", Tombstone) == reason("theirs")


def test_a_put_that_did_not_land_is_an_error_that_a_retry_may_help(s3_store, monkeypatch):
    monkeypatch.setattr(obstore, "put", _fail)
    with pytest.raises(RetryableError, match=r"k/staged\.json .*s3://.*connection reset"):
        s3_store.create("k/staged.json", reason("mine"))
    assert not s3_store.exists("k/staged.json")


def test_a_bucket_that_does_not_exist_is_an_error_that_names_the_store(s3_bucket):
    store = CheckpointStore.at("s3://no-such-bucket/checkpoints", **s3_bucket.options)
    for act in (store.check, lambda: store.names("k/"), lambda: store.create("k/x.json", reason("mine"))):
        with pytest.raises(StoreError, match="s3://no-such-bucket/checkpoints"):
            act()


def test_an_option_that_the_storage_does_not_know_is_named_without_any_value(s3_bucket):
    store = CheckpointStore.at(s3_bucket.uri(), **s3_bucket.options, bogus=SECRET)
    with pytest.raises(InvalidInputError, match="bogus") as refused:
        store.check()
    assert SECRET not in str(refused.value)


def _fail(*_args, **_kwargs):
    raise GenericError("connection reset by peer")
