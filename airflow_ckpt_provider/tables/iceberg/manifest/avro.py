"""Avro containers and manifest entries, taken apart no further than a rewrite needs.

pyiceberg's writer costs 80 us per entry, most of it in writing column bounds again that nobody changed. Here the
description of a data file stays the bytes it was: only the four fields before it (status, snapshot id, two sequence numbers)
are written anew. That is fast, streams entry by entry, and keeps fields of the file's own schema that this code does not know.
"""

from __future__ import annotations

import functools
import io as streams
import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from airflow_ckpt_provider.exceptions import CorruptObjectError, UnsupportedTableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from pyiceberg.io import FileIO, OutputStream

T = TypeVar("T")
R = TypeVar("R")

MAGIC, SYNC_BYTES = b"Obj\x01", 16

#: Bytes read from the store at a time, and bytes of entries in one Avro block.
READ_BYTES, BLOCK_BYTES = 1 << 20, 1 << 16

#: Requests to the store under way at a time; a manifest is mostly latency.
THREADS = 8

#: Fields of an entry that stand before its data file, in this order, in every writer's schema.
HEAD = ("status", "snapshot_id", "sequence_number", "file_sequence_number")


def to_long(value: int) -> bytes:
    """Avro's encoding of an integer: zigzag, seven bits to a byte."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _long_at(data: bytes, at: int) -> tuple[int, int]:
    """The integer at a place, and the place after it."""
    shift = rest = 0
    while True:
        byte = data[at]
        at += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), at
        shift += 7


class Container:
    """An Avro file that is read block by block.

    :param path: where it is; also for messages.
    """

    def __init__(self, io: FileIO, path: str) -> None:
        self.path = path
        source: Any = io.new_input(path).open(seekable=False)
        self._stream = streams.BufferedReader(source, READ_BYTES)
        if self._take(4) != MAGIC:
            raise self._damaged()
        self.meta: dict[str, bytes] = {}
        while count := self._long():
            if count < 0:
                self._long()
            for _ in range(abs(count)):
                name = self._take(self._long()).decode()
                self.meta[name] = self._take(self._long())
        self._sync = self._take(SYNC_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()

    @property
    def schema(self) -> str:
        """Avro schema of its records, as JSON."""
        return self.meta["avro.schema"].decode()

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Each block: number of records, and their bytes, decompressed."""
        codec = _codec(self.meta)
        while self._stream.peek(1):
            count, data = self._long(), self._take(self._long())
            if self._take(SYNC_BYTES) != self._sync:
                raise self._damaged()
            yield count, codec.decompress(data) if codec else data

    def _take(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise self._damaged()
        return data

    def _long(self) -> int:
        data = b""
        while not data or data[-1] >= 0x80:
            data += self._take(1)
        return _long_at(data, 0)[0]

    def _damaged(self) -> CorruptObjectError:
        return CorruptObjectError(f"{self.path} is no complete Avro file. It is part of the table: restore it from a backup.")


class ContainerWriter:
    """Writes an Avro file from encoded records.

    :param meta: its header, codec and schema included.
    :param sync: marker between blocks; files with equal records and markers are equal.
    :param held: whether nothing is written before the end, so that the header may say what is known by then.
    """

    def __init__(self, io: FileIO, path: str, meta: dict[str, bytes], sync: bytes, *, held: bool = False) -> None:
        self.path, self.meta, self.length = path, meta, 0
        self._io, self._sync, self._codec = io, sync, _codec(meta)
        self._records: list[bytes] = []
        self._count = self._size = 0
        self._held: list[bytes] = []
        self._stream: OutputStream | None = None
        if not held:
            self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._flush()
            if self._stream is None:
                self._open()
        if self._stream is not None:
            self._stream.close()

    def _open(self) -> None:
        """Write the header, and what was held."""
        self._stream = self._io.new_output(self.path).create(overwrite=True)
        pairs = b"".join(to_long(len(n)) + n + to_long(len(v)) + v for n, v in ((k.encode(), v) for k, v in self.meta.items()))
        held, self._held, self.length = self._held, [], 0
        for data in (MAGIC + to_long(len(self.meta)) + pairs + to_long(0) + self._sync, *held):
            self._write(data)

    def add(self, records: bytes, count: int = 1) -> None:
        """Add encoded records."""
        self._records.append(records)
        self._count += count
        self._size += len(records)
        if self._size >= BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._count:
            data = b"".join(self._records)
            data = self._codec.compress(data)[0] if self._codec else data
            self._write(to_long(self._count) + to_long(len(data)) + data + self._sync)
        self._records, self._count, self._size = [], 0, 0

    def _write(self, data: bytes) -> None:
        self.length += len(data)
        if self._stream is None:
            self._held.append(data)
        else:
            self._stream.write(data)


def _codec(meta: dict[str, bytes]) -> Any:  # noqa: ANN401 - pyiceberg's codec classes have no common type that mypy knows
    from pyiceberg.avro.codecs import KNOWN_CODECS

    name = meta.get("avro.codec", b"null").decode()
    if name not in KNOWN_CODECS:
        raise UnsupportedTableError(f"A manifest is compressed with {name}, which cannot be read here.")
    return KNOWN_CODECS[name]


class Entry(NamedTuple):
    """One entry of a manifest, as it is stored: what is inherited from the manifest list is None.

    :param file: the wanted fields of its data file, by name.
    :param body: its data file, encoded.
    """

    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    file: dict[str, Any]
    body: bytes


class Shape(NamedTuple):
    """How the entries of a manifest are laid out.

    :param head: place of null in each head field's union; None if the field is required.
    :param written: schema of its data files, parsed; ``wanted`` has only the wanted fields, ``prefix`` ends with the last of them.
    :param partition: for each partition field, what makes its value of the stored one.
    """

    head: dict[str, int | None]
    written: Any
    wanted: Any
    prefix: Any
    partition: tuple[Callable[[Any], Any] | None, ...]


@functools.lru_cache(maxsize=64)
def shape_of(schema: str, fields: frozenset[str] | None) -> Shape:
    """Understand a manifest's schema; ``fields`` are the wanted ones of its data files, None for all."""
    from fastavro import parse_schema

    *heads, last = json.loads(schema)["fields"]
    head = {field["name"]: field["type"].index("null") if isinstance(field["type"], list) else None for field in heads}
    if last["name"] != "data_file" or tuple(head) != HEAD[: len(head)] or len(head) not in {2, 4}:
        raise UnsupportedTableError(
            f"A manifest has entries of the fields {[*head, last['name']]}, which no known writer makes. Rewrite the table's "
            "manifests with its engine (rewrite_manifests), then retry."
        )
    written = last["type"]
    (partition,) = [field["type"] for field in written["fields"] if field["name"] == "partition"]
    places = [at for at, field in enumerate(written["fields"]) if fields is None or field["name"] in fields]
    wanted = written | {"fields": [written["fields"][at] for at in places]}
    prefix = written | {"fields": written["fields"][: places[-1] + 1]}
    return Shape(
        head,
        parse_schema(_plain(written)),
        parse_schema(_plain(wanted)),
        parse_schema(_plain(prefix)),
        tuple(_to_value(field["type"]) for field in partition["fields"]),
    )


def _plain(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """The schema without logical types: dates stay the numbers that pyiceberg has in partition records, too."""
    if isinstance(schema, dict):
        return {name: _plain(value) for name, value in schema.items() if name != "logicalType"}
    return [_plain(value) for value in schema] if isinstance(schema, list) else schema


def _to_value(kind: Any) -> Callable[[Any], Any] | None:  # noqa: ANN401 - JSON
    """Decimals and UUIDs are what pyiceberg has as objects in partition records; all others are what is stored."""
    from pyiceberg.utils.decimal import unscaled_to_decimal

    (kind,) = [one for one in (kind if isinstance(kind, list) else [kind]) if one != "null"] or ["null"]
    match kind.get("logicalType") if isinstance(kind, dict) else None:
        case "decimal":
            scale = kind.get("scale", 0)
            return lambda data: unscaled_to_decimal(int.from_bytes(data, "big", signed=True), scale)
        case "uuid":
            return lambda data: UUID(bytes=data) if isinstance(data, bytes) else UUID(data)
        case _:
            return None


class Entries:
    """The entries of one manifest, one after the other.

    :param fields: fields of the data files to decode; None for all.
    """

    def __init__(self, io: FileIO, path: str, fields: frozenset[str] | None = None) -> None:
        self.container = Container(io, path)
        self.shape = shape_of(self.container.schema, fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.container.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[Entry]:
        from fastavro import schemaless_reader

        nulls = [self.shape.head.get(name, -1) for name in HEAD]
        for count, data in self.container.blocks():
            stream = streams.BytesIO(data)
            at = 0
            for left in reversed(range(count)):
                head: list[int | None] = []
                for null in nulls:
                    value: int | None = None
                    if null is None:
                        value, at = _long_at(data, at)
                    elif null >= 0:
                        branch, at = _long_at(data, at)
                        if branch != null:
                            value, at = _long_at(data, at)
                    head.append(value)
                stream.seek(at)
                file: Any
                if left:
                    file = schemaless_reader(stream, self.shape.written, self.shape.wanted)
                    end = stream.tell()
                else:  # Where the last one ends is known: what is not wanted need not be skipped field by field.
                    file = schemaless_reader(stream, self.shape.prefix, None)
                    end = len(data)
                yield Entry(head[0] or 0, head[1], head[2], head[3], file, data[at:end])
                at = end

    def partition(self, file: dict[str, Any]) -> tuple[Any, ...]:
        """Values of a file's partition as pyiceberg has them."""
        values = file["partition"].values()
        return tuple(v if make is None or v is None else make(v) for v, make in zip(values, self.shape.partition, strict=True))


def in_order(work: Callable[[T], R], items: Iterable[T], threads: int = THREADS) -> Iterator[R]:
    """Results of ``work`` in the order of ``items``, a few at a time in threads, so that no more than these are held."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Any] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
