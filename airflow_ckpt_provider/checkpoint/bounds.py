"""How large a stored document may be. Whoever can write to the store can put anything there, and a reader must not choke on it.

The bounds are far above what a write needs: a plan of 100,000 splits is 22 MB of JSON with 1.3 million values, and one of 256 MiB
has about a million splits. Beyond the bounds a writer refuses, before the object is stored, so that nothing is ever stored that
no reader would take.
"""

from __future__ import annotations

import functools
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
import msgspec.inspect
import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 1 << 20

#: Largest document by the start of its name, in bytes of JSON. What grows with the number of splits has more.
_LARGEST = {"plan": 256 * MIB, "seal": 256 * MIB, "staged": 64 * MIB}
_LARGEST_OTHER = 16 * MIB

#: Most values in one document. A value takes up to a hundred bytes of memory, however short its text is.
MAX_VALUES = 16_000_000

#: Deepest nesting. A column of a table that is to be created takes three levels for each level that it is nested itself.
MAX_DEPTH = 200

#: Most generations of a key, and most rounds of a generation.
MAX_GENERATIONS = 1_000_000
MAX_ROUNDS = 1_000

#: Most members of one commit.
MAX_MEMBERS = 100_000

_INT64 = 2**63 - 1

#: A number of rows, bytes or other things; also a version, or the id of a snapshot.
Count = Annotated[int, msgspec.Meta(ge=0, le=_INT64)]
#: An id that a table format gives.
Number = Annotated[int, msgspec.Meta(ge=-_INT64 - 1, le=_INT64)]
Generation = Annotated[int, msgspec.Meta(ge=1, le=MAX_GENERATIONS)]
Round = Annotated[int, msgspec.Meta(ge=1, le=MAX_ROUNDS)]
#: A name that becomes part of an object's or file's name.
Name = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_.-]{1,200}$")]
#: What stands for the code of a transform; see ``documents.code_of``.
CodeDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
#: A moment that can be compared with any other.
Moment = Annotated[datetime, msgspec.Meta(tz=True)]

_FIRST_YEAR, _LAST_YEAR = 1970, 9998

#: Compressed bytes that are inflated at a time: at most 8 MiB come out of them.
_STEP = 256


class BoundsError(Exception):
    """A document is beyond the bounds. The message is what is to be said of it, after its name."""


def largest(name: str) -> int:
    """Bytes of the largest document that may be stored under ``name``."""
    if "/staged/" in name or "/pieces/" in name:
        return _LARGEST["staged"]
    stem = name.rsplit("/", 1)[-1].split(".", 1)[0].split("-", 1)[0]
    return _LARGEST.get(stem, _LARGEST_OTHER)


def require_size(name: str, size: int) -> None:
    """Refuse a document of ``size`` bytes.

    :raises BoundsError: if it is too large for what it is.
    """
    if size > largest(name):
        raise BoundsError(f"is {size // MIB:,} MiB large, and at most {largest(name) // MIB} MiB are read")


def inflate(name: str, data: bytes) -> bytes:
    """The document in a zstd frame.

    :raises BoundsError: if it is too large, or the frame is damaged.
    """
    frame = zstandard.ZstdDecompressor(max_window_size=8 * MIB).decompressobj()
    inflated: list[bytes] = []
    size = begin = 0
    try:
        while begin < len(data) and not frame.eof:
            inflated.append(frame.decompress(data[begin : begin + _STEP]))
            size, begin = size + len(inflated[-1]), begin + _STEP
            if size > largest(name):
                raise BoundsError(f"inflates to more than {largest(name) // MIB} MiB")
    except zstandard.ZstdError as error:
        raise BoundsError(f"cannot be decompressed ({error})") from error
    if not frame.eof or frame.unused_data or begin < len(data):
        raise BoundsError("is truncated or has something behind its end")
    return b"".join(inflated)


def require_few_values(text: bytes) -> None:
    """Refuse a JSON text with more values than memory should hold; counted from above, before anything is decoded.

    :raises BoundsError: if there are too many.
    """
    if len(text) > MAX_VALUES and text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_VALUES:
        raise BoundsError(f"holds more than {MAX_VALUES:,} values")


def require_plain(document: msgspec.Struct) -> None:
    """Refuse what free-form members hold and no writer of ours puts there: deep nesting, numbers beyond 64 bits, odd dates.

    :raises BoundsError: if there is any.
    """
    level: list[object] = [document]
    depth = 0
    while level:
        if depth > MAX_DEPTH:
            raise BoundsError(f"is nested more than {MAX_DEPTH} levels deep")
        kinds = {*map(type, level)}
        numbers = [value for value in level if type(value) is int] if int in kinds else []
        if numbers and not (min(numbers) >= -_INT64 and max(numbers) < 2**64):
            raise BoundsError("holds a number of more than 64 bits")
        years = {value.year for value in level if type(value) is datetime} if datetime in kinds else set()
        if years and not (min(years) >= _FIRST_YEAR and max(years) <= _LAST_YEAR):
            raise BoundsError(f"holds a date of the year {min(years)} or {max(years)}")
        level = [*chain.from_iterable(_inside(value) for value in level if type(value) not in _PLAIN)] if kinds - _PLAIN else []
        depth += 1


#: What holds nothing else.
_PLAIN = frozenset({str, int, float, bool, type(None), datetime})


def _inside(value: object) -> Iterable[object]:
    """The values in a dictionary, a sequence or a struct; of a struct only those whose types leave something to refuse."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in _open_members(type(value))]
    return cast("Iterable[object]", value)


@functools.cache
def _open_members(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The members of a struct that decoding alone does not keep within the bounds: there may be very many of the others."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if _is_open(msgspec.inspect.type_info(field.type)))


def _is_open(kind: msgspec.inspect.Type) -> bool:
    """Whether a document may have, in a member of this type, what its bounds refuse: deep nesting, a large number, an odd date."""
    match kind:
        case msgspec.inspect.StrType() | msgspec.inspect.BoolType() | msgspec.inspect.NoneType():
            return False
        case msgspec.inspect.IntType():
            return kind.ge is None or kind.le is None
        case msgspec.inspect.StructType():
            parts = [msgspec.inspect.type_info(field.type) for field in msgspec.structs.fields(kind.cls)]
        case msgspec.inspect.VarTupleType():
            parts = [kind.item_type]
        case msgspec.inspect.DictType():
            parts = [kind.key_type, kind.value_type]
        case msgspec.inspect.UnionType():
            parts = list(kind.types)
        case _:
            return True
    return any(map(_is_open, parts))
