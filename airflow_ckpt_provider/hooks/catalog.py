"""The ``iceberg`` connection, which belongs to the official Iceberg provider, or an embedded catalog where there is none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.location import refuse_credentials
from airflow_ckpt_provider.exceptions import InvalidInputError
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
    :raises InvalidInputError: if the connection is missing, of another type, or describes no catalog.
    :raises RetryableError: if the catalog does not answer.
    """
    connection = connection_or_none(iceberg_conn_id, DEFAULT_CONN_ID, {"iceberg"})
    if connection is None:
        return _embedded()
    from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook

    mask_secrets(connection)
    if connection.host:
        refuse_credentials(connection.host)
    if "name" in connection.extra_dejson:
        raise InvalidInputError(
            f"The extra of the connection {iceberg_conn_id!r} has a 'name'. A catalog is named as its connection, and a SQL "
            "catalog keeps its tables by this name: leave it out, and give the connection the catalog's name as its id."
        )
    from airflow_ckpt_provider.tables.catalogs import bounded_catalogs, not_opened

    try:
        with bounded_catalogs():
            return IcebergHook(iceberg_conn_id).catalog
    except InvalidInputError:
        raise
    except Exception as error:
        told = {"host": connection.host or "", "extra": connection.extra_dejson}
        raise not_opened(f"The catalog of the connection {iceberg_conn_id!r}", error, told) from error


def _embedded() -> Catalog:
    from pyiceberg.catalog import load_catalog

    home = embedded_home()
    os.makedirs(home, mode=0o700, exist_ok=True)
    os.makedirs(os.path.join(home, "warehouse"), exist_ok=True)
    return load_catalog("embedded", type="sql", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")
