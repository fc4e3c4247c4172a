"""The writes that are stopped at every effect: every mode, unpartitioned and partitioned, and two mapped tasks in one commit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from protocol.crash.maintenance import foreign_append
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType
from support.world import World

if TYPE_CHECKING:
    from pathlib import Path

#: Kind and bucket of the id: several open files in every split.
_BY_KIND = PartitionSpec(
    PartitionField(3, 1000, IdentityTransform(), "kind"), PartitionField(1, 1001, BucketTransform(2), "id_bucket"), spec_id=0
)


@dataclass(frozen=True)
class Scenario:
    """A world to be, and what is written in it.

    :param before: ids of the rows that are in the table before; None if there is no table.
    :param kept: those of them that are there after.
    """

    name: str
    files: int
    rows_each: int
    spec: PartitionSpec
    writes: tuple[dict[str, Any], ...]
    before: range | None = range(0)
    kept: tuple[int, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(facts.get("key", "orders") for facts in self.writes)

    @property
    def ids(self) -> list[int]:
        return [*range(self.files * self.rows_each), *self.kept]

    def world(self, root: Path) -> World:
        world = World(root)
        if self.before is not None:
            world.create_table(spec=self.spec)
        if self.before:
            foreign_append(world, self.before.start, len(self.before))
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

_BEFORE = range(1000, 1006)

CREATE = Scenario(
    "create", 2, 4, UNPARTITIONED_PARTITION_SPEC, ({"mode": "create", "parameters": {"partition_by": ["kind"]}},), before=None
)
#: The table comes into being with the rows, as with ``create``, because there is none.
MAKES = replace(CREATE, name="append to a table that is missing", writes=({"parameters": {"create_if_missing": True}},))
UPSERT_MAKES = replace(
    CREATE,
    name="upsert into a table that is missing",
    writes=({"mode": "upsert", "parameters": {"upsert_keys": ["id"], "create_if_missing": True}},),
)
OVERWRITE = Scenario("overwrite", 2, 2, UNPARTITIONED_PARTITION_SPEC, ({"mode": "overwrite"},), _BEFORE)
#: The file that is there holds rows that match and rows that do not: it is rewritten.
WHERE = Scenario(
    "overwrite with a filter",
    2,
    2,
    UNPARTITIONED_PARTITION_SPEC,
    ({"mode": "overwrite", "parameters": {"overwrite_filter": "id < 1003"}},),
    _BEFORE,
    (1003, 1004, 1005),
)
#: Of three kinds that are there, two are written.
PARTITIONS = Scenario(
    "overwrite_partitions",
    2,
    1,
    PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "kind"), spec_id=0),
    ({"mode": "overwrite_partitions"},),
    _BEFORE,
    (1001, 1004),
)

#: Of the rows that are there, two are updated; two new ones are inserted.
UPSERT = Scenario(
    "upsert",
    2,
    2,
    UNPARTITIONED_PARTITION_SPEC,
    ({"mode": "upsert", "parameters": {"upsert_keys": ["id"]}, "marked": True},),
    range(2, 6),
    (4, 5),
)

#: Each split is saved in three pieces before it is whole.
PIECES = Scenario("in pieces", 2, 5, UNPARTITIONED_PARTITION_SPEC, ({"save_every": 2},))
PIECES_PARTITIONED = replace(PIECES, name="in pieces, partitioned", files=1, rows_each=3, spec=_BY_KIND)
UPSERT_PIECES = replace(UPSERT, name="upsert, in pieces", writes=({**UPSERT.writes[0], "save_every": 1},))

_IN_BUCKETS = PartitionSpec(PartitionField(1, 1000, BucketTransform(8), "id_bucket"), spec_id=0)


def _bucket(number: int) -> int | None:
    return BucketTransform(8).transform(LongType())(number)


#: All modes but ``append``, one scenario each.
MODES = [CREATE, OVERWRITE, WHERE, PARTITIONS, UPSERT]

#: The same over another partitioning: none where there is one above, kind and bucket of the id where there is none.
ELSEWHERE = [
    replace(CREATE, name="create, unpartitioned", writes=({"mode": "create"},)),
    *(replace(one, name=f"{one.name}, partitioned", spec=_BY_KIND) for one in (OVERWRITE, WHERE, UPSERT)),
    replace(
        PARTITIONS,
        name="overwrite_partitions, in buckets",
        spec=_IN_BUCKETS,
        kept=tuple(n for n in _BEFORE if _bucket(n) not in {_bucket(0), _bucket(1)}),
    ),
]
