"""Rows of the input that were rejected, because the transform failed at them: which of them a write leaves out, and which run
again.

A task that goes on behind such a row keeps it, with what the error said, in a file ``rejected/<split>-<writer>.parquet`` of the
store. The file is put before the record that names it: that of the split, or of its piece. A file that no record names is not part
of the write. While the write is not sealed, a later attempt runs rejected rows again, in a round that lists further splits: each
reads files that the record of another split names, and has a record of its own, with the rows that came right and those that did
not.

Decision: a split that reads rejected rows stands and falls with the split that they are of. If that is staged again, because a
file of it is gone, its rows are all computed again, those that were rejected too.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import AGAIN, RejectedFile, Split, part_of
from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import CorruptObjectError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from airflow_ckpt_provider.checkpoint.documents import Header, Plan, Staged

_BEHIND = re.compile(r"e\d+(y\d+)?$")


def files_of(split: Split) -> list[RejectedFile]:
    """The files of rejected rows that a split reads again."""
    return part_of(split.read.get("files"), list[RejectedFile]) if split.task == AGAIN else []


def left_out(plan: Plan, records: Iterable[Staged]) -> list[RejectedFile]:
    """Rejected rows that no split of a plan reads again.

    :param plan: one that lists all splits of the input.
    :param records: of these, as far as they are staged.
    """
    read_again = {(file.split, file.writer) for split in plan.splits for file in files_of(split)}
    return [file for record in records for file in record.rejected if (file.split, file.writer) not in read_again]


def run_again(plan: Plan, files: Sequence[RejectedFile], number: int) -> Plan:
    """``plan`` as the round ``number``, with further splits that read these files: one for each split that they are of."""
    tasks = {split.id: split.task for split in plan.splits}
    of_split: dict[str, list[RejectedFile]] = {}
    for file in files:
        of_split.setdefault(file.split, []).append(file)
    # What a split has rejected, and what has failed again of it, may run in one round.
    of_first: Counter[str] = Counter()
    more: list[Split] = []
    for split_id, of_this in of_split.items():
        first = _BEHIND.sub("", split_id) if tasks[split_id] == AGAIN else split_id
        name = f"{first}e{number}" + (f"y{of_first[first]}" if of_first[first] else "")
        of_first[first] += 1
        size, read = sum(file.bytes for file in of_this), {"files": msgspec.to_builtins(of_this)}
        more.append(Split(id=name, bytes=size, read=read, task=AGAIN))
    return msgspec.structs.replace(plan, created_at=now(), splits=(*plan.splits, *more))


def with_their_splits(plan: Plan) -> Plan:
    """``plan`` without splits that read rejected rows of another split which is not part of it any more."""
    splits = plan.splits
    while True:
        ids = {split.id for split in splits}
        left = tuple(split for split in splits if all(file.split in ids for file in files_of(split)))
        if len(left) == len(splits):
            return plan if len(left) == len(plan.splits) else msgspec.structs.replace(plan, splits=left)
        splits = left


def require_named(plan: Plan, records: Collection[Staged], header: Header) -> None:
    """Refuse a plan by which rejected rows are read twice, or which reads what no record names (I2, I15).

    :param records: of the splits of the input that are staged.
    :raises CorruptObjectError: naming a split.
    """
    named = {(file.split, file.writer): file for record in records for file in record.rejected if file.split == record.split}
    for split in plan.splits:
        for file in files_of(split):
            if named.pop((file.split, file.writer), None) != file:
                raise CorruptObjectError(
                    f"The plan of the key {header.key!r} in the checkpoint store lets the split {split.id} read rejected rows of "
                    f"the split {file.split} that its record does not name, or that another split reads too. The store was "
                    f"altered; nothing was changed. Redo the write: {how_to_restart(header)}."
                )
