"""Running a stage on Spark: the session, the missing splits as one task each, progress, stopping, and checks of staged rows.

``stage`` only schedules: a task reads, transforms and writes its split in Arrow, and no row crosses the JVM. ``frame`` is for the
rows of a DataFrame, which Spark computes and shuffles, so that each of them passes from the JVM to Python once. In both, a task
publishes its split to the checkpoint store, which is the only channel back to the driver.

``checkpointed_write`` and ``commit`` are for programs that have a session of their own, and ``checkpointed_batches`` is for their
streams. They are imported when they are asked for: DAG files are parsed without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_ckpt_provider.spark.program import checkpointed_write, commit
    from airflow_ckpt_provider.spark.streaming import checkpointed_batches

__all__ = ["checkpointed_batches", "checkpointed_write", "commit"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module has
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "checkpointed_batches":
        from airflow_ckpt_provider.spark.streaming import checkpointed_batches

        return checkpointed_batches
    from airflow_ckpt_provider.spark import program

    return getattr(program, name)
