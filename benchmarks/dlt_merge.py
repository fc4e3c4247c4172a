"""dlt's merge of the same rows; called in a process of an environment of its own, which has dlt and not this project."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import dlt
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


def load(folder: str, rows: str) -> dict[str, Any]:
    """Make dlt's table out of the Parquet files in ``rows``."""
    _run(folder, _resource(rows, "append"))
    return {"rows": sum(_versions(folder).values())}


def merge(folder: str, source: str) -> dict[str, Any]:
    """Upsert by dlt."""
    start = time.perf_counter()
    _run(folder, _resource(source, {"disposition": "merge", "strategy": "upsert"}))
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "versions": _versions(folder)}


def _pipeline(folder: str) -> dlt.Pipeline:
    # One worker for each core that there is to use, as the other sides have.
    return dlt.pipeline(
        "people",
        pipelines_dir=f"{folder}/pipelines",
        destination=dlt.destinations.filesystem(bucket_url=f"file://{folder}/lake"),
        dataset_name="bench",
    )


def _run(folder: str, resource: Any) -> None:
    _pipeline(folder).run(resource, loader_file_format="parquet").raise_on_failed_jobs()


def _resource(folder: str, disposition: Any) -> Any:
    @dlt.resource(name="people", write_disposition=disposition, primary_key="id", table_format="iceberg")
    def people() -> Iterator[pa.Table]:
        from pathlib import Path

        for path in sorted(Path(folder).glob("*.parquet")):
            yield pq.read_table(path)

    return people


def _versions(folder: str) -> dict[str, int]:
    """How many rows there are of each version."""
    from dlt.common.libs.pyiceberg import get_iceberg_tables

    table = get_iceberg_tables(_pipeline(folder), "people")["people"]
    counts = table.scan(selected_fields=("version",)).to_arrow()["version"].value_counts().to_pylist()
    return {str(entry["values"]): entry["counts"] for entry in counts}
