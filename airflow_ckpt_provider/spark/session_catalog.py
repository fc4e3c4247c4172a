"""A catalog of the user's Spark session, in pyiceberg's words.

Iceberg's Java library and pyiceberg call most properties alike. What changes where tables are, or how they are opened, is
translated, or refused by its name: a write into another catalog than the one that was meant would be green.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.spark.code_shipping import is_connect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

#: Classes of Iceberg's Java library, by what pyiceberg calls such a catalog.
_CLASSES = {
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
}

#: Settings that both know under one name, by what they begin with.
_SAME = (
    "uri", "warehouse", "credential", "token", "scope", "audience", "resource", "oauth2-server-uri", "prefix", "header.",
    "rest.signing-name", "rest.signing-region", "rest.sigv4-enabled", "rest.client.", "s3.endpoint", "s3.access-key-id",
    "s3.secret-access-key", "s3.session-token", "s3.region", "client.region", "glue.endpoint", "glue.id", "adls.", "gcs.",
)  # fmt: skip

#: Settings that change nothing for a table that is there: how the JVM reads, caches and measures.
_OF_THE_JVM = (
    "cache", "io-impl", "default-namespace", "metrics-reporter-impl", "s3.path-style-access", "s3.preload-client-enabled",
    "s3.remote-signing-enabled", "http-client.", "client.factory", "clients", "io.manifest.", "locality.enabled",
)  # fmt: skip


def catalog_of_session(spark: SparkSession, name: str) -> dict[str, str]:
    """Properties with which pyiceberg opens a catalog of a session.

    :param name: of the catalog, in ``spark.sql.catalog.<name>``.
    :raises InvalidInputError: if the session has none of this name, or pyiceberg cannot open it.
    """
    settings = _settings(spark, f"spark.sql.catalog.{name}")
    kind = settings.pop("", None)
    instead = "Pass catalog=, with the properties by which pyiceberg opens it."
    if kind is None:
        raise InvalidInputError(
            f"The session has no catalog {name!r}: spark.sql.catalog.{name} is not set. Put the name of a catalog before the "
            "table, as in 'prod.shop.orders', or pass catalog=, with pyiceberg's properties."
        )
    if not kind.startswith("org.apache.iceberg.spark."):
        raise InvalidInputError(f"spark.sql.catalog.{name} is {kind}, which is no catalog of Iceberg tables. {instead}")
    catalog_type = settings.pop("type", None)
    implementation = settings.pop("catalog-impl", None)
    if implementation is not None:
        catalog_type = _CLASSES.get(implementation, implementation)
    if catalog_type not in _CLASSES.values():
        raise InvalidInputError(
            f"The catalog {name!r} of the session is of the type {catalog_type or 'hive, by default'}, which cannot be told to "
            f"pyiceberg from here. {instead}"
        )
    unknown = sorted(key for key in settings if not key.startswith((*_SAME, *_OF_THE_JVM)))
    if unknown:
        raise InvalidInputError(
            f"The catalog {name!r} of the session has settings of which this provider does not know what they are for pyiceberg: "
            f"{', '.join(f'spark.sql.catalog.{name}.{key}' for key in unknown)}. {instead}"
        )
    return {"name": name, "type": str(catalog_type)} | {key: value for key, value in settings.items() if key.startswith(_SAME)}


def _settings(spark: SparkSession, prefix: str) -> dict[str, str]:
    """The settings of a session below a name, and the one of just this name as the empty one."""
    found = {key: value for key, value in _all(spark) if key == prefix or key.startswith(f"{prefix}.")}
    return {key.removeprefix(prefix).removeprefix("."): value for key, value in found.items()}


def _all(spark: SparkSession) -> Iterable[tuple[str, str]]:
    if is_connect(spark):
        raise InvalidInputError(
            "A Spark Connect session does not say how the catalogs of its server are set up. Pass catalog=, with pyiceberg's "
            "properties."
        )
    return spark.conf.getAll.items()
