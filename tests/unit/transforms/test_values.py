"""Data that a function uses: what is equal has one fingerprint, what differs has another, for every kind of value."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import ipaddress
import operator
import pathlib
import re
import threading
import time
import types
import uuid
import zoneinfo
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_ckpt_provider.sources.transform import Transform


def fingerprint(value):
    def clean(batch):
        return batch, value

    return Transform(clean).fingerprint


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Flags(enum.Flag):
    ONE = 1
    TWO = 2


class Point(NamedTuple):
    x: int
    y: int = 0


class Record(msgspec.Struct):
    a: int
    b: str = "b"


@dataclasses.dataclass
class Settings:
    first: int
    names: list[str] = dataclasses.field(default_factory=list)


class Plain:
    def __init__(self, limit):
        self.limit = limit


class Slotted:
    __slots__ = ("limit", "never_set")

    def __init__(self, limit):
        self.limit = limit


class Both(Slotted):
    def __init__(self, limit, name):
        super().__init__(limit)
        self.name = name


class Rows(list):
    pass


class Readable:
    """Says itself what it is made of."""

    def __init__(self, name):
        self.name = name
        self.handle = (line for line in name)

    def __getstate__(self):
        return {"name": self.name}


def sliced(values):
    return pa.array([*values[:1], *values, *values[:1]])[1 : 1 + len(values)]


def with_nulls(hidden):
    """1, null, 3, with something else in the buffer where the null is."""
    return pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([1, hidden, 3]).tobytes())])


def padded(rubbish):
    kind = np.dtype([("a", "i1"), ("b", "i4")], align=True)
    array = np.frombuffer(bytes([1, rubbish, rubbish, rubbish, 2, 0, 0, 0]), kind)
    assert kind.itemsize == 8
    return array


T = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})

#: Kind of value: one, an equal one, another one.
VALUES = {
    "text": (lambda: "a\ud800", lambda: "a" + chr(0xD800), lambda: "b"),
    "text and bytes": (lambda: "a", lambda: "a", lambda: b"a"),
    "integers": (lambda: 10**40, lambda: 10 ** (20 + 20), lambda: 10**40 + 1),
    "integer and float": (lambda: 1, lambda: 1, lambda: 1.0),
    "true and one": (lambda: True, lambda: True, lambda: 1),
    "floats": (lambda: 0.1 + 0.2, lambda: 0.2 + 0.1, lambda: 0.3),
    "not a number": (lambda: float("nan"), lambda: float("nan"), lambda: 0.0),
    "zeros": (lambda: 0.0, lambda: 0.0, lambda: -0.0),
    "complex": (lambda: 1 + 2j, lambda: complex(1, 2), lambda: 2 + 1j),
    "nothing": (lambda: None, lambda: None, lambda: ...),
    "list": (lambda: ["a", 1], lambda: list({"a": 0, 1: 0}), lambda: ("a", 1)),
    "order of a list": (lambda: ["a", "b"], lambda: ["a", "b"], lambda: ["b", "a"]),
    "nesting": (lambda: [[1], [2]], lambda: [[1], [2]], lambda: [[1, 2], []]),
    "sets": (lambda: {"a", "b", "c"}, lambda: {"c", "b", "a"}, lambda: {"a", "b"}),
    "set and frozenset": (lambda: {1}, lambda: {1}, lambda: frozenset({1})),
    "sets of members": (lambda: {Colour.RED, Colour.GREEN}, lambda: {Colour.GREEN, Colour.RED}, lambda: {Colour.RED}),
    "mapping": (lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}, lambda: {"a": 2, "b": 1}),
    "keys": (lambda: {1: "a", (2, "x"): "b"}, lambda: {(2, "x"): "b", 1: "a"}, lambda: {"1": "a", (2, "x"): "b"}),
    "keys that are objects": (lambda: {Colour.RED: 1}, lambda: {Colour.RED: 1}, lambda: {Colour.GREEN: 1}),
    "mapping and its items": (lambda: {"a": 1}, lambda: {"a": 1}, lambda: [("a", 1)]),
    "ordered mapping": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda: collections.OrderedDict([("a", 1), ("b", 2)]),
        lambda: collections.OrderedDict(b=2, a=1),
    ),
    "defaultdict": (
        lambda: collections.defaultdict(list, a=[1]),
        lambda: collections.defaultdict(list, {"a": [1]}),
        lambda: collections.defaultdict(set, a=[1]),
    ),
    "counter": (lambda: collections.Counter("aab"), lambda: collections.Counter("aba"), lambda: collections.Counter("abb")),
    "deque": (lambda: collections.deque([1, 2], 3), lambda: collections.deque((1, 2), 3), lambda: collections.deque([1, 2], 4)),
    "read-only mapping": (
        lambda: types.MappingProxyType({"a": 1}),
        lambda: types.MappingProxyType({"a": 1}),
        lambda: types.MappingProxyType({"a": 2}),
    ),
    "namespace": (lambda: types.SimpleNamespace(a=1), lambda: types.SimpleNamespace(a=1), lambda: types.SimpleNamespace(a=2)),
    "bytearray": (lambda: bytearray(b"a"), lambda: bytearray([97]), lambda: bytearray(b"b")),
    "memoryview": (lambda: memoryview(b"a"), lambda: memoryview(b"xa")[1:], lambda: memoryview(b"b")),
    "range": (lambda: range(3), lambda: range(0, 3, 1), lambda: range(4)),
    "slice": (lambda: slice(1, 2), lambda: slice(1, 2, None), lambda: slice(1, 3)),
    "member": (lambda: Colour.RED, lambda: Colour(1), lambda: Colour.GREEN),
    "flags": (lambda: Flags.ONE | Flags.TWO, lambda: Flags(3), lambda: Flags.ONE),
    "pattern": (lambda: re.compile("a+"), lambda: re.compile("a+"), lambda: re.compile("a*")),
    "flags of a pattern": (lambda: re.compile("a"), lambda: re.compile("a"), lambda: re.compile("a", re.IGNORECASE)),
    "date": (lambda: dt.date(2026, 1, 1), lambda: dt.date.fromisoformat("2026-01-01"), lambda: dt.date(2026, 1, 2)),
    "time of day": (lambda: dt.time(8, 30), lambda: dt.time.fromisoformat("08:30"), lambda: dt.time(8, 31)),
    "moment": (
        lambda: dt.datetime.fromisoformat("2026-01-01T08"),
        lambda: dt.datetime.fromisoformat("2026-01-01T08:00"),
        lambda: dt.datetime.fromisoformat("2026-01-01"),
    ),
    "zone of a moment": (
        lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        lambda: dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(0))),
        lambda: dt.datetime.fromisoformat("2026-01-01"),
    ),
    "zone": (lambda: zoneinfo.ZoneInfo("Europe/Rome"), lambda: zoneinfo.ZoneInfo("Europe/Rome"), lambda: zoneinfo.ZoneInfo("UTC")),
    "span": (lambda: dt.timedelta(hours=1), lambda: dt.timedelta(minutes=60), lambda: dt.timedelta(hours=2)),
    "decimal": (lambda: decimal.Decimal("1.5"), lambda: decimal.Decimal("1.5"), lambda: decimal.Decimal("1.25")),
    "fraction": (lambda: fractions.Fraction(1, 2), lambda: fractions.Fraction(2, 4), lambda: fractions.Fraction(1, 3)),
    "uuid": (lambda: uuid.UUID(int=1), lambda: uuid.UUID("0" * 31 + "1"), lambda: uuid.UUID(int=2)),
    "address": (
        lambda: ipaddress.ip_network("10.0.0.0/8"),
        lambda: ipaddress.ip_network("10.0.0.0/255.0.0.0"),
        lambda: ipaddress.ip_network("10.0.0.0/9"),
    ),
    "path": (lambda: pathlib.Path("/a/b"), lambda: pathlib.Path("/a") / "b", lambda: pathlib.Path("/a/c")),
    "path and text": (lambda: pathlib.Path("/a"), lambda: pathlib.Path("/a"), lambda: "/a"),
    "named tuple": (lambda: Point(1, 0), lambda: Point(1), lambda: Point(2)),
    "named tuple and tuple": (lambda: Point(1), lambda: Point(1), lambda: (1, 0)),
    "struct": (lambda: Record(1), lambda: Record(1, "b"), lambda: Record(1, "c")),
    "dataclass": (lambda: Settings(1), lambda: Settings(1, []), lambda: Settings(1, ["a"])),
    "attribute": (lambda: Plain(1), lambda: Plain(1), lambda: Plain(2)),
    "slot": (lambda: Slotted(1), lambda: Slotted(1), lambda: Slotted(2)),
    "slot of a base": (lambda: Both(1, "a"), lambda: Both(1, "a"), lambda: Both(2, "a")),
    "attribute beside a slot": (lambda: Both(1, "a"), lambda: Both(1, "a"), lambda: Both(1, "b")),
    "kind of object": (lambda: Plain(1), lambda: Plain(1), lambda: Slotted(1)),
    "items of an own list": (lambda: Rows([1]), lambda: Rows((1,)), lambda: Rows([2])),
    "own state": (lambda: Readable("a"), lambda: Readable("a"), lambda: Readable("b")),
    "itemgetter": (lambda: operator.itemgetter(0), lambda: operator.itemgetter(0), lambda: operator.itemgetter(1)),
    "attrgetter": (lambda: operator.attrgetter("a"), lambda: operator.attrgetter("a"), lambda: operator.attrgetter("b")),
    "methodcaller": (
        lambda: operator.methodcaller("slice", 1),
        lambda: operator.methodcaller("slice", 1),
        lambda: operator.methodcaller("slice", 2),
    ),
    "partial": (
        lambda: functools.partial(int, base=2),
        lambda: functools.partial(int, base=2),
        lambda: functools.partial(int, base=3),
    ),
    "bound method of Python's": (lambda: "a".join, lambda: "a".join, lambda: "b".join),
    "method of a pattern": (lambda: re.compile("a").sub, lambda: re.compile("a").sub, lambda: re.compile("b").sub),
    "function of a library": (lambda: pc.add, lambda: pc.add, lambda: pc.subtract),
    "built-in functions": (lambda: len, lambda: len, lambda: sum),
    "built-in types": (lambda: int, lambda: int, lambda: float),
    "type alias": (lambda: list[int], lambda: list[int], lambda: list[str]),
    "array": (lambda: np.arange(3), lambda: np.array([0, 1, 2]), lambda: np.array([0, 1, 3])),
    "type of an array": (lambda: np.arange(3), lambda: np.arange(3), lambda: np.arange(3, dtype="i4")),
    "shape of an array": (lambda: np.zeros((2, 3)), lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    "no rows of an array": (lambda: np.zeros((0, 3)), lambda: np.zeros((0, 3)), lambda: np.zeros((0, 4))),
    "steps of an array": (lambda: np.arange(6)[::2], lambda: np.array([0, 2, 4]), lambda: np.arange(6)[:3]),
    "fortran's order": (lambda: np.eye(3, 2, order="F"), lambda: np.eye(3, 2), lambda: np.eye(3, 2, 1)),
    "array of objects": (
        lambda: np.array(["a", 1], dtype=object),
        lambda: np.array(["a", 1], dtype=object),
        lambda: np.array(["a", 2], dtype=object),
    ),
    "array of moments": (
        lambda: np.array(["2026-01-01"], "datetime64[s]"),
        lambda: np.array(["2026-01-01T00"], "datetime64[s]"),
        lambda: np.array(["2026-01-01"], "datetime64[ms]"),
    ),
    "padding of an array": (lambda: padded(0), lambda: padded(9), lambda: padded(0)["b"]),
    "numpy's scalar": (lambda: np.float32(1), lambda: np.float32(1), lambda: np.float64(1)),
    "numpy's type": (lambda: np.dtype("i4"), lambda: np.dtype("int32"), lambda: np.dtype("i8")),
    "numpy's function": (lambda: np.add, lambda: np.add, lambda: np.subtract),
    "random numbers with a seed": (
        lambda: np.random.default_rng(1),
        lambda: np.random.default_rng(1),
        lambda: np.random.default_rng(2),
    ),
    "pandas": (
        lambda: pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
        lambda: pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
        lambda: pd.DataFrame({"a": [1, 2], "b": ["x", "z"]}),
    ),
    "arrow array": (lambda: pa.array([1, 2, 3]), lambda: sliced([1, 2, 3]), lambda: pa.array([1, 2, 4])),
    "arrow's nulls": (lambda: with_nulls(7), lambda: with_nulls(8), lambda: pa.array([1, 7, 3])),
    "arrow text": (lambda: pa.array(["a", None, "bc"]), lambda: sliced(["a", None, "bc"]), lambda: pa.array(["a", None, "b"])),
    "arrow text, cut elsewhere": (lambda: pa.array(["ab", "c"]), lambda: sliced(["ab", "c"]), lambda: pa.array(["a", "bc"])),
    "arrow booleans": (lambda: pa.array([True, None]), lambda: sliced([True, None]), lambda: pa.array([False, None])),
    "arrow lists": (
        lambda: pa.array([[1], None, [2, 3]]),
        lambda: sliced([[1], None, [2, 3]]),
        lambda: pa.array([[1], [], [2, 3]]),
    ),
    "arrow structs": (
        lambda: pa.array([{"a": 1}, None]),
        lambda: sliced([{"a": 1}, None]),
        lambda: pa.array([{"a": 1}, {"a": None}]),
    ),
    "arrow maps": (
        lambda: pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([[("a", 2)]], pa.map_(pa.string(), pa.int64())),
    ),
    "arrow decimals": (
        lambda: pa.array([decimal.Decimal("1.5")]),
        lambda: sliced([decimal.Decimal("1.5")]),
        lambda: pa.array([decimal.Decimal("2.5")]),
    ),
    "arrow dictionary": (
        lambda: pa.array(["a", "b"]).dictionary_encode(),
        lambda: pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int32()), ["b", "a"]),
        lambda: pa.array(["a", "c"]).dictionary_encode(),
    ),
    "arrow's zone": (
        lambda: pa.array([1], pa.timestamp("us", "UTC")),
        lambda: pa.array([1], pa.timestamp("us", "UTC")),
        lambda: pa.array([1], pa.timestamp("us")),
    ),
    "arrow uuids": (
        lambda: pa.array([b"0" * 16], pa.uuid()),
        lambda: pa.array([b"0" * 16], pa.uuid()),
        lambda: pa.array([b"1" * 16], pa.uuid()),
    ),
    "arrow scalar": (lambda: pa.scalar(1), lambda: pa.array([1])[0], lambda: pa.scalar(1, pa.int32())),
    "arrow null scalar": (lambda: pa.scalar(None, pa.int64()), lambda: pa.array([1, None])[1], lambda: pa.scalar(None)),
    "arrow type": (
        lambda: pa.struct([pa.field("a", pa.int64())]),
        lambda: pa.struct({"a": pa.int64()}),
        lambda: pa.struct([pa.field("a", pa.int64(), nullable=False)]),
    ),
    "arrow schema": (
        lambda: pa.schema([("a", pa.int64())]),
        lambda: pa.schema([pa.field("a", pa.int64())]),
        lambda: pa.schema([("b", pa.int64())]),
    ),
    "metadata of a schema": (
        lambda: pa.schema([("a", pa.int64())], {"x": "1", "y": "2"}),
        lambda: pa.schema([("a", pa.int64())], {"y": "2", "x": "1"}),
        lambda: pa.schema([("a", pa.int64())], {"x": "2", "y": "2"}),
    ),
    "arrow table": (lambda: T, lambda: pa.concat_tables([T[:1], T[1:]]), lambda: T.set_column(1, "b", [["x", None, "y"]])),
    "arrow batch and table": (lambda: T.to_batches()[0], lambda: T[:].to_batches()[0], lambda: T),
    "arrow buffer": (lambda: pa.py_buffer(b"abc"), lambda: pa.py_buffer(b"xabc").slice(1), lambda: pa.py_buffer(b"abd")),
    "arrow expression": (lambda: pc.field("a") > 1, lambda: pc.field("a") > 1, lambda: pc.field("a") > 2),
    "arrow options": (lambda: pc.CountOptions("all"), lambda: pc.CountOptions(mode="all"), lambda: pc.CountOptions("only_null")),
}


@pytest.mark.parametrize("what", VALUES)
def test_equal_values_have_one_fingerprint_and_others_have_another(what):
    one, equal, other = (fingerprint(make()) for make in VALUES[what])
    assert one == equal
    assert one != other


@pytest.mark.parametrize("what", VALUES)
def test_so_they_have_where_they_are_inside_something(what):
    one, equal, other = (fingerprint({"a": [Plain((make(), object()))]}) for make in VALUES[what])
    assert one == equal
    assert one != other


def test_what_is_shared_is_what_is_there_twice():
    shared = Plain([1])
    assert fingerprint([shared, shared]) == fingerprint([Plain([1]), Plain([1])])


def test_what_holds_itself_or_is_nested_deep_has_a_fingerprint():
    ring = [1]
    ring.append(ring)
    parent, chain, deep = Plain(None), None, []
    parent.limit = [Plain(parent), {"up": parent}, {(1, 2): parent}]
    for _ in range(5000):
        chain, deep = Plain(chain), [deep]
    found = {fingerprint(value) for value in (ring, parent, chain, deep)}
    assert len(found) == 4
    parents = collections.defaultdict(set)
    parents["a"].add(Holder(parents))
    assert fingerprint(parents) == fingerprint(parents)


class Holder:
    def __init__(self, held):
        self.held = held


def test_loggers_locks_and_modules_do_not_count():
    import logging

    def holder(*held):
        made = Plain(1)
        made.held = held
        return made

    one = fingerprint(holder(threading.Lock(), logging.getLogger("a"), re, threading.local()))
    assert one == fingerprint(holder(threading.RLock(), logging.getLogger("b"), types, threading.Event()))


def test_large_data_takes_no_seconds():
    small = {f"key-{number}": number for number in range(10)}
    large = {
        "array": np.arange(12_500_000, dtype=np.float64),
        "arrow": pa.array(np.arange(6_000_000)),
        "mapping": {f"key-{number}": number for number in range(300_000)},
        "rows": [(number, "x") for number in range(300_000)],
        "names": {f"key-{number}" for number in range(200_000)},
    }
    started = time.process_time()
    fingerprint(large)
    assert time.process_time() - started < 5
    assert fingerprint(small) != fingerprint(small | {"key-3": 4})
