"""New columns for a Lance dataset without Spark: what ``mode="add_columns"`` does, split by split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ckpt_provider.scan.lance_rows import PLACE
from airflow_ckpt_provider.sources.lance_rows import DatasetRows
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.write import groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_ckpt_provider.write.attempt import WriteAttempt
    from airflow_ckpt_provider.write.groups import Settled
    from airflow_ckpt_provider.write.request import WriteRequest
    from support.lance_world import LanceWorld


def ten_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Two columns: one a number, one a vector."""
    tens = pc.multiply(batch["id"], 10)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([float(n) for one in batch["id"].to_pylist() for n in (one, -one)]), 2)
    return pa.record_batch({"tens": tens, "vector": vectors.cast(pa.list_(pa.float32(), 2))})


def columns_request(
    world: LanceWorld,
    key: str = "columns",
    function: Callable[[pa.RecordBatch], Any] = ten_times,
    read: tuple[str, ...] = ("id",),
    rows_per_split: int = 10,
    **changes: Any,
) -> WriteRequest:
    """A request to add columns, as the operator makes it."""
    source = DatasetRows(world.uri, read, rows_per_split)
    facts: dict[str, Any] = {
        "source": source,
        "options": world.options,
        "mode": "add_columns",
        "parameters": {"read_columns": list(read), "rows_per_split": rows_per_split},
        "sample": lambda: source.sample(world.options),
    }
    request = world.request(key, **(facts | changes))
    object.__setattr__(request, "transform", Transform(function, beside=PLACE))
    return request


def stage_columns(world: LanceWorld, *, splits: int | None = None, **changes: Any) -> WriteAttempt:
    """One attempt; with ``splits``, it stops after that many and does not seal, as if it had been killed there."""
    return world.stage(columns_request(world, **changes), splits=splits)


def add_columns(world: LanceWorld, **changes: Any) -> Settled:
    """Stage and commit."""
    (settled,) = groups.commit([stage_columns(world, **changes).checkpoint], world.as_table())
    return settled


def computed(world: LanceWorld) -> list[int]:
    """Ids of the rows that have their own values; fails if a row has another's."""
    dataset = world.dataset
    dataset.validate()
    found = []
    for row in dataset.to_table(columns=["id", "tens", "vector"]).to_pylist():
        if row["tens"] is None:
            assert row["vector"] is None
            continue
        assert row["tens"] == 10 * row["id"]
        assert row["vector"] == [row["id"], -row["id"]]
        found.append(row["id"])
    return sorted(found)
