"""The writes that are stopped at every effect: an unpartitioned table, a partitioned one, and two mapped tasks in one commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, IdentityTransform
from support.world import World

if TYPE_CHECKING:
    from pathlib import Path

#: Kind and bucket of the id: several open files in every split.
_BY_KIND = PartitionSpec(
    PartitionField(3, 1000, IdentityTransform(), "kind"), PartitionField(1, 1001, BucketTransform(2), "id_bucket"), spec_id=0
)


@dataclass(frozen=True)
class Scenario:
    """A world to be, and what is written in it."""

    name: str
    files: int
    rows_each: int
    spec: PartitionSpec
    writes: tuple[dict[str, Any], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(facts.get("key", "orders") for facts in self.writes)

    @property
    def ids(self) -> list[int]:
        return list(range(self.files * self.rows_each))

    def world(self, root: Path) -> World:
        world = World(root)
        world.create_table(spec=self.spec)
        world.put_files(self.files, self.rows_each)
        return world


UNPARTITIONED = Scenario("unpartitioned", 3, 20, UNPARTITIONED_PARTITION_SPEC, ({},))
PARTITIONED = Scenario("partitioned", 2, 4, _BY_KIND, ({},))
MAPPED = Scenario(
    "two mapped tasks, one commit",
    4,
    10,
    UNPARTITIONED_PARTITION_SPEC,
    ({"key": "orders/0", "input": "[01].parquet"}, {"key": "orders/1", "input": "[23].parquet"}),
)
