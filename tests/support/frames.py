"""Stages of a ``SparkDataFrame`` on a real Spark, and DataFrames that can and cannot be computed again."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.spark.engine import job_of
from airflow_ckpt_provider.spark.frame.run import FrameRun
from airflow_ckpt_provider.spark.session import quiet
from airflow_ckpt_provider.transforms import Map
from support.appending import seal
from support.standalone import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from airflow_ckpt_provider.checkpoint.documents import Plan
    from airflow_ckpt_provider.sources.dataframe import SparkDataFrame
    from airflow_ckpt_provider.spark.frame.run import FrameProgress
    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from support.world import World


class FrameStage(NamedTuple):
    """One attempt that is ready to run the missing splits of its round."""

    attempt: WriteAttempt
    run: FrameRun
    plan: Plan
    number: int
    missing: list[str]

    def run_only(self) -> list[FrameProgress]:
        reports: list[FrameProgress] = []
        self.run.run(reports.append)
        return reports

    def stage(self) -> list[FrameProgress]:
        """Run and seal; the reports."""
        reports = self.run_only()
        seal(self.attempt.checkpoint, self.plan, self.number)
        return reports


def prepare(spark: SparkSession, world: World, source: SparkDataFrame, check_fit: Any = None, **changes: Any) -> FrameStage:
    """An attempt at the missing buckets; in recovery by rows, it opens a round of its own."""
    attempt = world.attempt(world.request(source=source, **changes))
    checkpoint = attempt.checkpoint
    plans = checkpoint.plans()
    fresh = source.replan(plans, checkpoint.staged_ids()) if plans else source.plan({})
    if fresh is not None:
        plans.append(checkpoint.pin(fresh, len(plans) + 1))
    staged = checkpoint.staged_ids()
    missing = [split for split in plans[-1].splits if split.id not in staged]
    work = attempt.begin("a test", 1)
    run = FrameRun(spark, checkpoint, work, source, plans[-1], missing, check_fit)
    return FrameStage(attempt, run, plans[-1], len(plans), [split.id for split in missing])


def staged(spark: SparkSession, attempt: WriteAttempt, only: int | None = None) -> list[str]:
    """Stage what is missing, or only so many splits of it; which were run."""
    ran: list[str] = []
    while (found := attempt.next_round()) is not None:
        todo = found._replace(missing=found.missing[:only])
        ran += [split.id for split in todo.missing]
        job_of(spark, attempt, todo, attempt.begin("a test", 1)).run(lambda _: None)
        if only is not None:
            return ran
    attempt.seal()
    return ran


def orders(spark: SparkSession, path: str) -> DataFrame:
    """The world's input files."""
    return spark.read.parquet(path)


def unfolded(plan: str) -> list[str]:
    """Calls in the text of an optimized plan that depend on no column, which Spark evaluates anew for each row."""
    found = []
    for call in re.finditer(r"\b[a-z]\w*(?=\()", plan):
        depth = 0
        for end in range(call.end(), len(plan)):
            depth += {"(": 1, ")": -1}.get(plan[end], 0)
            if not depth:
                break
        text = plan[call.start() : end + 1]
        # Columns have a number behind their name; so do the variables of lambda functions.
        if "#" not in text or "lambda" in text:
            found.append(text)
    return found


def retry_of(spark: SparkSession, world: World, source: SparkDataFrame, staged: int, **changes: Any) -> FrameStage:
    """A retry that finds this number of buckets staged."""
    first = prepare(spark, world, source, **changes)
    FrameRun(spark, first.attempt.checkpoint, first.run._work, source, first.plan, list(first.plan.splits[:staged])).run(
        lambda _: None
    )
    return prepare(spark, world, source, **changes)


def _udf(function: Callable[..., Any]) -> Any:
    from pyspark.sql import functions as f

    # Inferring the kind of a function from its annotations warns.
    return f.udf(function, "long", useArrow=False)


def _same(value: int) -> int:
    return value


