"""Canonical forms of data: what Python calls equal, in type and content, has one form, in every process.

A form is a generator of bytes and of values that it holds, whose digests it is sent. Decision: the order of a mapping's members
does not count, except of an ``OrderedDict``: nor does it for ``==``, and a dictionary made of a set has another in each process.
"""

from __future__ import annotations

import collections
import copyreg
import enum
import itertools
import logging
import marshal
import pathlib
import re
import struct
import threading
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping


class Held(NamedTuple):
    """A value inside another one.

    :param label: what to call it on the way to it.
    :param alone: to be looked at as if nothing had been before it, because its place in an order is not known yet.
    """

    label: str
    value: object
    alone: bool = False


#: A form, which is sent the digest of each ``Held``.
Form: TypeAlias = "Generator[bytes | memoryview | Held, bytes, None]"


def parts(*held: bytes | memoryview | Held) -> Form:
    """A form of these parts."""
    yield from held


class UnstableError(Exception):
    """What has no form that is the same in every process. The message says why."""


#: Types without anything inside.
LEAVES = frozenset({str, int, float, bool, bytes, complex, type(None), type(...)})
_PLAIN = LEAVES - {type(...)} | {list, tuple, dict}

#: Containers that may be encoded as a whole.
PLAIN = frozenset({list, tuple, dict, set, frozenset})

_COMPARABLE = ({str}, {int}, {bytes})

#: Levels of plain lists and mappings that are encoded as a whole; deeper ones, and those that hold themselves, one by one.
_DEPTH = 40

#: What a function may hold and what makes no difference to what it returns.
_IGNORED = (
    types.ModuleType,
    logging.Logger,
    logging.LoggerAdapter,
    logging.Handler,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    threading.Event,
    threading.Semaphore,
    threading.Barrier,
    threading.local,
)


def ignored(value: object) -> bool:
    """Whether a value does not count: modules, loggers and locks."""
    return isinstance(value, _IGNORED)


def leaf(value: Any) -> bytes:  # noqa: ANN401 - a leaf
    """A value of one of the ``LEAVES``. Version 2 of the format knows neither interned texts nor references."""
    return marshal.dumps(value, 2)


def plain(value: Any) -> bytes | None:  # noqa: ANN401 - any value
    """Lists, tuples, mappings and sets of leaves as a whole, which is fast; None for what holds anything else."""
    if isinstance(value, set | frozenset):
        kinds = set(map(type, value))
        if not kinds <= LEAVES:
            return None
        return marshal.dumps((..., type(value).__name__, sorted(value) if kinds in _COMPARABLE else sorted(map(leaf, value))), 2)
    level: list[Any] = [value]
    keyed = False
    for _ in range(_DEPTH):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return None
        if kinds <= LEAVES:
            return marshal.dumps(_ordered(value) if keyed else value, 2)
        keyed = keyed or dict in kinds
        level = list(itertools.chain.from_iterable(map(_members, level)))
    return None


def _members(value: Any) -> Iterable[object]:  # noqa: ANN401 - a plain value
    kind = type(value)
    if kind is dict:
        return itertools.chain(value.keys(), value.values())
    return value if kind is list or kind is tuple else ()


def _ordered(value: Any) -> Any:  # noqa: ANN401 - a plain value
    """``value`` with its mappings as tuples that begin with an ellipsis, which plain values do not hold."""
    kind = type(value)
    if kind is dict:
        keys = set(map(type, value))
        # Keys of one such type can be compared, and differ, so that no two values are.
        members = sorted(value.items()) if keys in _COMPARABLE else sorted(value.items(), key=_by_key)
        if keys <= LEAVES and set(map(type, value.values())) <= LEAVES:
            return (..., *members)
        return (..., *[(_ordered(key), _ordered(item)) for key, item in members])
    if kind is list:
        return list(map(_ordered, value))
    return tuple(map(_ordered, value)) if kind is tuple else value


def _by_key(member: tuple[object, object]) -> bytes:
    return marshal.dumps(_ordered(member[0]), 2)


# -- containers -------------------------------------------------------------------------------------------------------


def sequence(kind: str, values: Iterable[object]) -> Form:
    """Values in their order."""
    yield kind.encode()
    for number, value in enumerate(values):
        yield Held(f"[{number}]", value)


