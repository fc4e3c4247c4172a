"""Tables, rows and modes of these tests, and what each mode must leave in a table. A new mode is one more entry of ``MODES``."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from support.world import ORIGIN, SCHEMA, World

from airflow_ckpt_provider.sources import Files

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table import Table

    from airflow_ckpt_provider.write.request import WriteRequest

Row = dict[str, Any]

ARROW = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("kind", pa.string()), ("at", pa.timestamp("us"))])

SPECS = {
    "unpartitioned": UNPARTITIONED_PARTITION_SPEC,
    "identity": PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind")),
    "bucket": PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "id_bucket")),
    "day": PartitionSpec(PartitionField(4, 1000, DayTransform(), "at_day")),
    "truncate": PartitionSpec(PartitionField(3, 1000, TruncateTransform(1), "kind_trunc")),
    "several": PartitionSpec(
        PartitionField(3, 1000, IdentityTransform(), "kind"),
        PartitionField(1, 1001, BucketTransform(2), "id_bucket"),
        PartitionField(4, 1002, DayTransform(), "at_day"),
    ),
}

#: Rows that are in the table before: with nulls and NaN in every column that can have them.
BEFORE_IDS = range(100, 112)

#: Overwritten by the filter: all new rows and some of those before.
FILTER = "id < 104"


def rows(start: int, count: int) -> list[Row]:
    """Rows with the ids from ``start`` on."""
    return [
        {
            "id": n,
            "value": [n % 4 / 2, None, float("nan")][n % 3],
            "kind": [None, "north", "south", "nadir"][n % 4],
            "at": None if n % 5 == 3 else datetime(2026, 1, 1) + timedelta(hours=7 * (n % 9)),  # noqa: DTZ001 - without a zone
        }
        for n in range(start, start + count)
    ]


BEFORE = rows(BEFORE_IDS.start, len(BEFORE_IDS))
NEW = rows(0, 4)


def arrow(listed: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(listed, schema=ARROW)


def partition_of(spec: PartitionSpec) -> Callable[[Row], tuple[str, ...]]:
    """The partition of a row, by pyiceberg's transforms."""
    made = []
    for part in spec.fields:
        source = SCHEMA.find_field(part.source_id)
        made.append((source.name, part.transform.transform(source.field_type)))

    def internal(value: Any) -> Any:
        return round((value - datetime(1970, 1, 1)).total_seconds() * 1_000_000) if isinstance(value, datetime) else value  # noqa: DTZ001

    # As text, in which NaN is equal to itself.
    return lambda row: tuple(repr(transform(internal(row[name]))) for name, transform in made)


def _appended(before: list[Row], new: list[Row], spec: PartitionSpec) -> list[Row]:
    return before + new


def _overwritten(before: list[Row], new: list[Row], spec: PartitionSpec) -> list[Row]:
    return new


def _overwritten_where(before: list[Row], new: list[Row], spec: PartitionSpec) -> list[Row]:
    return [row for row in before if not row["id"] < 104] + new


def _overwritten_partitions(before: list[Row], new: list[Row], spec: PartitionSpec) -> list[Row]:
    partition = partition_of(spec)
    gone = {partition(row) for row in new}
    return [row for row in before if partition(row) not in gone] + new


def _upserted(before: list[Row], new: list[Row], spec: PartitionSpec) -> list[Row]:
    keys = {row["id"] for row in new}
    return [row for row in before if row["id"] not in keys] + new


@dataclass(frozen=True)
class Mode:
    """One mode.

    :param after: the rows that a table of this spec has after a write, of those that it had and those that were written.
    :param together: whether mapped tasks can land in one commit.
    """

    label: str
    name: str
    after: Callable[[list[Row], list[Row], PartitionSpec], list[Row]]
    parameters: dict[str, Any] = field(default_factory=dict)
    together: bool = True

    def __str__(self) -> str:
        return self.label

    def request(self, world: World, key: str = "orders", **changes: Any) -> WriteRequest:
        return world.request(key, mode=self.name, parameters=self.parameters, **changes)

    def fits(self, spec: PartitionSpec) -> bool:
        return self.name != "overwrite_partitions" or bool(spec.fields)


APPEND = Mode("append", "append", _appended)
OVERWRITE = Mode("overwrite", "overwrite", _overwritten)
WHERE = Mode("overwrite with a filter", "overwrite", _overwritten_where, {"overwrite_filter": FILTER}, together=False)
PARTITIONS = Mode("overwrite_partitions", "overwrite_partitions", _overwritten_partitions)
UPSERT = Mode("upsert", "upsert", _upserted, {"upsert_keys": ["id"]}, together=False)

#: All modes that write into a table that is there.
MODES = [APPEND, OVERWRITE, WHERE, PARTITIONS, UPSERT]


def world_with(root: Any, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC, before: list[Row] = BEFORE) -> World:
    """A world whose table holds these rows, in two files a partition at most."""
    world = World(root)
    table = world.create_table(spec=spec)
    for part in (before[::2], before[1::2]):
        append(table, part)
    return world


def append(table: Table, listed: list[Row]) -> None:
    """What a writer does who knows nothing of checkpoints."""
    if listed:
        table.refresh().append(arrow(listed).cast(table.schema().as_arrow()))


def put(world: World, *files: list[Row]) -> None:
    """Replace the input by these files, one split each."""
    for path in world.input.iterdir():
        path.unlink()
    for number, listed in enumerate(files):
        pq.write_table(arrow(listed), world.input / f"{number}.parquet")


def mapped(world: World, mode: Mode, index: int, **changes: Any) -> WriteRequest:
    """What one task of a mapped stage asks for: the input file of its number."""
    source = Files(f"{world.input}/{index}.parquet", max_split_bytes=1)
    origin = msgspec.structs.replace(ORIGIN, map_index=index)
    return mode.request(world, f"orders/{index}", source=source, origin=origin, **changes)


def own_snapshots(world: World, name: str = "shop.orders") -> list[Any]:
    """Snapshots of checkpoints."""
    return [one for one in world.table(name).snapshots() if one.summary and one.summary["airflow.checkpoint.group"]]
