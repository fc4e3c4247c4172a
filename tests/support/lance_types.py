"""The types that Lance files hold, with values."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa

AT = datetime(2026, 1, 1, 12, 30, 15)  # noqa: DTZ001 - a timestamp without a zone

VECTOR = pa.list_(pa.float32(), 4)

#: A struct whose members stand side by side in one column of a file, if its field says so.
PACKED, PACK = pa.struct([("x", pa.int32()), ("y", pa.float64())]), {"lance-encoding:packed": "true"}

#: Types, each with values that are not null, and the first storage version that has it.
TYPES = {
    **{str(kind): (kind, [1, 0, 100]) for kind in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.uint32())},
    "int32": (pa.int32(), [-(2**31), 0, 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    "uint64": (pa.uint64(), [0, 1, 2**64 - 1]),
    **{str(kind): (kind, [-0.0, 0.5, float("inf")]) for kind in (pa.float16(), pa.float32(), pa.float64())},
    "bool": (pa.bool_(), [True, False, True]),
    **{str(kind): (kind, ["", "ü", "x" * 5000]) for kind in (pa.string(), pa.large_string(), pa.string_view())},
    **{str(kind): (kind, [b"", b"\x00\xff", b"x" * 5000]) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())},
    "decimal": (pa.decimal128(38, 10), [Decimal("1234567890123456789.0123456789"), Decimal(-1), Decimal(0)]),
    "decimal256": (pa.decimal256(60, 2), [Decimal(10) ** 50, Decimal(-1), Decimal(0)]),
    "date32": (pa.date32(), [date(1900, 1, 1), date(2026, 1, 1), date(9999, 12, 31)]),
    "date64": (pa.date64(), [date(1900, 1, 1), date(2026, 1, 1), date(9999, 12, 31)]),
    **{str(kind): (kind, [time(0), time(12, 30, 15), time(23, 59, 59)]) for kind in (pa.time32("s"), pa.time32("ms"))},
    **{str(kind): (kind, [time(0), time(12, 30, 15, 7), time(23, 59, 59)]) for kind in (pa.time64("us"), pa.time64("ns"))},
    **{f"timestamp {unit}": (pa.timestamp(unit), [AT, AT, AT.replace(year=1677, month=12)]) for unit in ("s", "ms", "us", "ns")},
    "timestamp with a zone": (pa.timestamp("us", "UTC"), [AT.replace(tzinfo=UTC)] * 3),
    "timestamp with a local zone": (pa.timestamp("ms", "Europe/Berlin"), [AT.replace(tzinfo=UTC)] * 3),
    "duration": (pa.duration("us"), [timedelta(0), timedelta(microseconds=1), timedelta(days=-9)]),
    "fixed_size_binary": (pa.binary(4), [b"abcd", b"\x00" * 4, b"\xff" * 4]),
    **{
        f"vector of {kind}": (pa.list_(kind, 3), [[0.5, 1.0, -2.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
        for kind in (pa.float16(), pa.float32(), pa.float64())
    },
    "vector of int8": (pa.list_(pa.int8(), 2), [[1, 2], [3, 4], [5, 6]]),
    "matrix": (pa.list_(pa.list_(pa.float32(), 2), 2), [[[1.0, 2.0], [3.0, 4.0]]] * 3),
    "list": (pa.list_(pa.int64()), [[1, None], [], [2]]),
    "large_list": (pa.large_list(pa.string()), [["a", None], [], ["ü"]]),
    "list of lists": (pa.list_(pa.list_(pa.int64())), [[[1], [], None], [], [[2, None]]]),
    "list of vectors": (pa.list_(VECTOR), [[[1.0, 2.0, 3.0, 4.0]], [], [[0.0] * 4] * 2]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": 2, "b": ""}]),
    "struct of lists": (
        pa.struct([("l", pa.list_(pa.int64())), ("v", VECTOR)]),
        [{"l": [1, None], "v": [1.0] * 4}, {"l": None, "v": None}, {"l": [], "v": [0.0] * 4}],
    ),
    "list of packed structs": (
        pa.list_(pa.field("item", PACKED, metadata=PACK)),
        [[{"x": 1, "y": 0.5}, {"x": 2, "y": 1.0}], [], [{"x": 3, "y": -1.0}]],
    ),
    "list of structs": (
        pa.list_(pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])),
        [[{"a": 1, "b": {"c": "x"}}], [], [{"a": None, "b": None}, None]],
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], [], [("ü", 2)]], "2.2"),
    "map of structs": (
        pa.map_(pa.string(), pa.struct([("x", pa.float64())])),
        [[("a", {"x": 0.5})], [], [("b", {"x": None}), ("c", None)]],
        "2.2",
    ),
    "list of maps": (pa.list_(pa.map_(pa.string(), pa.int64())), [[[("a", 1)]], [], [[], None]], "2.2"),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
    "dictionary of numbers": (pa.dictionary(pa.int8(), pa.int64()), [7, 8, 7]),
}
