"""Reading a source as a stage does: plan once, then each split by itself through a reader that travelled by pickle."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from airflow_ckpt_provider.checkpoint.documents import Split
    from airflow_ckpt_provider.sources import Files

NO_OPTIONS: Mapping[str, str] = {}


def splits_of(source: Files, options: Mapping[str, str] = NO_OPTIONS) -> tuple[Split, ...]:
    return source.plan(options).splits


def read_split(
    source: Files, split: Split, options: Mapping[str, str] = NO_OPTIONS, expected: pa.Schema | None = None
) -> list[dict[str, object]]:
    """Rows of one split."""
    reader = pickle.loads(pickle.dumps(source.reader(options)))
    return [row for batch in reader.read(split, expected) for row in batch.to_pylist()]


def read_all(source: Files, options: Mapping[str, str] = NO_OPTIONS, expected: pa.Schema | None = None) -> list[dict[str, object]]:
    """Rows of all splits, in the order of the plan."""
    return [row for split in splits_of(source, options) for row in read_split(source, split, options, expected)]
