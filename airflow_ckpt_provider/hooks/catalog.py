"""The ``iceberg`` connection, which belongs to the official Iceberg provider, or an embedded catalog where there is none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.location import refuse_credentials
from airflow_ckpt_provider.checkpoint.secrets import redacted
from airflow_ckpt_provider.exceptions import InvalidInputError, RetryableError
from airflow_ckpt_provider.hooks.checkpoint import connection_or_none, embedded_home, mask_secrets

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: Connection that may be missing.
DEFAULT_CONN_ID = "iceberg_default"


def iceberg_catalog(iceberg_conn_id: str = DEFAULT_CONN_ID) -> Catalog:
    """The catalog of a connection of type ``iceberg``.

    Requests to a REST catalog have time-outs, in milliseconds, which the connection's extra may set:
    ``rest.client.connection-timeout-ms`` (10,000) and ``rest.client.socket-timeout-ms``, until the next bytes of an answer come
    (120,000).

    Without a connection ``iceberg_default``: a SQLite catalog and a warehouse below ``AIRFLOW_HOME/checkpoints``.

    :param iceberg_conn_id: id of the connection
    :raises InvalidInputError: if the connection is missing or of another type.
    :raises RetryableError: if the catalog does not answer.
    """
    connection = connection_or_none(iceberg_conn_id, DEFAULT_CONN_ID, {"iceberg"})
    if connection is None:
        return _embedded()
    from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook

    mask_secrets(connection)
    if connection.host:
        refuse_credentials(connection.host)
    from airflow_ckpt_provider.tables.catalogs import bounded_catalogs

    try:
        with bounded_catalogs():
            return IcebergHook(iceberg_conn_id).catalog
    except InvalidInputError:
        raise
    except Exception as error:
        raise RetryableError(
            f"The catalog of the connection {iceberg_conn_id!r} could not be opened: {type(error).__name__}: "
            + redacted(error, {"host": connection.host or "", "extra": connection.extra_dejson})
        ) from error


def _embedded() -> Catalog:
    from pyiceberg.catalog import load_catalog

    home = embedded_home()
    os.makedirs(home, mode=0o700, exist_ok=True)
    os.makedirs(os.path.join(home, "warehouse"), exist_ok=True)
    return load_catalog("embedded", type="sql", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")
