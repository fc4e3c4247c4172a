"""Staging the missing buckets of a DataFrame as one Spark job. It is started, watched and stopped as any other stage.

Decision: buckets without rows are staged by the driver, after the job. Spark may drop partitions that it knows to be empty, with
their tasks; and once the job has succeeded, every row was in front of some task, so a bucket that none of them saw has no rows.
"""

from __future__ import annotations

import dataclasses
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.restart import how_to_restart
from airflow_ckpt_provider.exceptions import InputChangedError, InvalidInputError, StageFailedError, TerminalError
from airflow_ckpt_provider.sources.dealing import share_of, unit_of
from airflow_ckpt_provider.sources.frame_plans import cut_of, recovered_splits
from airflow_ckpt_provider.sources.grouped import GroupedRows
from airflow_ckpt_provider.spark.error_summary import error_summary
from airflow_ckpt_provider.spark.frame.buckets import bucket_sql, canonical, placed, placed_shares, share_hash_sql, sorted_by
from airflow_ckpt_provider.spark.frame.grouped import grouped_frame, needed_columns
from airflow_ckpt_provider.spark.frame.ids import EMPTY_WRITER, staged_ids, without_staged
from airflow_ckpt_provider.spark.frame.plans import arrow_schema
from airflow_ckpt_provider.spark.frame.reproducible import require_reproducible
from airflow_ckpt_provider.spark.frame.skew import skew_of
from airflow_ckpt_provider.spark.frame.task import CHANGED, RESULT_SCHEMA, CountedShare, FrameTask
from airflow_ckpt_provider.spark.stage import StageRun, spark_settings
from airflow_ckpt_provider.write.rounds import Progress
from airflow_ckpt_provider.write.work import SplitInPieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import Plan, Split
    from airflow_ckpt_provider.sources.dealing import Cut
    from airflow_ckpt_provider.sources.protocol import SessionSource
    from airflow_ckpt_provider.write.work import SplitWork

#: Rows and bytes of an Arrow batch from the JVM: Spark's 10,000 rows cost a tenth more; the bytes bound rows that are wide.
ARROW_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100000", "spark.sql.execution.arrow.maxBytesPerBatch": "16m"}

#: Empty buckets published at the same time.
_PUBLISHERS = 16


@dataclasses.dataclass(frozen=True)
class FrameProgress(Progress):
    """Progress in buckets or partitions: nobody knows the bytes behind a DataFrame.

    :param unit: what a split is: ``bucket`` or ``partition``.
    """

    unit: str = "bucket"

    @property
    def eta_s(self) -> float | None:
        written = self.done - self.recovered
        return self.seconds * (self.total - self.done) / written if written else None

    def __str__(self) -> str:
        eta = "?" if self.eta_s is None else f"{self.eta_s:.0f} s"
        what = f"{self.done}/{self.total} {self.unit}s staged ({self.recovered} recovered), {self.rows:,} rows written"
        return f"{what}{self._saved_rows}, ETA {eta}"


