"""How the rows of a DataFrame are dealt into splits: which parameters go together, and what the shares of a bucket are.

All rows of an id have one hash, so that a bucket is as large as its ids make it: one id that half of the rows have makes one task
of half of the write. Where ``bucket_rows`` is set, the first attempt counts the rows of each bucket, before the plan is pinned, and
cuts buckets of more rows into **shares**: by another hash of the id where that evens them out, else by a hash of all columns that
are the same however often Spark computes them.

Decision: a share that is told by more than its id pins how many rows it has, and the sum of their hashes. The task that stages it
compares both before it publishes. A row of which another column has changed since may belong to another share: without that it
would land twice, or not at all, and nobody would know. So such a write fails instead; one that is told by ids alone takes what it
finds, as whole buckets do.

Decision: rows are counted only if somebody asks for it. That computes the id columns of the whole DataFrame once more, and where an
id is hot the other columns too, which pays only where all other tasks would wait for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.checkpoint.documents import READ, Part, part_of
from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Plan, Split

#: Buckets of one frame, with their shares. Each is a Spark task and a staged record.
MAX_BUCKETS = 100_000


class ShareRead(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What a split reads that is a share of a bucket.

    :param share: its number, counted from 0.
    :param rows: how many it has; None if it is told by ids alone.
    :param sum: of the hashes of its rows, as digits: the number may need more than 64 bits.
    """

    bucket: Count
    share: Count
    rows: Count | None = None
    sum: str | None = None


class Cut(NamedTuple):
    """Which buckets are cut.

    :param sizes: how many shares each of them has, by the bucket's number.
    :param by: columns that tell the shares of a bucket apart.
    :param shares: of all of them.
    """

    sizes: Mapping[int, int]
    by: Sequence[str]
    shares: Sequence[ShareRead]

    def places(self, buckets: int) -> dict[tuple[int, int], int]:
        """The number of each bucket that is whole, as share 0, and of each share, in the order of the plan."""
        every = ((bucket, share) for bucket in range(buckets) for share in range(self.sizes.get(bucket, 1)))
        return {unit: number for number, unit in enumerate(every)}


def share_of(split: Split) -> ShareRead | None:
    """What a split reads, if it is a share of a bucket."""
    return part_of(split.read, ShareRead, "read of a split") if "share" in split.read else None


def unit_of(split: Split) -> tuple[int, int]:
    """The bucket and the share that a split reads; share 0 of a bucket that is whole."""
    return part_of(split.read["bucket"], int), part_of(split.read.get("share", 0), int)


def cut_of_plan(plan: Plan, sizes: Mapping[str, int] | None, by: Sequence[str]) -> Cut | None:
    """How a plan cuts buckets.

    :param sizes: that it has pinned.
    :param by: that it has pinned.
    :returns: None if all of its buckets are whole.
    """
    if not sizes:
        return None
    shares = [share for split in plan.splits if split.task == READ and (share := share_of(split)) is not None]
    return Cut({int(bucket): count for bucket, count in sizes.items()}, by, shares)


def require_dealing(
    id_column: object, columns: Sequence[str], recover: str, buckets: int, bucket_rows: int | None, *, assert_unique: bool
) -> None:
    """Refuse parameters of a ``SparkDataFrame`` that do not go together.

    :param columns: the id columns, as a list.
    :raises InvalidInputError: saying which do.
    """
    if len(set(columns)) < len(columns) or not all(isinstance(name, str) and name for name in columns):
        raise InvalidInputError(f"SparkDataFrame(id_column={id_column!r}): must be one or several different column names.")
    if recover == "partitions" and (id_column is not None or assert_unique):
        raise InvalidInputError(
            "SparkDataFrame(recover='partitions') takes the partitions as Spark makes them: id_column and assert_unique have "
            "no meaning there. Leave them out, or use recover='buckets'."
        )
    if recover != "partitions" and not columns:
        raise InvalidInputError(
            f"SparkDataFrame(id_column={id_column!r}, recover={recover!r}): must be one or several different column names. "
            "Only recover='partitions' goes without."
        )
    if not 0 < buckets <= MAX_BUCKETS:
        raise InvalidInputError(f"SparkDataFrame(buckets={buckets}): must be between 1 and {MAX_BUCKETS}.")
    if bucket_rows is None:
        return
    if recover != "buckets":
        raise InvalidInputError(
            f"SparkDataFrame(bucket_rows={bucket_rows!r}, recover={recover!r}): it cuts buckets, and so belongs to "
            "recover='buckets', with an id_column. Recovery by rows leaves whole ids out."
        )
    if not isinstance(bucket_rows, int) or isinstance(bucket_rows, bool) or bucket_rows < 1:
        raise InvalidInputError(f"SparkDataFrame(bucket_rows={bucket_rows!r}): must be a number of rows, such as 5_000_000.")
