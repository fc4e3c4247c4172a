"""What whoever can write to the store can do to whoever reads it: nothing that takes memory or time without end, and no raw error.

Every document here has the right checksum, as one has that was forged.
"""

from __future__ import annotations

import copy
import hashlib
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import msgspec
import obstore
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.samples import AT, HEADER, KEY, PLAN, SAMPLES
from support.world import World

from airflow_ckpt_provider.checkpoint import bounds
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Header, Plan, Split, from_json, to_json
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import CorruptObjectError, InvalidInputError, NewerFormatError

GOLDEN = Path(__file__).parent / "golden"

MIB = 1 << 20


def forged(body):
    """A whole object around the text of a JSON object."""
    body = body.removesuffix(b"}")
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def forged_from(facts):
    return forged(msgspec.json.encode(facts))


@pytest.fixture
def store(tmp_path):
    return CheckpointStore.at(str(tmp_path / "store"))


def plant(store, name, data):
    obstore.put(store.location.open(create=True), name, data)


# -- size -----------------------------------------------------------------------------------------------------------------


def bomb():
    """A plan of 64 KiB that inflates to 2 GiB."""
    frame = zstandard.ZstdCompressor().compressobj()
    parts = [frame.compress(b'{"document":"plan","format_version":1,"created_at":"')]
    parts += [frame.compress(b" " * (16 * MIB)) for _ in range(128)]
    return b"".join([*parts, frame.flush()])


def test_a_plan_that_inflates_to_gigabytes_is_refused_in_bounded_memory(tmp_path):
    (tmp_path / "bomb").write_bytes(bomb())
    assert (tmp_path / "bomb").stat().st_size < 128 * 1024
    script = f"""
import resource
from airflow_ckpt_provider.checkpoint.documents import Plan, from_json
from airflow_ckpt_provider.exceptions import CorruptObjectError
resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
try:
    from_json("k/g1/plan.json.zst", open({str(tmp_path / "bomb")!r}, "rb").read(), Plan)
except CorruptObjectError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert "k/g1/plan.json.zst" in done.stdout, done.stderr
    assert "MiB" in done.stdout


def test_an_object_that_is_too_large_is_refused_before_it_is_read(store, tmp_path):
    Checkpoint.create(store, HEADER)
    (header,) = (tmp_path / "store").rglob("header.json")
    with header.open("r+b") as file:
        file.truncate(4 << 30)
    tracemalloc.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptObjectError, match=r"header\.json .*4,096 MiB"):
        Checkpoint.latest(store, KEY)
    assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


def test_a_plan_of_a_hundred_thousand_splits_is_well_below_the_bounds(store):
    assert store.create("k/g1/plan.json.zst", plan_of(100_000))
    assert len(store.read("k/g1/plan.json.zst", Plan).splits) == 100_000


def plan_of(splits, read_bytes=160):
    slices = {"slices": [["x" * read_bytes, 4096, '"etag"', None, None]]}
    return replace(PLAN, splits=tuple(Split(id=f"{number:06d}", bytes=4096, read=slices) for number in range(splits)))


def test_a_plan_that_no_reader_would_take_is_refused_before_it_is_stored(store):
    with pytest.raises(InvalidInputError, match=r"plan\.json\.zst.*MiB.*larger splits"):
        store.create("k/g1/plan.json.zst", plan_of(3_000, 100_000))
    assert store.names("k/") == []


@pytest.mark.parametrize("again", [False, True], ids=["first", "restart"])
def test_a_write_whose_plan_no_reader_would_take_leaves_nothing_in_the_store(tmp_path, monkeypatch, again):
    world = World(tmp_path)
    world.create_table()
    world.put_files(2, 5)
    if again:
        world.stage()
    world.put_files(8, 5)
    before = world.store.names("")
    monkeypatch.setitem(bounds._LARGEST, "plan", 700)
    with pytest.raises(InvalidInputError, match=r"plan\.json\.zst cannot be written .*larger splits"):
        world.attempt(world.request(restart_token="again" if again else None))
    assert world.store.names("") == before


def test_more_values_than_memory_can_hold_are_refused_before_they_are_decoded():
    many = (
        b'{"document":"plan","format_version":1,"created_at":"2026-01-01T00:00:00Z","inputs":{"a":[' + b"[]," * (40 << 20) + b"[]]}"
    )
    data = zstandard.ZstdCompressor().compress(forged(many + b',"splits":[]}'))
    with pytest.raises(CorruptObjectError, match=r"plan\.json\.zst .*values"):
        from_json("plan.json.zst", data, Plan)


# -- depth and numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [300, 2_000, 1_000_000])
@pytest.mark.parametrize("where", ["source", "extra"])
def test_nesting_without_end_is_refused(depth, where):
    nested = b"[" * depth + b"]" * depth
    text = msgspec.json.encode(HEADER)
    body = text.replace(b'"parameters":{}', b'"parameters":{"a":' + nested + b"}")
    if where == "extra":
        body = text[:-1] + b',"extra":' + nested + b"}"
    with pytest.raises(CorruptObjectError, match=r"header\.json"):
        from_json("header.json", forged(body), Header)


HUGE = [2**63, -(2**63) - 1, 10**400, -1, 0, 10**9]


def places(value, path=()):
    """Paths of all values in a document."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))