#: What is said of a DataFrame on ``t``, a view with the columns id and k, that has other rows every time.
IRREPRODUCIBLE: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "a random column": (r"rand\(\)", lambda t: t.sparkSession.sql("SELECT *, rand(7) AS r FROM t")),
    "a random filter": (r"rand\(\)", lambda t: t.where("rand() < 0.5")),
    "a normal random column": (r"randn\(\)", lambda t: t.selectExpr("*", "randn() AS r")),
    "random in a subquery": (r"rand\(\)", lambda t: t.sparkSession.sql("SELECT * FROM t WHERE id < (SELECT rand() * 100)")),
    "random in an EXISTS": (
        r"rand\(\)",
        lambda t: t.sparkSession.sql("SELECT * FROM t WHERE EXISTS (SELECT 1 FROM t x WHERE x.id = t.id AND rand() < 0.5)"),
    ),
    "random in a lambda": (r"rand\(\)", lambda t: t.selectExpr("*", "transform(array(1), x -> x + rand()) AS r")),
    "random behind 60 columns": (
        r"rand\(\)",
        lambda t: t.selectExpr("*", *[f"{n} AS c{n}" for n in range(60)], "rand() AS r"),
    ),
    "a uuid": (r"uuid\(\)", lambda t: t.selectExpr("uuid() AS id", "k")),
    "a shuffled array": (r"shuffle\(\)", lambda t: t.selectExpr("*", "shuffle(array(1, 2)) AS s")),
    "row numbers": (r"monotonically_increasing_id\(\)", lambda t: t.selectExpr("*", "monotonically_increasing_id() AS n")),
    "partition numbers": (r"spark_partition_id\(\)", lambda t: t.selectExpr("*", "spark_partition_id() AS n")),
    "today": (r"current_date\(\).*pass it in parameters", lambda t: t.where("current_date() > DATE'2020-01-01'")),
    "now in a common table expression": (
        r"now\(\)",
        lambda t: t.sparkSession.sql("WITH c AS (SELECT id, now() AS n FROM t) SELECT * FROM c JOIN t USING (id)"),
    ),
    "the current time in seconds": (r"current_timestamp\(\)", lambda t: t.selectExpr("*", "unix_timestamp() AS n")),
    "the local time": (r"localtimestamp\(\)", lambda t: t.selectExpr("*", "localtimestamp() AS n")),
    "a limit": (r"limit .*orderBy", lambda t: t.limit(5)),
    "a limit in a union": (r"limit .*orderBy", lambda t: t.union(t.limit(5))),
    "a limit after an order within partitions": (r"limit .*orderBy", lambda t: t.sortWithinPartitions("id").limit(5)),
    "an offset": (r"offset .*orderBy", lambda t: t.offset(5)),
    "a sample with a seed": (r"sample .*hash of the id", lambda t: t.sample(0.5, seed=3)),
    "a random split": (r"sample .*hash of the id", lambda t: t.randomSplit([0.5, 0.5], seed=3)[0]),
    "any row of several with different ids": (r"dropDuplicates\(\['k'\]\)", lambda t: t.dropDuplicates(["k"])),
    "a Python function marked as not deterministic": (
        "non-deterministic function _same",
        lambda t: t.where(_udf(_same).asNondeterministic()(t["id"]) > 3).join(t.select("id"), "id"),
    ),
}

REPRODUCIBLE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a view": lambda t: t,
    "a limit after an order": lambda t: t.orderBy("id").select("id").where("id > 3").offset(1).limit(5),
    "distinct ids": lambda t: t.dropDuplicates(["id"]),
    "distinct rows": lambda t: t.distinct(),
    "a join with distinct keys": lambda t: t.join(t.selectExpr("k", "1 AS z").dropDuplicates(["k"]), "k"),
    "aggregates that depend on the order": lambda t: t.groupBy("id").agg({"k": "first"}),
    "collected lists": lambda t: t.sparkSession.sql("SELECT id, collect_list(k), collect_set(k), any_value(k) FROM t GROUP BY id"),
    "a Python function": lambda t: t.withColumn("u", _udf(_same)("id")),
    "a row number in an order": lambda t: t.selectExpr("*", "row_number() OVER (PARTITION BY k ORDER BY id) AS n"),
    "a subquery": lambda t: t.sparkSession.sql("SELECT * FROM t WHERE id IN (SELECT id FROM t) AND id < (SELECT max(id) FROM t)"),
    "pandas batches": lambda t: t.mapInArrow(lambda batches: batches, t.schema),
    "other partitions": lambda t: t.repartition(3),
    "local rows": lambda t: t.sparkSession.createDataFrame([(1, "a")], ["id", "k"]),
    "the name of the input file": lambda t: t.selectExpr("*", "input_file_name() AS f"),
}


def numbers(spark: SparkSession) -> DataFrame:
    """A DataFrame with the columns id and k, which is also the view ``t``."""
    # Spark imports pandas here, outside of a stage.
    quiet()
    frame = spark.range(100).selectExpr("id", "id % 5 AS k")
    frame.createOrReplaceTempView("t")
    return frame


class Calls:
    """A function of a row that writes down the values of a column that it was called with, and fails at some of them.

    :param column: one with another value in each row.
    """

    def __init__(self, folder: Path, column: str = "id") -> None:
        folder.mkdir()
        self.folder = folder
        self.column = column

    def map(self, *fails_at: Any) -> Map:
        """The transform, which keeps all columns but ``kind``."""
        folder, column = str(self.folder), self.column

        def function(**columns: Any) -> str:
            value = columns[column]
            if value in fails_at:
                raise ValueError("not today")
            with Path(folder, str(os.getpid())).open("a") as file:
                file.write(f"{value}\n")
            return "made"

        return Map(function, output={"kind": str}, keep=["id", "value", "at"])

    def taken(self) -> Counter[str]:
        """What it was called with since this was last asked."""
        found = Counter(line for file in self.folder.iterdir() for line in file.read_text().split())
        for file in self.folder.iterdir():
            file.unlink()
        return found


def wait_for_tasks(spark: SparkSession) -> None:
    """Until none runs on the only executor: those of a job that failed go on for a moment."""

    def running() -> int:
        (executor,) = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
        return executor.numRunningTasks()

    wait_until(lambda: not running(), "the tasks of the failed job to end")
