"""Staging the missing partitions of a DataFrame, and no others, without an id and without a shuffle of its own.

The first attempt pins what decides which rows are in which partition: the physical plan, the slices of files that each scan reads,
how many partitions there are, and Spark's version. Settings that change how input is cut, such as the number of cores, are pinned
with their values, and later attempts compute under them. A DataFrame for which any of it is other than it was is refused, and so is
one for which it cannot be told; see ``proof``.

Spark's adaptive execution is off for this job: it deals rows by what it sees while it runs.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError, StageFailedError
from airflow_ckpt_provider.sources.frame_plans import Partitions
from airflow_ckpt_provider.spark.code_shipping import is_connect
from airflow_ckpt_provider.spark.error_summary import error_summary, terminal_in
from airflow_ckpt_provider.spark.frame.buckets import require_one_of_each
from airflow_ckpt_provider.spark.frame.plans import COLUMN_NUMBERS, WHOLE_PLANS, arrow_schema
from airflow_ckpt_provider.spark.frame.proof import Proof
from airflow_ckpt_provider.spark.frame.reproducible import require_reproducible
from airflow_ckpt_provider.spark.frame.run import ARROW_BATCHES, FrameRun, built_frame, task_of
from airflow_ckpt_provider.spark.frame.task import RESULT_SCHEMA, FrameTask
from airflow_ckpt_provider.spark.session import quiet
from airflow_ckpt_provider.spark.stage import spark_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Split
    from airflow_ckpt_provider.sources.protocol import SessionSource

#: Settings that decide how rows are cut and dealt, or what a timestamp is, beside the one that is off.
_DECIDING = (
    "spark.sql.autoBroadcastJoinThreshold", "spark.sql.files.maxPartitionBytes", "spark.sql.files.maxPartitionNum",
    "spark.sql.files.minPartitionNum", "spark.sql.files.openCostInBytes", "spark.sql.leafNodeDefaultParallelism",
    "spark.sql.session.timeZone", "spark.sql.shuffle.partitions",
)  # fmt: skip

#: What Spark says of a setting that has no default.
_UNSET = "<undefined>"

#: What Spark counts up in each process, in the text of a plan.
_NUMBERS = re.compile(COLUMN_NUMBERS + r"|(?<=plan_id=)\d+|(?<=\[id=#)\d+|(?<=codegen id : )\d+")


def partitions_of(spark: SparkSession, source: SessionSource) -> Partitions:
    """What decides which rows are in which partition of a DataFrame, as it is now.

    :raises InvalidInputError: if that cannot be told, naming why.
    """
    if is_connect(spark):
        raise InvalidInputError(
            f"The DataFrame of {source.name} has no id_column, and over Spark Connect a DataFrame does not show its partitions. "
            "Name columns that identify a row: SparkDataFrame(..., id_column=[...])."
        )
    quiet()
    frame = built_frame(spark, source)
    require_one_of_each(frame.columns, source.name)
    if not source.reproducible:
        require_reproducible(spark, frame, (), source.name)
    settings = _settings(spark)
    with spark_settings(spark, _under(settings)):
        # The plan that is pinned is that of the job; what its tasks would do is not in it, but for the function's name.
        return _pinned(spark, _job(frame, task_of(b"", ())), settings, source)


class PartitionRun(FrameRun):
    """The missing partitions of one attempt, as one Spark job."""

    _unit = "partition"

    def _task(self) -> FrameTask:
        return FrameTask(self._work, self._missing(), (), placed=False, keep_ids=False, assert_unique=False)

    def _missing(self) -> dict[int, Split]:
        """The missing splits, by the numbers of their partitions."""
        return {int(str(split.read["partition"])): split for split in self._splits.values()}

    def _run_tasks(self, payload: bytes) -> list[tuple[str, str, str]]:
        source, pinned = self._source, self._plan.source_as(Partitions)
        frame = built_frame(self._spark, source)
        if self._check_fit is not None:
            self._check_fit(arrow_schema(frame.schema, f"The DataFrame of {source.name}"))
        with spark_settings(self._spark, _under(pinned.settings) | ARROW_BATCHES):
            job = _job(frame, task_of(payload, frame.columns))
            self._require_same(pinned, _pinned(self._spark, job, pinned.settings, source))
            rows = self._spark.sparkContext.runJob(job.rdd, list, partitions=list(self._missing()))
        self._publish_empty(self._splits.keys() - {row["split"] for row in rows})
        return [(row["split"], row["error"], row["message"]) for row in rows if row["error"]]

    def _require_same(self, pinned: Partitions, found: Partitions) -> None:
        """Refuse rows that are dealt otherwise than when the staged partitions were computed.

        :raises InputChangedError: naming what is other than it was.
        """
        changes = [
            f"Spark was {pinned.spark}, and is {found.spark}" if pinned.spark != found.spark else "",
            "Spark computes it by another plan" if pinned.query != found.query else "",
            f"its input is other than it was ({pinned.files:,} slices of files then, {found.files:,} now)"
            if pinned.inputs != found.inputs
            else "",
            f"it has {found.partitions} partitions, and had {pinned.partitions}" if pinned.partitions != found.partitions else "",
        ]
        if any(changes):
            raise InputChangedError(
                f"The DataFrame of {self._source.name} is not the one of which partitions are staged under the key "
                f"{self._checkpoint.key.value!r}: {'; '.join(filter(None, changes))}. Nothing was written. Restore it as it was, "
                f"or begin anew: {how_to_restart(self._checkpoint.header)}."
            )


def _job(frame: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> DataFrame:
    """What is run: a task for each partition. The columns are named by their positions, see ``buckets.placed``."""
    return frame.toDF(*(f"c{number}" for number in range(len(frame.columns)))).mapInArrow(task, RESULT_SCHEMA)


def _pinned(spark: SparkSession, job: DataFrame, settings: Mapping[str, str], source: SessionSource) -> Partitions:
    classic: Any = job
    execution = classic._jdf.queryExecution()  # noqa: SLF001 - no other way to the plan
    plan = execution.executedPlan()
    proof = Proof(plan)
    if proof.problems:
        raise InvalidInputError(
            f"The DataFrame of {source.name} cannot be recovered by Spark's partitions:\n  "
            + "\n  ".join(proof.problems)
            + "\nChange it as said; or name columns that identify a row: SparkDataFrame(..., id_column=[...])."
        )
    text = _NUMBERS.sub("#", plan.treeString())
    try:
        # Sides of joins that are sent to all executors are computed here.
        partitions = execution.toRdd().getNumPartitions()
    except Exception as error:
        said = f"The DataFrame of {source.name} could not be planned: {error_summary(error)}"
        raise terminal_in(error) or StageFailedError(said) from error
    inputs = proof.inputs()
    return Partitions(
        partitions=partitions,
        query=hashlib.sha256(text.encode()).hexdigest(),
        inputs=inputs.digest,
        files=inputs.files,
        settings=dict(settings),
        spark=spark.version,
    )


def _settings(spark: SparkSession) -> dict[str, str]:
    """The settings that decide, with the number of cores where Spark would take that: it is another one on another day."""
    cores = str(spark.sparkContext.defaultParallelism)
    told = {"spark.sql.files.minPartitionNum": cores, "spark.sql.leafNodeDefaultParallelism": cores}
    return told | {name: value for name in _DECIDING if (value := spark.conf.get(name)) not in {None, _UNSET}}


def _under(settings: Mapping[str, str]) -> dict[str, str]:
    return {"spark.sql.adaptive.enabled": "false", **WHOLE_PLANS, **settings}
