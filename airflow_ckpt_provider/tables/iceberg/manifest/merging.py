"""Merging the tiny manifests of many splits before they are committed: readers open each manifest of a table.

Entries are not taken apart. What executors staged has no snapshot and no sequence number yet, so the entries of a merged manifest
are the bytes they were, and only the containers around them change.

Decision: the same staged manifests always make the same merged ones, byte for byte. A second seal that lost a race may write
over the first one's, and a process that cached a manifest by its path stays right.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_ckpt_provider.exceptions import RowCountError
from airflow_ckpt_provider.tables.iceberg.manifest.avro import Container, ContainerWriter, in_order
from airflow_ckpt_provider.tables.iceberg.manifest.staged import FACTS_ENTRY, FieldSummary, StagedManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.types import PrimitiveType

#: Manifests of at least this size are left alone, and merged ones are closed when they reach it; Iceberg's default
#: for ``commit.manifest.target-size-bytes``.
TARGET_BYTES = 8 << 20

#: Fewer small manifests than this are left alone.
FEWEST = 16

#: What two manifests must have in common to become one.
SHARED = ("avro.schema", "avro.codec", "schema", "partition-spec", "partition-spec-id", "format-version", "content")


def worth_merging(staged: Sequence[StagedManifest]) -> bool:
    """Whether there are many small manifests."""
    return sum(manifest.length < TARGET_BYTES for manifest in staged) >= FEWEST


def merge(io: FileIO, staged: Sequence[StagedManifest], new_path: Callable[[int], str]) -> list[StagedManifest]:
    """Write the entries of many small staged manifests into few.

    :param new_path: gives the location of the new manifest of a number, counted from 0.
    :returns: manifests with the same entries; the large ones as they were.
    :raises RowCountError: if a manifest does not hold the files it is said to hold.
    """
    small = [manifest for manifest in staged if manifest.length < TARGET_BYTES]
    merged = [manifest for manifest in staged if manifest.length >= TARGET_BYTES]
    open_ones: dict[tuple[object, ...], _Merged] = {}
    number = 0
    for manifest, read in zip(small, in_order(lambda one: _read(io, one), small), strict=True):
        key = (manifest.spec_id, *(read.meta.get(name) for name in SHARED))
        if key not in open_ones:
            open_ones[key] = _Merged(io, new_path(number), read, manifest)
            number += 1
        target = open_ones[key]
        target.add(manifest, read)
        if target.length >= TARGET_BYTES:
            merged.append(open_ones.pop(key).close())
    return merged + [target.close() for target in open_ones.values()]


class _Read(NamedTuple):
    meta: dict[str, bytes]
    files: int
    entries: bytes


def _read(io: FileIO, manifest: StagedManifest) -> _Read:
    with Container(io, manifest.path) as container:
        blocks = list(container.blocks())
    count = sum(count for count, _ in blocks)
    if count != manifest.files:
        raise RowCountError(f"The manifest {manifest.path} lists {count} files; it was staged with {manifest.files} (I2).")
    if container.meta.get(FACTS_ENTRY) != manifest.facts.encode():
        raise RowCountError(f"The manifest {manifest.path} says something else of its files than the record of their split (I2).")
    return _Read(container.meta, count, b"".join(data for _, data in blocks))


class _Merged:
    """One new manifest, being written."""

    def __init__(self, io: FileIO, path: str, read: _Read, first: StagedManifest) -> None:
        self._spec_id = first.spec_id
        sync = hashlib.md5(first.path.encode(), usedforsecurity=False).digest()
        # What it says of all its files is known at the end.
        self._writer = ContainerWriter(io, path, dict(read.meta), sync, held=True)
        self._bounds = [_Bounds(kind) for kind in _partition_types(read.meta)]
        self._files = self._rows = self._bytes = 0
        self._partitions: set[str] = set()

    @property
    def length(self) -> int:
        return self._writer.length

    def add(self, manifest: StagedManifest, read: _Read) -> None:
        self._writer.add(read.entries, read.files)
        self._files += manifest.files
        self._rows += manifest.rows
        self._bytes += manifest.bytes
        self._partitions.update(manifest.partitions)
        for bounds, summary in zip(self._bounds, manifest.summaries, strict=True):
            bounds.add(summary)

    def close(self) -> StagedManifest:
        merged = StagedManifest(
            path=self._writer.path,
            length=0,
            spec_id=self._spec_id,
            files=self._files,
            rows=self._rows,
            bytes=self._bytes,
            summaries=tuple(bounds.summary for bounds in self._bounds),
            partitions=tuple(sorted(self._partitions)),
        )
        with self._writer as writer:
            writer.meta[FACTS_ENTRY] = merged.facts.encode()
        return msgspec.structs.replace(merged, length=self._writer.length)


class _Bounds:
    """Union of one partition field's summaries; bounds are compared as what they mean, not as bytes."""

    def __init__(self, kind: PrimitiveType) -> None:
        self._kind = kind
        self.summary = FieldSummary(contains_null=False, contains_nan=False, lower=None, upper=None)

    def add(self, other: FieldSummary) -> None:
        known = self.summary
        self.summary = FieldSummary(
            contains_null=known.contains_null or other.contains_null,
            contains_nan=_either(known.contains_nan, other.contains_nan),
            lower=self._least(known.lower, other.lower),
            upper=self._most(known.upper, other.upper),
        )

    def _least(self, one: str | None, other: str | None) -> str | None:
        return min((bound for bound in (one, other) if bound is not None), key=self._value, default=None)

    def _most(self, one: str | None, other: str | None) -> str | None:
        return max((bound for bound in (one, other) if bound is not None), key=self._value, default=None)

    def _value(self, bound: str) -> Any:  # noqa: ANN401 - of the field's type
        from pyiceberg.conversions import from_bytes

        return from_bytes(self._kind, base64.b64decode(bound))


def _either(one: bool | None, other: bool | None) -> bool | None:  # noqa: FBT001 - not flags, but what is known
    """Whether one of two has NaNs: what is unknown of one stays unknown, unless the other has some."""
    if one or other:
        return True
    return None if one is None or other is None else False


def _partition_types(meta: dict[str, bytes]) -> list[PrimitiveType]:
    """Types of the partition fields, by the schema and spec that stand in the manifest's header."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema

    schema = Schema.model_validate_json(meta["schema"])
    fields = [PartitionField.model_validate(field) for field in msgspec.json.decode(meta["partition-spec"])]
    return [field.field_type for field in PartitionSpec(*fields).partition_type(schema).fields]  # type: ignore[misc]
