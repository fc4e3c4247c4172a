"""What a commit may remove from a table, and which of its files that is.

Also asked of what a foreign commit touched.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow_ckpt_provider.tables.iceberg.manifest import FACTS, data_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile, ManifestFile, PartitionFieldSummary
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType

    from airflow_ckpt_provider.tables.iceberg.manifest import Entry
    from airflow_ckpt_provider.tables.iceberg.matching import MetricsEvaluator

#: Stands for NaN in keys, which is not equal to itself.
NAN = "NaN"

#: Values of one partition's fields, as in pyiceberg's partition records, NaN as text.
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RemoveAll:
    """The whole table, delete files included."""


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Exactly these data files, all of which must be live."""

    paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class RemovePartitions:
    """All live files of these partitions of one partition spec; delete files of a partition apply to no file but these.

    :param keys: see :func:`key_of`.
    """

    spec_id: int
    keys: frozenset[Key]


@dataclass(frozen=True, slots=True)
class RemoveWhere:
    """All data files that hold only rows that match; see :func:`classified` for those that hold others, too."""

    expression: BooleanExpression


Removal = RemoveAll | RemoveFiles | RemovePartitions | RemoveWhere


def key_of(values: Iterable[Any]) -> Key:
    """Key of a partition: the values of its record, so that NaN, which is not equal to itself, is found again."""
    return tuple(NAN if value != value else value for value in values)  # noqa: PLR0124


class RemovalSelector:
    """Which files of a table some removals take.

    Also used to tell what a foreign commit touched.
    """

    def __init__(self, metadata: TableMetadata, removals: Iterable[Removal]) -> None:
        self.everything = False
        self.paths: set[str] = set()
        self.partitions: dict[int, frozenset[Key]] = {}
        self.matchers: list[MetricsEvaluator] = []
        for removal in removals:
            match removal:
                case RemoveAll():
                    self.everything = True
                case RemoveFiles(paths):
                    self.paths |= paths
                case RemovePartitions(spec_id, keys):
                    self.partitions[spec_id] = self.partitions.get(spec_id, frozenset()) | {key_of(key) for key in keys}
                case RemoveWhere(expression):
                    from airflow_ckpt_provider.tables.iceberg.matching import MetricsEvaluator

                    self.matchers.append(MetricsEvaluator(metadata, expression))
        self._wanted: dict[int, list[_FieldValues]] = {}
        for spec_id, wanted in self.partitions.items():
            if wanted:
                fields = metadata.specs()[spec_id].partition_type(metadata.schema()).fields
                columns = zip(*wanted, strict=True)
                self._wanted[spec_id] = [_FieldValues(f.field_type, column) for f, column in zip(fields, columns, strict=True)]

    @property
    def fields(self) -> frozenset[str] | None:
        """Fields of a data file that are needed to tell; None for all."""
        return None if self.matchers else FACTS

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Whether the manifest can list a file that is taken."""
        from pyiceberg.manifest import ManifestContent

        if self.everything or self._partitions_may_be_in(manifest):
            return True
        if manifest.content != ManifestContent.DATA:
            return False
        return bool(self.paths) or any(matcher.may_be_in(manifest) for matcher in self.matchers)

    def takes(self, entry: Entry, partition: Key, spec_id: int, file: DataFile | None) -> bool:
        """Whether this live file is taken; ``file`` is its other form, needed for matchers only."""
        if self.everything or key_of(partition) in self.partitions.get(spec_id, ()):
            # A delete file by values without a partition applies to all partitions of all specs.
            return self.everything or bool(partition) or entry.file.get("content") != 2
        if entry.file.get("content"):
            return False
        return entry.file["file_path"] in self.paths or (
            file is not None and any(matcher.whole(file, spec_id) for matcher in self.matchers)
        )

    def file_of(self, entry: Entry, partition: Key, spec_id: int) -> DataFile | None:
        """The file as matchers ask for it; None if there are none, or it is a delete file."""
        return data_file(entry, partition, spec_id) if self.matchers and not entry.file.get("content") else None

    def _partitions_may_be_in(self, manifest: ManifestFile) -> bool:
        """By each field's bounds: one value of the removal must lie in them. Not by an expression: keys can be thousands."""
        wanted = self._wanted.get(manifest.partition_spec_id)
        return wanted is not None and all(
            field.may_be_in(summary) for field, summary in zip(wanted, manifest.partitions or (), strict=False)
        )


class _FieldValues:
    """The values of one partition field that a removal takes."""

    def __init__(self, kind: IcebergType, values: Iterable[Any]) -> None:
        from pyiceberg.types import DoubleType, FloatType

        known = set(values)
        self._kind: Any = kind
        self._null = None in known
        self._nan = isinstance(kind, FloatType | DoubleType) and NAN in known
        known -= {None, NAN} if self._nan else {None}
        self._sorted: list[Any] = sorted(value.bytes if isinstance(value, UUID) else value for value in known)

    def may_be_in(self, summary: PartitionFieldSummary) -> bool:
        from pyiceberg.conversions import from_bytes
        from pyiceberg.types import UnknownType

        if isinstance(self._kind, UnknownType):  # its column was dropped, and with it what the bounds' bytes mean
            return True
        if (self._null and summary.contains_null) or (self._nan and summary.contains_nan is not False):
            return True
        if summary.lower_bound is None or summary.upper_bound is None:
            return False
        lower, upper = from_bytes(self._kind, summary.lower_bound), from_bytes(self._kind, summary.upper_bound)
        at = bisect_left(self._sorted, lower)
        return at < len(self._sorted) and bool(self._sorted[at] <= upper)