def put(value, path, new):
    value = copy.deepcopy(value)
    at = value
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = new
    return value


def numbers(name):
    facts = facts_of(name)
    return [path for path in places(facts) if type(at(facts, path)) is int and path != ("format_version",)]


def facts_of(name):
    return {key: value for key, value in msgspec.json.decode((GOLDEN / name).read_bytes()).items() if key != "sha256"}


def at(value, path):
    for step in path:
        value = value[step]
    return value


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**400])
def test_no_number_is_beyond_what_a_table_can_hold(name, number):
    for path in numbers(name):
        with pytest.raises(CorruptObjectError, match=name):
            from_json(
                name, forged(msgspec.json.encode(put(facts_of(name), path, msgspec.Raw(str(number).encode())))), type(SAMPLES[name])
            )


@pytest.mark.parametrize(
    ("name", "member", "number"),
    [
        ("header.json", "generation", 0),
        ("header.json", "generation", 10**9),
        ("header.json", "replaces", 0),
        ("header.json", "replaces", -1),
        ("header.json", "replaces", 1),
        ("plan.json", "base", -1),
        ("staged.json", "rows", -1),
        ("staged.json", "bytes", -1),
        ("staged.json", "counts", {"inserted": -1}),
        ("staged.json", "files", [["a.parquet", -1]]),
        ("seal.json", "splits", -1),
        ("seal.json", "rows", -1),
        ("seal.json", "files", -1),
        ("seal.json", "round", 0),
        ("seal.json", "round", 10**9),
        ("group.json", "members", []),
        ("group.json", "members", [{"key": "k", "generation": 10**9}]),
        ("group.json", "members", [{"key": "k", "generation": 1}] * 100_001),
        ("group.json", "horizon", -1),
        ("commit.json", "rows", -1),
        ("commit.json", "commit_id", -1),
        ("attempt.json", "started_at", "2026-01-01T00:00:00"),
        ("attempt.json", "started_at", "0001-01-01T00:00:00+23:59"),
        ("attempt.json", "started_at", "9999-12-31T23:59:59-23:59"),
        ("attempt.json", "id", "../../other/g1/attempts/a"),
        ("plan.json", "splits", [{"id": "../x", "bytes": 1, "read": {}}]),
        ("plan.json", "splits", [{"id": "x" * 300, "bytes": 1, "read": {}}]),
    ],
)
def test_what_can_never_have_been_written_is_refused(name, member, number):
    with pytest.raises(CorruptObjectError, match=name):
        from_json(name, forged_from(facts_of(name) | {member: number}), type(SAMPLES[name]))


def test_what_no_reader_would_take_is_never_stored(store):
    deep: list = []
    for _ in range(5_000):
        deep = [deep]
    for wrong in (
        replace(HEADER, generation=10**9),
        replace(HEADER, parameters={"a": 2**64}),
        replace(HEADER, parameters={"a": deep}),
        replace(HEADER, key="\ud800"),
        replace(HEADER, created_at=AT.replace(tzinfo=None)),
    ):
        with pytest.raises(InvalidInputError, match=r"k/g1/header\.json"):
            store.create("k/g1/header.json", wrong)
    assert store.names("k/") == []


# -- anything at all ------------------------------------------------------------------------------------------------------

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(HUGE),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.sampled_from(["", "../..", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999-23:59", "x" * 100_000]),
    st.just([]),
    st.just({}),
    st.integers(1, 3_000).map(lambda depth: msgspec.Raw(b"[" * depth + b"]" * depth)),
    st.integers(1, 5_000).map(lambda digits: msgspec.Raw(b"9" * digits)),
)


@st.composite
def forgeries(draw, name):
    """A golden document with some of its values changed, left out or added, or its bytes."""
    facts = facts_of(name)
    for _ in range(draw(st.integers(0, 3))):
        inner = [path for path in places(facts) if path]
        path = draw(st.sampled_from(inner))
        facts = put(facts, path, draw(ODD))
    if draw(st.booleans()):
        facts.pop(draw(st.sampled_from(sorted(facts))))
    body = msgspec.json.encode(facts)
    for _ in range(draw(st.integers(0, 2))):
        begin = draw(st.integers(0, len(body)))
        body = body[:begin] + draw(st.binary(max_size=8)) + body[begin + draw(st.integers(0, 40)) :]
    data = forged(body) if draw(st.integers(0, 9)) else body
    return data[: draw(st.integers(0, len(data)))] if not draw(st.integers(0, 9)) else data


@pytest.mark.parametrize("name", [*SAMPLES, "plan.json.zst"])
def test_whatever_is_in_an_object_it_is_a_document_or_an_error_that_names_it(name):
    kind = type(SAMPLES[name.removesuffix(".zst")])

    @settings(max_examples=150, deadline=2_000, suppress_health_check=list(HealthCheck), database=None)
    @given(forgeries(name.removesuffix(".zst")), st.booleans())
    def read(data, damaged):
        if name.endswith(".zst"):
            data = zstandard.ZstdCompressor().compress(data)
            data = data[: len(data) // 2] if damaged else data
        try:
            document = from_json(name, data, kind)
        except (CorruptObjectError, NewerFormatError) as error:
            assert name in str(error)  # noqa: PT017 - both are right, and nothing else is
        else:
            # What is read can be stored again, and is the same then.
            assert from_json(name, to_json(name, document), kind) == document

    read()
