"""The ``spark`` and ``spark_connect`` connections, which belong to the official Spark provider; ``local[*]`` without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.hooks.checkpoint import connection_or_none, mask_secrets
from airflow_ckpt_provider.spark.session import SparkTarget, target_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Connection that may be missing.
DEFAULT_CONN_ID = "spark_default"


def spark_target(spark_conn_id: str, conf: Mapping[str, str]) -> SparkTarget:
    """Where a stage runs.

    :param spark_conn_id: id of a connection of type ``spark`` or ``spark_connect``
    :param conf: Spark configuration on top of the connection's
    :raises InvalidInputError: if the connection is missing, of another type, or points nowhere.
    """
    connection = connection_or_none(spark_conn_id, DEFAULT_CONN_ID, {"spark", "spark_connect"})
    if connection is None:
        return SparkTarget(conf=dict(conf))
    mask_secrets(connection)
    if connection.conn_type == "spark_connect":
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

        return SparkTarget(
            master="", remote=SparkConnectHook(spark_conn_id).get_connection_url(), conf=dict(conf), conn_id=spark_conn_id
        )
    host = connection.host or ""
    if connection.schema and "://" not in host and not host.startswith("local"):
        host = f"{connection.schema}://{host}"
    return target_of(connection.conn_type, host, connection.port, connection.extra_dejson, conf)
