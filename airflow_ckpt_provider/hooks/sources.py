"""From a source's connection id to what the source opens its input with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.hooks.catalog import iceberg_catalog
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook, storage_options
from airflow_ckpt_provider.sources import Files, SparkDataFrame, frame_transform
from airflow_ckpt_provider.sources.frame_transform import FrameTransform
from airflow_ckpt_provider.sources.protocol import SharedSource, StoredSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_ckpt_provider.sources import Source


def opened_source(source: Source | StoredSource) -> Source:
    """The source, with its checkpoint store if it is in one, and with what a frame transform reads.

    :raises InvalidInputError: if the store's connection cannot be used.
    """
    if isinstance(source, SparkDataFrame) and source.dataframe is not None:
        given = source.source
        if given is None:
            raise InvalidInputError(f"{source!r} has no source: a template of it has rendered to nothing.")
        read = Files(given) if isinstance(given, str) else opened_source(given)
        return frame_transform.opened(source, read, source_options(read))
    if isinstance(source, StoredSource):
        return source.opened(CheckpointHook(source.store_conn_id()).get_conn())
    return source


def source_options(source: Source) -> Mapping[str, str]:
    """Storage options, or catalog properties with the catalog's ``name``, of the source's connection. They hold credentials.

    :raises InvalidInputError: if the connection is missing or of another type.
    """
    if isinstance(source, FrameTransform):
        return source.options
    if source.conn_kind == "iceberg" and source.conn_id is not None:
        catalog = iceberg_catalog(source.conn_id)
        return {**catalog.properties, "name": catalog.name}
    if isinstance(source, SharedSource):
        return CheckpointHook(source.conn_id or CheckpointHook.default_conn_name).location().options
    return storage_options(source.conn_id)
