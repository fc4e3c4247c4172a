"""Options of the JVMs that tests start, which live for seconds: compiled once and plainly, with Spark's classes out of an archive.

Run as a program, it makes the archive. A JVM that cannot use it, because it is another JVM or Spark, reads the jars as ever.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

#: Spark's classes as a JVM has them in memory, beside the packages that they are from.
ARCHIVE = Path(sys.prefix) / "spark.jsa"

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"


def options() -> str:
    """Of a JVM that runs Spark."""
    return f"{_QUICK} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else _QUICK


def variables() -> dict[str, str]:
    """Environment by which drivers that are started from this process, and what they are started with, get them."""
    return {"SPARK_SUBMIT_OPTS": options(), "SPARK_LAUNCHER_OPTS": _QUICK}


def make_archive() -> None:
    """Run a bit of everything in Spark, and keep the classes that it took."""
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder) / ARCHIVE.name
        os.environ |= variables() | {
            "SPARK_SUBMIT_OPTS": f"{_QUICK} -XX:ArchiveClassesAtExit={made}",
            "PYSPARK_PYTHON": sys.executable,
        }
        _use_spark(folder)
        if made.exists():
            made.replace(ARCHIVE)


def _use_spark(folder: str) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    spark = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.range(100).repartition(2).mapInArrow(lambda batches: batches, "id long").write.parquet(f"{folder}/rows")
    rows = spark.read.parquet(f"{folder}/rows").withColumn("kind", f.concat(f.lit("kind-"), f.col("id") % 3))
    rows.createOrReplaceTempView("rows")
    spark.sql("select kind, count(*) as n, sum(id) from rows where id > 3 group by kind having n > 1 order by n").toArrow()
    rows.join(rows.select("id").distinct(), "id").rdd.map(tuple).collect()
    spark.stop()
    jvm = SparkContext._gateway.proc
    # It ends when nobody can ask it for anything any more, and keeps its classes then.
    jvm.stdin.close()
    jvm.wait(120)


if __name__ == "__main__":
    make_archive()
