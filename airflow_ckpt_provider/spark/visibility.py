"""Refusing storage that the executors of a Spark target cannot see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.store import CheckpointStore
    from airflow_ckpt_provider.spark.session import SparkTarget


def require_shared_store(store: CheckpointStore, target: SparkTarget) -> None:
    """Refuse a checkpoint store that executors cannot see.

    :raises InvalidInputError: saying what to use instead.
    """
    if store.location.scheme == "memory" or (store.location.is_local and not target.on_this_machine):
        raise InvalidInputError(
            f"The checkpoint store {store.uri} is on this machine only, but the stage runs on {target.name}, whose executors "
            "cannot see it. Point the checkpoint connection at object storage (s3://, gs://, az://)."
        )


def require_shared_dataset(uri: str, target: SparkTarget) -> None:
    """Refuse a Lance dataset that executors cannot see.

    :raises InvalidInputError: saying what to use instead.
    """
    if uri.startswith("file://") and not target.on_this_machine:
        raise InvalidInputError(
            f"The Lance dataset {uri} is on this machine only, but the stage runs on {target.name}, whose executors cannot see it "
            "and would write somewhere else. Put the dataset into object storage (s3://, gs://, az://), or run the stage here."
        )
