"""What a Spark task does with one bucket of a DataFrame: check whose it is, keep its ids, write it, publish it.

The bucket is told by the data and by the number of the partition, which must agree: whatever an optimizer does with the plan,
rows of two buckets are never published as one. Ids are taken before the transform, so a row that it drops or explodes is done.

A bucket is published in pieces if its rows come sorted by their ids; see ``write.bucket``. Others are staged as a whole, or not at
all: where ids are kept, because the next attempt computes all rows that are not staged as buckets of its own; partitions; and
buckets of groups, of which none is done before the rows behind it are read. So are shares of a bucket that are told by rows: at
their end it is known that they are those that were counted.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError, TerminalError
from airflow_ckpt_provider.sources.dealing import share_of
from airflow_ckpt_provider.spark.frame.buckets import HASH, PLACE
from airflow_ckpt_provider.spark.frame.ids import IdFile
from airflow_ckpt_provider.write.bucket import BucketInPieces
from airflow_ckpt_provider.write.ordered import OrderedRows
from airflow_ckpt_provider.write.work import SplitInPieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Header, Split
    from airflow_ckpt_provider.sources.dealing import ShareRead
    from airflow_ckpt_provider.write.work import SplitWork

#: What a task says of a bucket whose pieces do not count.
CHANGED = "changed"


class TaskResult(NamedTuple):
    """The row that a task returns, with the names of its columns, which are those of the tasks of a ``StageRun``.

    :param error: the class of an error that no repetition can cure.
    :param message: of the error; without one, ``CHANGED`` or nothing.
    """

    split: str
    error: str | None = None
    message: str | None = None


RESULT_SCHEMA = ", ".join(f"{name} string" for name in TaskResult._fields)

#: Ids that the message about duplicates shows.
_EXAMPLES = 5


class CountedShare:
    """The rows of a share of a bucket, compared with those that were counted when the write was planned.

    :param share: what was counted.
    :param header: of the write, for messages.
    """

    def __init__(self, share: ShareRead, header: Header) -> None:
        self._share = share
        self._header = header
        self._rows = 0
        self._sum = 0

    def add(self, hashes: pa.Array) -> None:
        """Count the rows of a batch.

        :param hashes: of its rows, 64 bits each.
        """
        import numpy as np

        values = hashes.to_numpy()
        self._rows += len(values)
        # In halves, each of which has room for the sum of a batch.
        self._sum += (int((values >> 32).sum(dtype=np.int64)) << 32) + int((values & 0xFFFFFFFF).sum(dtype=np.int64))

    def require(self) -> None:
        """Refuse other rows than were counted; a share that is told by ids alone takes what there is.

        :raises InputChangedError: saying how they differ.
        """
        share, key = self._share, self._header.key
        if share.sum is None or (self._rows, str(self._sum)) == (share.rows, share.sum):
            return
        how = f"{share.rows:,} rows were counted, and there are {self._rows:,}" if self._rows != share.rows else "rows are others"
        raise InputChangedError(
            f"Share {share.share} of bucket {share.bucket} does not have the rows that it had when the write under the key {key!r} "
            f"was planned: {how}. Nothing of it was published: a row that changed may have moved from a share that is staged into "
            "one that is not, or the other way round. If the input was changed, restore it. If a column is not the same each time "
            f"that Spark computes it, leave it or bucket_rows out, and begin anew: {how_to_restart(self._header)}."
        )


@dataclass(frozen=True)
class FrameTask:
    """Stages the one bucket that lies in a partition, or the partition itself.

    :param splits: by the number of the partition.
    :param placed: whether the rows say in their first column in which partition they have to be.
    :param keep_ids: whether to keep the ids of the rows beside the split.
    :param assert_unique: whether an id that occurs twice is an error.
    :param in_order: whether the rows of a bucket are sorted by their ids, and it is published in pieces.
    :param hashed: whether the rows have a hash behind their place, because buckets are cut.
    """

    work: SplitWork
    splits: Mapping[int, Split]
    id_columns: tuple[str, ...]
    placed: bool
    keep_ids: bool
    assert_unique: bool
    in_order: bool = False
    hashed: bool = False

    def run(
        self, batches: Iterator[pa.RecordBatch], partition: int, task_attempt: str, *, repeated: bool = False
    ) -> TaskResult | None:
        """Stage the partition's bucket.

        :param batches: its rows, with the place among the buckets as first column, and the hash behind it where buckets are cut.
        :param repeated: whether Spark runs the task again, which may have left pieces since the attempt began.
        :returns: None if there are no rows, which says nothing about any bucket.
        """
        rows = self._own(batches, partition) if self.placed else (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        if first is None:
            return None
        split, work = self.splits[partition], self.work
        split_id, result = split.id, TaskResult(split.id)
        if work.is_staged(split_id):
            return result
        author = f"{work.attempt_id}.{task_attempt}"
        share = share_of(split)
        if self.in_order and (share is None or share.sum is None):
            with OrderedRows(self._noted(first, rows, None, in_order=True), self.id_columns) as in_order:
                bucket = BucketInPieces(work, split, author, in_order)
                bucket.stage(repeated=repeated)
            return result._replace(message=CHANGED if bucket.has_changed else None)
        if not self.keep_ids:
            work.stage(split_id, self._noted(first, rows, None), task_attempt)
            # Earlier attempts may have been told to save some.
            SplitInPieces(work, split, author).remove()
            return result
        with IdFile(work.store, work.paths.ids(split_id, author)) as ids:
            # The writer takes all rows before it publishes, so the ids are in the store by then.
            if not work.stage(split_id, self._noted(first, rows, ids), task_attempt):
                ids.remove()
        return result

    def _own(self, batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
        """The rows without their place, which must be this partition's; and at their end, those of a share must be all of it."""
        import pyarrow.compute as pc

        share = share_of(self.splits[partition])
        counted = None if share is None else CountedShare(share, self.work.header)
        begin = 2 if self.hashed else 1
        for batch in batches:
            if not batch.num_rows:
                continue
            buckets = pc.min_max(batch.column(0)).as_py()
            if buckets != {"min": partition, "max": partition}:
                raise TerminalError(
                    f"Spark put rows of the buckets {buckets['min']} to {buckets['max']} into partition {partition}. "
                    "Nothing of it was published. This is an error of this provider or of Spark; report it with the plan of "
                    "the DataFrame."
                )
            if counted is not None:
                counted.add(batch.column(1))
            yield batch.select(range(begin, batch.num_columns))
        if counted is not None:
            counted.require()

    def _noted(
        self, first: pa.RecordBatch, rows: Iterator[pa.RecordBatch], kept: IdFile | None, *, in_order: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """All rows, with their ids kept as they pass and checked at the end.

        Rows in order are checked before they are given out: a piece that has an id twice would not count any more for rows that
        have it once.
        """
        seen: list[pa.RecordBatch] = []
        batch: pa.RecordBatch | None = first
        while batch is not None:
            ids = batch.select(list(self.id_columns))
            if kept is not None:
                kept.write(ids)
            if self.assert_unique:
                seen.append(ids)
            if seen and in_order:
                if occurring_twice(seen).num_rows:
                    # The message counts all of them, and no function is called for that.
                    seen += [later.select(list(self.id_columns)) for later in rows]
                    require_unique(seen)
                seen = [ids.slice(ids.num_rows - 1)]
            yield batch
            batch = next(rows, None)
        if seen:
            require_unique(seen)
        if kept is not None:
            kept.publish()


def occurring_twice(ids: Sequence[pa.RecordBatch]) -> pa.Table:
    """Of ids that occur more than once, how often (``row_count``) and in which row first (``row_min``), in that order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from airflow_ckpt_provider.tables.keys.values import canonical

    table = pa.Table.from_batches(ids)
    # As upserts and Spark compare keys: -0.0 is 0.0, and NaN is NaN.
    keys = {str(number): canonical(column) for number, column in enumerate(table.columns)}
    places = pa.table({**keys, "row": pa.array(range(table.num_rows), pa.int64())})
    counted = places.group_by(list(keys)).aggregate([("row", "count"), ("row", "min")])
    return counted.filter(pc.greater(counted["row_count"], 1)).sort_by("row_min")


def require_unique(ids: Sequence[pa.RecordBatch]) -> None:
    """Refuse ids that occur more than once. All rows of an id are in one bucket, so looking at one bucket is enough.

    :raises InvalidInputError: with examples.
    """
    import pyarrow as pa

    twice = occurring_twice(ids)
    if twice.num_rows:
        examples = twice.slice(0, _EXAMPLES)
        shown = "; ".join(
            ", ".join(f"{name}={value!r}" for name, value in row.items()) + f": {times} rows"
            for row, times in zip(
                pa.Table.from_batches(ids).take(examples["row_min"]).to_pylist(), examples["row_count"].to_pylist(), strict=True
            )
        )
        raise InvalidInputError(
            f"assert_unique: {twice.num_rows} ids occur more than once in this bucket, for instance {shown}. Nothing is committed, "
            "and what is staged stays. Remove the duplicates from the data that is read and run the task again: it goes on with "
            "the rest. Other code in build, or other id columns, makes another input, which begins anew."
        )


def run_task(payload: bytes, names: Sequence[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark runs on the executor. An error that no repetition can cure is returned as a row, not raised.

    :param names: the columns' own names, behind the place if they have one.
    """
    import pickle

    import pyarrow as pa
    from pyspark import TaskContext

    task: FrameTask = pickle.loads(payload)  # noqa: S301 - from this attempt's driver, over Spark's own channel
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("There is no Spark task around this call.")
    partition = context.partitionId()
    try:
        # Beside the id, because a task that Spark repeats under the same id must not write under the same name.
        named = [*([PLACE] if task.placed else []), *([HASH] if task.hashed else []), *names]
        rows = (batch.rename_columns(named) for batch in batches)
        name = f"{context.taskAttemptId()}_{uuid.uuid4().hex[:6]}"
        result = task.run(rows, partition, name, repeated=context.attemptNumber() > 0)
    except TerminalError as problem:
        result = TaskResult(task.splits[partition].id, type(problem).__name__, str(problem))
    if result is not None:
        row: dict[str, Any] = {name: [value] for name, value in result._asdict().items()}
        yield pa.RecordBatch.from_pydict(row, schema=pa.schema([(name, pa.string()) for name in TaskResult._fields]))
