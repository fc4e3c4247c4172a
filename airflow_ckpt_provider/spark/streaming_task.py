"""What a Spark task does with one partition of a micro-batch. Runs on executors, so that nothing is imported that they may lack."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from airflow_ckpt_provider.write.execution import Execution


def run_task(payload: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stage the rows of one partition under an id of this very task.

    :param payload: the pickled ``Execution``.
    :returns: one row: the id of the split. Which tasks count is what Spark says by whose rows it takes.
    """
    import pickle

    import pyarrow as pa
    from pyspark import TaskContext

    execution: Execution = pickle.loads(payload)  # noqa: S301 - from this execution's driver, over Spark's own channel
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("There is no Spark task around this call.")
    # Beside the id, because a task that Spark repeats under the same id must not write under the same name.
    split = execution.stage(batches, context.partitionId(), f"{context.taskAttemptId()}_{uuid.uuid4().hex[:6]}")
    yield pa.RecordBatch.from_pydict({"split": [split]}, schema=pa.schema([("split", pa.string())]))
