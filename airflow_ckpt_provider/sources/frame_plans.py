"""The plans of a ``SparkDataFrame``: its buckets or its partitions, and the rounds of a recovery by rows.

Where it is recovered by rows, every attempt that finds the checkpoint unsealed opens a round. Plan ``n`` lists the splits of plan
``n-1`` that were staged at that moment, the recovered ones, and the fresh splits of round ``n``: bucket by bucket, the rows whose
ids are in no recovered split. Why each id lands exactly once, whatever crashes and races:

1. Plan ``n`` is pinned by put-if-absent, so everybody agrees on which splits are recovered, and those never change (I3).
2. Fresh splits hold no id of a recovered one (anti-join) and no id of each other (buckets), whoever wrote which of them and
   whatever input they saw. A plan whose splits are all staged is therefore a whole write without doubles.
3. A split of an older round that is published after plan ``n`` was pinned is in no later plan: nobody reads it again, and its
   rows are in the fresh splits of round ``n``.
4. The seal is made of one plan and put if absent. If a slow attempt seals plan ``n`` while another one is opening ``n+1``, the
   seal holds: it is whole by 2. The newer round finds it and gives its own files up; it can not seal beside it. That no round is
   opened after a seal, and that a sealer looks for newer rounds first, only saves work.

A round names the attempt that opened it. One that does not get its plan pinned opens the next round instead of sharing this
one, so that all fresh splits of a round are one attempt's view of the input; 2 holds without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.bounds import Count  # noqa: TC001 - msgspec reads the annotations of its structs at run time
from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import READ, Pinned, Plan, Split, part_of
from airflow_ckpt_provider.sources.dealing import cut_of_plan, share_of
from airflow_ckpt_provider.sources.packing import require_each_once, strange_plan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from airflow_ckpt_provider.sources.dealing import Cut, ShareRead


class Buckets(Pinned, frozen=True, kw_only=True, omit_defaults=True, tag="dataframe"):
    """Into how many buckets ids are dealt; in recovery by rows, by which attempt, in which round, beside how many old splits.

    :param cut: into how many shares those buckets are cut that are; by their numbers.
    :param by: columns that tell the shares apart.
    """

    buckets: Count
    round: Count | None = None
    attempt: str | None = None
    recovered: Count | None = None
    cut: dict[str, Count] | None = None
    by: tuple[str, ...] = ()


class Partitions(Pinned, frozen=True, kw_only=True, tag="partitions"):
    """What decides which rows are in which partition of a DataFrame.

    :param partitions: how many there are.
    :param query: digest of the physical plan that computes them.
    :param inputs: digest of the files, and parts of files, that each partition of each scan reads.
    :param files: how many those are.
    :param settings: of the session, under which every attempt cuts the input alike.
    :param spark: version of Spark.
    """

    partitions: Count
    query: str
    inputs: str
    files: Count
    settings: dict[str, str]
    spark: str


def plan_of_buckets(buckets: int, cut: Cut | None = None) -> Plan:
    """One split per bucket, or per share of one that is cut."""
    whole = [Split(id=f"{number:06d}", bytes=0, read={"bucket": number}) for number in range(buckets)]
    if cut is None:
        return Plan(created_at=now(), source=Buckets(buckets=buckets).to_json(), splits=tuple(whole))
    shares = [_share(share) for share in cut.shares]
    splits = [split for number, split in enumerate(whole) if number not in cut.sizes] + shares
    sizes = {str(bucket): count for bucket, count in cut.sizes.items()}
    pinned = Buckets(buckets=buckets, cut=sizes, by=tuple(cut.by))
    return Plan(created_at=now(), source=pinned.to_json(), splits=tuple(sorted(splits, key=lambda split: split.id)))


def _share(share: ShareRead) -> Split:
    read: dict[str, object] = msgspec.to_builtins(share)
    return Split(id=f"{share.bucket:06d}s{share.share:06d}", bytes=0, read=read)


def cut_of(plan: Plan) -> Cut | None:
    """How a plan of buckets cuts them; None if all are whole."""
    if plan.source.get("kind") != Buckets.__struct_config__.tag:
        return None
    pinned = plan.source_as(Buckets)
    return cut_of_plan(plan, pinned.cut, pinned.by)


def plan_of_partitions(pinned: Partitions) -> Plan:
    """One split per partition of the DataFrame."""
    splits = tuple(Split(id=f"{number:06d}", bytes=0, read={"partition": number}) for number in range(pinned.partitions))
    return Plan(created_at=now(), source=pinned.to_json(), splits=splits)


def next_round(buckets: int, rounds: Sequence[Plan], staged_ids: AbstractSet[str], attempt: str) -> Plan:
    """The plan of the next round of a recovery by rows: what is staged of the last one, and every bucket for all other rows.

    :param rounds: all pinned plans, oldest first.
    :param attempt: id of the attempt that opens the round.
    """
    recovered = [split for split in rounds[-1].splits if split.id in staged_ids] if rounds else []
    return _round(buckets, recovered, len(rounds) + 1, attempt)


def buckets_again(buckets: int, plan: Plan, staged_ids: AbstractSet[str], number: int, attempt: str) -> Plan:
    """``plan`` with every bucket once more, for the rows of those splits of the source that are not staged.

    :param number: of the round that it becomes.
    """
    of_table = tuple(split for split in plan.splits if split.task != READ)
    recovered = [split for split in plan.splits if split.task == READ and split.id in staged_ids]
    fresh = _round(buckets, recovered, number, attempt)
    return msgspec.structs.replace(plan, source=fresh.source, splits=fresh.splits + of_table)


def _round(buckets: int, recovered: Sequence[Split], number: int, attempt: str) -> Plan:
    fresh = tuple(
        Split(id=f"r{number:04d}p{bucket:06d}", bytes=0, read={"bucket": bucket, "round": number}) for bucket in range(buckets)
    )
    pinned = Buckets(buckets=buckets, round=number, attempt=attempt, recovered=len(recovered))
    return Plan(created_at=now(), source=pinned.to_json(), splits=(*recovered, *fresh))


def require_each_partition(plan: Plan, name: str) -> None:
    """Refuse a partition that is computed twice, or not at all; see ``AccountingSource``.

    :param name: of the source, for messages.
    """
    numbers = [part_of(split.read["partition"], int) for split in plan.splits if split.task == READ]
    every = {f"partition {number}" for number in range(plan.source_as(Partitions).partitions)}
    require_each_once((f"partition {number}" for number in numbers), name, every)


def require_each_bucket(plan: Plan, buckets: int, name: str) -> None:
    """Refuse a bucket that is computed twice, or not at all in the last round; see ``AccountingSource``.

    :param name: of the source, for messages.
    """
    if cut_of(plan) is not None:
        _require_each_share(plan, buckets, name)
        return
    of_source = [split for split in plan.splits if split.task == READ]
    reads = [(part_of(split.read.get("round", 0), int), part_of(split.read["bucket"], int)) for split in of_source]
    last = max((number for number, _ in reads), default=0)
    every = {f"bucket {bucket} of round {last}" for bucket in range(buckets)}
    require_each_once((f"bucket {bucket} of round {number}" for number, bucket in reads), name, every)


def _require_each_share(plan: Plan, buckets: int, name: str) -> None:
    sizes = plan.source_as(Buckets).cut or {}

    def named(bucket: int, share: int | None) -> str:
        return f"bucket {bucket}" if share is None else f"share {share} of bucket {bucket}"

    every = {
        named(bucket, share)
        for bucket in range(buckets)
        for share in (range(sizes[str(bucket)]) if str(bucket) in sizes else (None,))
    }
    reads = []
    for split in plan.splits:
        if split.task == READ:
            share = share_of(split)
            reads.append(named(part_of(split.read["bucket"], int), None if share is None else share.share))
    require_each_once(reads, name, every)
    if strange := sorted(set(reads) - every):
        raise strange_plan(f"reads {strange[0]} of {name}, which it does not list")


def recovered_splits(plan: Plan) -> list[Split]:
    """The splits of ``plan`` that earlier rounds staged; none unless recovery is by rows."""
    rounds = {split.id: int(str(split.read["round"])) for split in plan.splits if split.task == READ and "round" in split.read}
    newest = max(rounds.values(), default=0)
    return [split for split in plan.splits if rounds.get(split.id, newest) < newest]
