"""Whether one bucket or partition of a DataFrame has far more rows than the others: its task is the one that all wait for."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: How many rows, and how many times the median of all that have any, are too many.
_ROWS, _TIMES = 1_000_000, 5

_ADVICE = {
    "bucket": "SparkDataFrame(..., bucket_rows=5_000_000) counts the rows before it "
    "plans, and cuts buckets of more into several tasks; naming more columns in id_column deals an id that has that many, without "
    "counting; where many ids share the bucket, so does raising buckets",
    "partition": "Deal them by columns with more values: df.repartition(n, …)",
}


def skew_of(rows: Mapping[str, int], unit: str) -> str:
    """What to tell a user of the largest split of a stage; empty if it is not much larger than the others.

    :param rows: of each split.
    :param unit: what a split is: ``bucket`` or ``partition``.
    """
    filled = {split_id: count for split_id, count in rows.items() if count}
    if len(filled) < 2:
        return ""
    largest = max(filled, key=lambda split_id: filled[split_id])
    median = statistics.median(filled.values())
    if filled[largest] < max(_ROWS, _TIMES * median):
        return ""
    return (
        f"The {unit} {largest} has {filled[largest]:,} rows, {filled[largest] / median:.0f} times the median of the {len(filled)} "
        f"that this attempt has written: one task computes and writes all of them. {_ADVICE[unit]}. This write keeps its splits; "
        "the next one can have others."
    )
