"""One execution of a save: an engine runs the query and says at the end which of its tasks count. Knows no engine.

It is opened in one process, its tasks stage in others, and it is sealed in a third one. See ``sources.saved`` for why each row
lands once. Nothing is ever deleted here: what an execution leaves behind is known by its names, and a slow one may still seal it.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.staged_write import sealed_of
from airflow_ckpt_provider.exceptions import CorruptObjectError, DiscardedError, InvalidInputError
from airflow_ckpt_provider.sources.saved import plan_of
from airflow_ckpt_provider.write import commits
from airflow_ckpt_provider.write.attempt import WriteAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Seal
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.request import WriteRequest
    from airflow_ckpt_provider.write.work import SplitWork


@dataclass(frozen=True)
class Execution:
    """What the processes of one execution have in common. Travels by pickle, never into the store.

    :param id: unique; part of the ids of all its splits.
    :param generation: that it stages for.
    :param work: what its tasks do; None if the key is sealed already, so that there is nothing to do.
    """

    id: str
    generation: int
    work: SplitWork | None

    def stage(self, batches: Iterable[pa.RecordBatch], partition: int, task_attempt: str) -> str | None:
        """Stage the rows of one task. Each attempt of a task stages a split of its own: the engine says later which counts.

        :param task_attempt: unique within the execution.
        :returns: the id of the split; None if there is nothing to do, for which no row is asked for.
        :raises InvalidInputError: if the checkpoint store is not the one of the driver.
        """
        work = self.work
        if work is None:
            return None
        if work.store.location.is_local and not work.store.exists(work.paths.header):
            raise InvalidInputError(
                f"The checkpoint store {work.store.uri} is on the machine of the driver only: the executors cannot see it. Put it "
                "into object storage (s3://, gs://, az://)."
            )
        split_id = f"x{self.id}p{partition:06d}t{task_attempt}"
        work.stage(split_id, (batch for batch in batches if batch.num_rows), task_attempt)
        return split_id

    def require_owned(self, split_ids: Sequence[str]) -> None:
        """Refuse splits that are not one of each partition of this execution (I2).

        :raises CorruptObjectError: naming one.
        """
        own_id = re.compile(rf"x{self.id}p([0-9]+)t[0-9A-Za-z_]+")
        partitions = set()
        for split_id in split_ids:
            match = own_id.fullmatch(split_id)
            if match is None or match[1] in partitions:
                raise CorruptObjectError(
                    f"The split {split_id} is none of the execution {self.id}, or a second one of a partition. Nothing was sealed."
                )
            partitions.add(match[1])


def opened(attempt: WriteAttempt, columns: pa.Schema, engine: str) -> Execution:
    """A new execution.

    :param columns: of the rows that it saves.
    :param engine: what the attempt is recorded with.
    :raises SchemaMismatchError: if the rows do not fit the table.
    """
    work = None
    if attempt.commit is None and not attempt.is_whole():
        if attempt.check_fit is not None:
            attempt.check_fit(columns)
        work = attempt.begin(engine, 1)
    return Execution(uuid.uuid4().hex[:12], attempt.checkpoint.header.generation, work)


class Saved(NamedTuple):
    """What a save has come to.

    :param is_own: whether its own rows are sealed; if not, those of an earlier or faster execution are.
    """

    checkpoint: Checkpoint
    seal: Seal
    is_own: bool


def sealed(store: CheckpointStore, table: Table, request: WriteRequest, execution: Execution, split_ids: Sequence[str]) -> Saved:
    """Seal exactly these splits, unless another execution has sealed.

    :param request: as the execution was opened with; its source is a ``SavedRows``.
    :param split_ids: of the tasks that count, one for each partition.
    :raises DiscardedError: if the generation was given up meanwhile.
    """
    execution.require_owned(split_ids)
    checkpoint = Checkpoint.at(store, request.key, execution.generation)
    if commits.landed(checkpoint, table) is not None:
        return Saved(checkpoint, sealed_of(checkpoint), is_own=False)
    attempt = WriteAttempt(store, table, request)
    if attempt.checkpoint.header.generation != execution.generation:
        raise DiscardedError(
            f"Generation {execution.generation} of the key {request.key.value!r} was given up while its rows were written. Nothing "
            "was sealed; save again."
        )
    if execution.work is not None and attempt.commit is None and not attempt.is_whole():
        attempt.pin_staged(plan_of(execution.id, split_ids))
    seal = attempt.seal()
    plan = attempt.checkpoint.plan(seal.round)
    is_own = (
        plan is not None and {split.id for split in plan.splits} == set(split_ids) and plan.source.get("execution") == execution.id
    )
    return Saved(attempt.checkpoint, seal, is_own)