class FrameRun(StageRun):
    """The missing buckets of one attempt, as one Spark job.

    :param spark: an open session; classic or Connect.
    :param work: what is done with the rows of a bucket.
    :param plan: the plan of the round that this attempt works on.
    :param splits: those of its splits that are not staged.
    :param check_fit: refuses a schema that does not fit the table; None if a transform changes the schema.
    """

    #: What a split is.
    _unit = "bucket"

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        work: SplitWork,
        source: SessionSource,
        plan: Plan,
        splits: Sequence[Split],
        check_fit: Callable[[pa.Schema], None] | None = None,
    ) -> None:
        super().__init__(spark, checkpoint, work, splits, len(plan.splits) - len(splits))
        self._source = source
        self._plan = plan
        self._check_fit = check_fit
        #: Buckets of which pieces were saved that do not count, because their rows are others now.
        self._changed = 0
        self._cut = cut_of(plan)

    def progress(self) -> FrameProgress:
        """How far the stage is, from what is in the store."""
        of_job = super().progress()
        facts = {field.name: getattr(of_job, field.name) for field in dataclasses.fields(of_job)}
        if of_job.done == of_job.total and self._has_ended:
            facts["skew"] = skew_of(self._seen, self._unit)
            facts["changed"] = self._changed
        return FrameProgress(**facts, unit=self._unit)

    def _task(self) -> FrameTask:
        source = self._source
        return FrameTask(
            work=self._work,
            splits=dict(enumerate(self._splits.values())),
            id_columns=tuple(source.id_column),
            placed=True,
            keep_ids=source.recover == "rows",
            assert_unique=source.assert_unique,
            in_order=self._in_order,
            hashed=self._cut is not None,
        )

    @property
    def _in_order(self) -> bool:
        """True if tasks publish buckets in pieces, for which Spark has to sort their rows."""
        work, source = self._work, self._source
        is_of_rows = work.transform is not None and not isinstance(source, GroupedRows)
        return work.save.buckets and is_of_rows and source.recover == "buckets"

    def _run_tasks(self, payload: bytes) -> list[tuple[str, str, str]]:
        frame, names = self._missing_rows()
        with spark_settings(self._spark, ARROW_BATCHES):
            staged = frame.mapInArrow(task_of(payload, names), RESULT_SCHEMA)
            rows = [(row["split"], row["error"], row["message"]) for row in staged.collect()]
        self._publish_empty(self._splits.keys() - {split_id for split_id, _, _ in rows})
        self._changed = sum(error is None and message == CHANGED for _, error, message in rows)
        return [row for row in rows if row[1]]

    def _missing_rows(self) -> tuple[DataFrame, list[str]]:
        """The rows to write, one bucket in each partition, and their columns' own names.

        Refused before any task runs if they can not be staged safely.
        """
        source = self._source
        frame = self._frame()
        kinds = canonical(frame.schema, source.id_column, source.name)
        if self._check_fit is not None:
            self._check_fit(arrow_schema(frame.schema, f"The DataFrame of {source.name}"))
        if not source.reproducible:
            require_reproducible(self._spark, frame, source.id_column, source.name)
        recovered = [split.id for split in recovered_splits(self._plan)]
        staged = staged_ids(self._checkpoint, recovered)
        store = self._checkpoint.store.of_generation(self._checkpoint.paths)
        rows = without_staged(self._spark, frame, store, staged, source.id_column, kinds)
        units = [unit_of(split) for split in self._splits.values()]
        if self._cut is None:
            buckets = placed(rows, source.id_column, kinds, source.buckets, [bucket for bucket, _ in units])
        else:
            self._require_columns(self._cut, frame)
            bucket = bucket_sql(source.id_column, kinds, source.buckets)
            share_hash = share_hash_sql(frame.schema, self._cut.by, source.name)
            buckets = placed_shares(rows, bucket, share_hash, source.buckets, self._cut, units)
        if isinstance(source, GroupedRows):
            buckets = sorted_by(buckets, frame, source.sorted_by, kinds)
        elif self._in_order:
            buckets = sorted_by(buckets, frame, source.id_column, kinds)
        return buckets, frame.columns

    def _require_columns(self, cut: Cut, frame: DataFrame) -> None:
        """Refuse a DataFrame without columns by which buckets were cut.

        :raises InputChangedError: naming them.
        """
        gone = [column for column in cut.by if column not in frame.columns]
        if gone:
            raise InputChangedError(
                f"The DataFrame of {self._source.name} has no column {', '.join(gone)} any more, by which its largest buckets were "
                f"cut under the key {self._checkpoint.key.value!r}. Nothing was written. Restore it as it was, or begin anew: "
                f"{how_to_restart(self._checkpoint.header)}."
            )

    def _frame(self) -> DataFrame:
        """What is shuffled."""
        source = self._source
        if not isinstance(source, GroupedRows):
            return built_frame(self._spark, source)
        if not source.is_frame:
            return grouped_frame(self._spark, source, self._plan)
        return needed_columns(built_frame(self._spark, source), source)

    def _publish_empty(self, split_ids: set[str]) -> None:
        with ThreadPoolExecutor(_PUBLISHERS) as pool:
            for _ in pool.map(self._publish_as_empty, sorted(split_ids)):
                pass

    def _publish_as_empty(self, split_id: str) -> None:
        if (share := share_of(self._splits[split_id])) is not None:
            CountedShare(share, self._work.header).require()
        self._work.stage(split_id, (), EMPTY_WRITER)
        # Earlier attempts may have done rows that there are no more.
        SplitInPieces(self._work, self._splits[split_id], EMPTY_WRITER).remove()


def task_of(payload: bytes, names: Sequence[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a Spark task runs. Spark's plan, and its page, show the name of the function."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from airflow_ckpt_provider.spark.frame.task import run_task

        return run_task(payload, names, batches)

    return task


def built_frame(spark: SparkSession, source: SessionSource) -> DataFrame:
    """What the function of a source returns, analysed."""
    from pyspark.sql import DataFrame

    try:
        frame = source.frame(spark)
        if isinstance(frame, DataFrame) and not frame.isStreaming:
            frame.schema  # noqa: B018 - a Connect session analyses it now, and says what is wrong
    except TerminalError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)
        line = next((f" ({at.filename}, line {at.lineno}, in {at.name})" for at in reversed(place) if _theirs(at.filename)), "")
        said = f"{type(error).__name__}: {error_summary(error)}"
        raise StageFailedError(f"The DataFrame of {source.name} could not be made: {said}{line}") from error
    if not isinstance(frame, DataFrame):
        raise InvalidInputError(
            f"The function {source.name} of SparkDataFrame returned a {type(frame).__name__}; it must return a Spark DataFrame."
        )
    if frame.isStreaming:
        raise InvalidInputError(f"The function {source.name} of SparkDataFrame returned a stream. Read it as a batch.")
    return frame


def _theirs(file: str) -> bool:
    return "/pyspark/" not in file and "/py4j/" not in file and "/airflow_ckpt_provider/" not in file
