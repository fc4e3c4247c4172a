"""The modes of writing that the contract is checked for. A new mode is one more entry of ``MODES``."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import BooleanType, DateType, DecimalType, DoubleType, LongType, NestedField, StringType, TimestamptzType

from airflow_ckpt_provider.sources import Files

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World

    from airflow_ckpt_provider.write.attempt import WriteAttempt

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "value", DoubleType()),
    NestedField(3, "price", DecimalType(12, 2)),
    NestedField(4, "region", StringType()),
    NestedField(5, "ts", TimestamptzType()),
    NestedField(6, "day", DateType()),
    NestedField(7, "open", BooleanType()),
)

SPEC = PartitionSpec(
    PartitionField(5, 1000, DayTransform(), "ts_day"),
    PartitionField(1, 1001, BucketTransform(2), "id_bucket"),
    PartitionField(4, 1002, IdentityTransform(), "region"),
    spec_id=0,
)

TABLE = "shop.orders"

Row = dict[str, Any]

_START = datetime(2026, 1, 1, tzinfo=UTC)

_ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("value", pa.float64()),
        ("price", pa.decimal128(12, 2)),
        ("region", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("open", pa.bool_()),
    ]
)


def rows(start: int, count: int) -> list[Row]:
    """Rows with the ids from ``start`` on, with nulls, NaN, infinities and several partitions among them."""
    return [
        {
            "id": n,
            "value": [n / 4, None, float("nan"), float("inf"), -0.0][n % 5],
            "price": None if n % 7 == 3 else Decimal(n * 101) / 100,
            "region": [None, "north", "süd"][n % 3],
            "ts": None if n % 11 == 5 else _START + timedelta(hours=9 * n % 48, microseconds=n),
            "day": None if n % 4 == 2 else (_START + timedelta(days=n)).date(),
            "open": [True, False, None][n % 3],
        }
        for n in range(start, start + count)
    ]


def added(before: list[Row], written: list[Row]) -> list[Row]:
    return before + written


def replaced(before: list[Row], written: list[Row]) -> list[Row]:
    return written


def replaced_by_partition(before: list[Row], written: list[Row]) -> list[Row]:
    gone = set(map(_partition, written))
    return [row for row in before if _partition(row) not in gone] + written


def updated(before: list[Row], written: list[Row]) -> list[Row]:
    keys = {row["id"] for row in written}
    return [row for row in before if row["id"] not in keys] + written


def _partition(row: Row) -> tuple[Any, ...]:
    bucket = BucketTransform(2).transform(LongType())
    return row["ts"] and row["ts"].date(), bucket(row["id"]), row["region"]


@dataclass(frozen=True)
class Mode:
    """One mode, as the contract uses it.

    :param after: the rows that the table has after a write, of those that it had and those that were written.
    :param parameters: what the mode is told.
    :param creates: the commit creates the table.
    :param loses: errors of those who wanted to commit other keys at the same moment and could not.
    """

    name: str
    after: Callable[[list[Row], list[Row]], list[Row]]
    parameters: dict[str, Any] = field(default_factory=dict)
    creates: bool = False
    loses: frozenset[str] = frozenset()

    @property
    def before(self) -> list[Row]:
        """The rows that are in the table before the first write."""
        return [] if self.creates else rows(1000, 12)

    def expected(self, *writes: list[Row]) -> list[Row]:
        """The rows in the table after these writes."""
        return functools.reduce(self.after, writes, self.before)

    def prepare(self, world: World) -> None:
        """What is there before the first write: a table with somebody else's rows, or none if the commit creates it."""
        if not self.creates:
            table = world.create_table(TABLE, SCHEMA, SPEC)
            table.append(pa.Table.from_pylist(self.before, schema=SCHEMA.as_arrow()))

    def stage(self, world: World, key: str = "orders", start: int = 0, count: int = 20) -> WriteAttempt:
        """Stage and seal ``count`` rows in two splits under ``key``; once, however often it is asked for."""
        folder = world.input / key
        folder.mkdir(exist_ok=True)
        for number, first in enumerate((start, start + count // 2)):
            path = folder / f"{number}.parquet"
            if not path.exists():
                pq.write_table(pa.Table.from_pylist(rows(first, count // 2), schema=_ARROW), path)
        source = Files(f"{folder}/*.parquet", max_split_bytes=1)
        changes = {"parameters": self.parameters} if self.parameters else {}
        return world.stage(world.request(key, source=source, mode=self.name, **changes), name=TABLE)


MODES = [
    Mode("append", added),
    Mode(
        "create",
        replaced,
        {"partition_by": ["day(ts)", "bucket(2, id)", "region"]},
        creates=True,
        loses=frozenset({"TableExistsError"}),
    ),
    Mode("overwrite", replaced),
    Mode("overwrite_partitions", replaced_by_partition),
    Mode("upsert", updated, {"upsert_keys": ["id"]}, loses=frozenset({"TableMovedError"})),
]

#: The two ways in which a commit is swapped in: onto the head of a branch, and in place of nothing.
SWAPS = [mode for mode in MODES if mode.name in {"append", "create"}]

#: Those, and one that removes files.
FAULTED = [mode for mode in MODES if mode.name in {"append", "create", "overwrite"}]