def unordered(kind: str, values: Iterable[object]) -> Form:
    """Values in any order."""
    digests: list[bytes] = []
    for value in values:
        digests.append((yield Held(_short(value), value, alone=True)))  # noqa: PERF401 - what is sent back
    yield kind.encode()
    yield b"".join(sorted(digests))


def mapping(kind: str, values: Mapping[Any, object]) -> Form:
    """Members in any order."""
    keys: list[tuple[bytes, object]] = []
    for key in values:
        keys.append(((yield Held(_short(key), key, alone=True)), key))  # noqa: PERF401 - what is sent back
    yield kind.encode()
    for digest, key in sorted(keys, key=lambda pair: pair[0]):
        yield digest
        yield Held(key if isinstance(key, str) else _short(key), values[key])


def container(value: Any) -> Form | None:  # noqa: ANN401 - any value
    """The form of one of Python's own containers; None for anything else."""
    kind = type(value)
    if kind in {list, tuple}:
        return sequence(kind.__name__, value)
    if kind in {set, frozenset}:
        return unordered(kind.__name__, value)
    if kind in {dict, types.MappingProxyType}:
        return mapping(kind.__name__, value)
    if kind is collections.OrderedDict:
        return sequence("OrderedDict", list(value.items()))
    return None


# -- values whose state Python does not tell, or tells in other ways in other versions -----------------------------------


def known(value: Any) -> Form | None:  # noqa: ANN401, PLR0911 - any value; one line for each kind
    """The form of a value of a kind that is known here; None for others."""
    if isinstance(value, pathlib.PurePath):
        return parts(b"path", b"windows" if isinstance(value, pathlib.PureWindowsPath) else b"posix", Held("path", str(value)))
    if isinstance(value, re.Pattern):
        return parts(b"pattern", Held("pattern", value.pattern), leaf(value.flags))
    if isinstance(value, memoryview):
        return parts(b"memoryview", value.format.encode(), leaf(value.shape), value.tobytes())
    if isinstance(value, struct.Struct):
        return parts(b"struct", Held("format", value.format))
    if value is NotImplemented:
        return parts(b"NotImplemented")
    if type(value) is object:
        return parts(b"object")
    if isinstance(value, enum.Enum):
        return parts(b"member", Held(type(value).__name__, type(value)), leaf(value.name or ""), Held("value", value.value))
    if isinstance(value, weakref.ref | weakref.WeakSet | weakref.WeakKeyDictionary | weakref.WeakValueDictionary):
        raise UnstableError("a weak reference")
    return None


# -- objects ----------------------------------------------------------------------------------------------------------


def object_form(value: Any, keeps: Callable[[str], bool]) -> Form:  # noqa: ANN401, C901 - any object
    """What an object says of itself when it is pickled: its class, and its state by attribute.

    :param keeps: whether an attribute of it counts.
    """
    reduced = _reduced(value)
    if isinstance(reduced, str):
        yield b"global"
        yield Held("class", type(value))
        yield reduced.encode()
        return
    make, arguments, state, items, members = (list(reduced) + [None] * 5)[:5]
    if getattr(make, "__module__", None) == "copyreg":
        yield b"object"
    else:
        yield b"made"
        yield Held("made by", make)
    yield Held("class", type(value))
    given = [part for part in arguments if part is not type(value)]
    if given:
        yield Held("arguments", given)
    slotted = isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict) and isinstance(state[0], dict | None)
    for part in state if slotted else (state,):
        if isinstance(part, dict):
            for name in sorted(part, key=str):
                if keeps(str(name)) and not ignored(part[name]):
                    yield str(name).encode()
                    yield Held(str(name), part[name])
        elif part is not None:
            yield Held("state", part)
    if items is not None:
        yield Held("items", list(items))
    if members is not None:
        yield Held("members", dict(members))


def _reduced(value: Any) -> Any:  # noqa: ANN401 - any object, and what it says of itself
    if hasattr(type(value), "__next__"):
        raise UnstableError(f"a {_kind(value)}, which is read only once")
    how = copyreg.dispatch_table.get(type(value))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return how(value) if how is not None else value.__reduce_ex__(4)
    except Exception as error:
        raise UnstableError(f"a {_kind(value)}: {error}") from error


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__}"
