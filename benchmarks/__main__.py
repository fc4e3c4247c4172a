"""``python -m benchmarks``: measure everything, print a Markdown table, and keep it in ``benchmarks/RESULTS.md``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import (
    against_datachain,
    against_spark,
    bounded,
    checkpoint_cost,
    commit,
    fixed_cost,
    frame,
    history,
    lance,
    memory,
    micro_batches,
    overwrite,
    partitioned,
    partitions,
    pieces,
    requests,
    retry,
    scale,
    small_files,
    staged_rows,
    tiny_splits,
    upsert,
)
from benchmarks.lineitem import lineitem
from benchmarks.report import Report
from benchmarks.stage import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULTS = Path(__file__).parent / "RESULTS.md"

SECTIONS = "abcdefghijklmnopqrstuvwxyz"


def main() -> int:
    """Run the command; the exit status is 1 if a target was missed."""
    options = _options()
    options.cache.mkdir(parents=True, exist_ok=True)
    wanted = {options.scale, options.large_scale} if set("abcdjknopqst") & set(options.only) else set()
    files = {one: lineitem(options.cache, one) for one in sorted(wanted)}
    report = Report("python -m benchmarks" + "".join(f" {word}" for word in sys.argv[1:]))
    _with_spark(options, files, report)
    if "b" in options.only:
        report.begin("(b) what checkpointing costs")
        data = files[options.scale]
        report.add(checkpoint_cost.measure(options.cache, data, options.scale, options.repeats), checkpoint_cost.NOTE)
    if "d" in options.only:
        report.begin("(d) memory of workers")
        report.add(memory.measure(options.cache, files), memory.NOTE)
    if "e" in options.only:
        report.begin("(e) the commit of many files")
        report.add(commit.measure(options.cache, options.files // 100, 100, options.repeats), commit.NOTE)
    _at_scale(options, files, report)
    if "r" in options.only:
        report.begin("(r) what one row costs")
        report.add(fixed_cost.measure(options.cache, options.repeats), fixed_cost.NOTE)
    if "w" in options.only:
        report.begin("(w) requests by operation")
        report.add(requests.measure(options.cache), requests.NOTE)
    if "u" in options.only:
        report.begin("(u) a slow function of rows, saved in pieces")
        report.add(pieces.measure(options.cache, options.slow_rows, options.repeats), pieces.NOTE)
    if "v" in options.only:
        report.begin("(v) the same by DataChain")
        report.add(against_datachain.measure(options.cache, options.slow_rows, options.repeats), against_datachain.NOTE)
    report.begin("done")
    text = report.markdown()
    print("\n" + text)
    if options.output:
        options.output.write_text(text)
    return 0 if all(line.met for line in report.lines) else 1


def _at_scale(options: argparse.Namespace, files: dict[float, Path], report: Report) -> None:
    """What is measured of large writes and large tables, in processes of their own."""
    cache, only, many = options.cache, options.only, options.many_files
    if "f" in only:
        report.begin("(f) an upsert")
        report.add(upsert.measure(cache, options.upsert_rows, options.limit, options.address_space << 30), upsert.NOTE)
    if "g" in only:
        report.begin("(g) an overwrite of many files")
        report.add(overwrite.measure(cache, many, max(options.repeats // 3, 1)), overwrite.NOTE)
    sections = "".join(section for section in "hi" if section in only)
    if sections:
        report.begin("(h), (i) very many staged files")
        notes = {"h": scale.COMMIT_NOTE, "i": scale.NOTE}
        report.add(scale.measure(cache, many, many // 10, options.repeats, sections), *(notes[section] for section in sections))
    if "i" in only:
        report.begin("(i) a commit onto a long history")
        report.add(history.measure(cache, many, options.snapshots, options.repeats), history.NOTE)
    if "j" in only:
        report.begin("(j) an append in bounded memory")
        report.add(bounded.measure(cache, files[options.large_scale], options.large_scale), bounded.NOTE)
    _on_lance(options, files, report)


def _on_lance(options: argparse.Namespace, files: dict[float, Path], report: Report) -> None:
    """What is measured of Lance, in processes of their own."""
    cache, only = options.cache, options.only
    if "k" in only:
        report.begin("(k) an append to Lance")
        report.add(lance.append(cache, files[options.scale], options.scale, options.repeats), lance.NOTES["k"])
    if "l" in only:
        report.begin("(l) an upsert into Lance")
        report.add(lance.upsert(cache, options.repeats), lance.NOTES["l"])
    if "m" in only:
        report.begin("(m) the commit of many fragments")
        report.add(lance.commit(cache, options.repeats), lance.NOTES["m"])
    if "n" in only:
        report.begin("(n) what checkpointing costs on Lance")
        data = files[options.scale]
        report.add(lance.checkpointing(cache, data, options.scale, options.repeats), lance.NOTES["n"])


def _with_spark(options: argparse.Namespace, files: dict[float, Path], report: Report) -> None:
    """What is measured in one session."""
    if not set("acopqstxyz") & set(options.only):
        return
    with session() as spark:
        if "a" in options.only:
            for scale, data in files.items():
                report.begin(f"(a) a stage beside Spark's own write, scale {scale:g}")
                report.add(against_spark.measure(spark, options.cache, data, scale, options.repeats))
            report.notes.append(against_spark.NOTE)
        if "c" in options.only:
            report.begin("(c) a retry beside a clean run")
            data = files[options.scale]
            report.add(retry.measure(spark, options.cache, data, options.scale, options.repeats), retry.NOTE)
        if set("op") & set(options.only):
            report.begin("(o, p) a DataFrame by partitions, and its retries")
            data = files[options.scale]
            found = partitions.measure(spark, options.cache, data, options.scale, options.repeats, options.only)
            report.add(found, partitions.NOTE)
        if "t" in options.only:
            report.begin("(t) a DataFrame by buckets, and its retries")
            data = files[options.scale]
            report.add(frame.measure(spark, options.cache, data, options.scale, options.repeats), frame.NOTE)
        if "q" in options.only:
            report.begin("(q) a retry by rows")
            data = files[options.scale]
            report.add(staged_rows.measure(spark, options.cache, data, options.scale, options.repeats), staged_rows.NOTE)
        if "s" in options.only:
            report.begin("(s) a write by day and bucket")
            data = files[options.scale]
            report.add(partitioned.measure(spark, options.cache, data, options.scale, options.repeats), partitioned.NOTE)
        _many_small(spark, options, report)


def _many_small(spark: SparkSession, options: argparse.Namespace, report: Report) -> None:
    """What thousands of small inputs and files cost."""
    if "x" in options.only:
        report.begin("(x) thousands of tiny splits")
        report.add(tiny_splits.measure(spark, options.cache, options.repeats), tiny_splits.NOTE)
    if "y" in options.only:
        report.begin("(y) an upsert of thousands of small files")
        report.add(small_files.measure(spark, options.cache, options.repeats), small_files.NOTE)
    if "z" in options.only:
        report.begin("(z) micro-batches of a stream")
        report.add(micro_batches.measure(spark, options.cache), micro_batches.NOTE)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="TPC-H scale; 1 is 6 million rows (default: 1)")
    parser.add_argument("--large-scale", type=float, default=3, help="scale that memory is compared at (default: 3)")
    parser.add_argument("--repeats", type=int, default=3, help="measured pairs of each comparison (default: 3)")
    parser.add_argument("--files", type=int, default=10_000, help="files of the measured commit, in hundreds (default: 10000)")
    parser.add_argument(
        "--upsert-rows", type=int, default=1_000_000, help="rows of the upsert's table; full size is 10000000 (default: 1000000)"
    )
    parser.add_argument(
        "--limit", type=float, default=60, help="seconds that another tool may take for one upsert; full size: 1200 (default: 60)"
    )
    parser.add_argument("--address-space", type=int, default=16, help="GiB that another tool may allocate for it (default: 16)")
    parser.add_argument("--many-files", type=int, default=100_000, help="files of (g), (h) and (i) (default: 100000)")
    parser.add_argument("--snapshots", type=int, default=5_000, help="snapshots of the long history of (i) (default: 5000)")
    parser.add_argument("--slow-rows", type=int, default=2_000, help="rows of the slow function of (u) and (v) (default: 2000)")
    parser.add_argument("--only", default=SECTIONS, help=f"sections to run, some of {SECTIONS} (default: all)")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "airflow-ckpt-benchmarks",
        help="folder for the generated data, about 1 GB, and for what is written (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, help="where to keep the table (default: benchmarks/RESULTS.md if all sections ran)")
    options = parser.parse_args()
    if not set(options.only) <= set(SECTIONS):
        parser.error(f"--only {options.only}: the sections are {SECTIONS}")
    if options.scale >= options.large_scale or options.repeats < 1 or min(options.files, options.many_files) < 100:
        parser.error("--scale must be below --large-scale, --repeats at least 1, --files and --many-files at least 100")
    if options.upsert_rows < min(upsert.SIZES):
        parser.error(f"--upsert-rows must be at least {min(upsert.SIZES)}")
    if options.output is None and set(options.only) == set(SECTIONS):
        options.output = RESULTS
    return options


sys.exit(main())
