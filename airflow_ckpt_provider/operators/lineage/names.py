"""What OpenLineage calls a dataset, by its naming conventions: a namespace that says where, and a name there.

Decision: a table is called by the place of its files, as the OpenLineage integration of Spark calls it, so that what Spark and this
provider tell of one table meets. Its name in a catalog is an alias (a symlink, in OpenLineage's words).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from airflow_ckpt_provider.tables.storage import Place

#: Schemes of one storage, by the one that the conventions have.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "wasbs"}

#: Schemes whose container stands where others have a user: ``abfss://container@account.dfs.core.windows.net``.
_WITH_CONTAINER = {"abfss", "wasbs"}

_WILDCARD = re.compile(r"[*?\[]")


class DatasetName(NamedTuple):
    """A namespace, and a name that is unique in it."""

    namespace: str
    name: str


def dataset_name(uri: str) -> DatasetName:
    """The name of what is at a URI or an absolute path. Users, passwords, queries and fragments are left out."""
    scheme, separator, rest = uri.partition("://")
    scheme = scheme.lower()
    if not separator or scheme == "file":
        # Nothing in a local path is a query.
        return DatasetName("file", "/" + (rest if separator else uri).strip("/"))
    scheme = _SCHEMES.get(scheme, scheme)
    authority, _, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    namespace = f"{scheme}://{_without_user(authority, scheme)}"
    name = path.strip("/")
    return DatasetName(namespace, f"/{name}" if scheme == "hdfs" or not name else name)


def folder_of(uri: str) -> str:
    """A URI up to the folder in which its first wildcard is; the URI as it is if it has none."""
    scheme, separator, rest = uri.rpartition("://")
    parts = rest.split("/")
    first = next((number for number, part in enumerate(parts) if number and _WILDCARD.search(part)), len(parts))
    return scheme + separator + "/".join(parts[:first])


def name_in_catalog(place: Place, identifier: str) -> DatasetName | None:
    """The name that a table has in its catalog; None if it cannot be told from what the catalog was opened with.

    :param identifier: ``namespace.table``.
    """
    if place.catalog in {"rest", "nessie"} and place.catalog_uri:
        return DatasetName(_address(place.catalog_uri), identifier)
    if place.catalog == "hive" and place.catalog_uri:
        return DatasetName(f"hive://{_address(place.catalog_uri.partition(',')[0]).partition('://')[2]}", identifier)
    if place.catalog == "glue" or "/" not in place.warehouse:
        return None
    namespace, name = dataset_name(place.warehouse)
    return DatasetName(f"file:{name}" if namespace == "file" else f"{namespace}/{name}".rstrip("/"), identifier)


def _address(uri: str) -> str:
    """A URI without its user, password, query and fragment."""
    scheme, separator, rest = re.split(r"[?#]", uri, maxsplit=1)[0].rpartition("://")
    authority, slash, path = rest.partition("/")
    return scheme + separator + _without_user(authority, scheme) + (slash + path).rstrip("/")


def _without_user(authority: str, scheme: str) -> str:
    before, at, host = authority.rpartition("@")
    return f"{before.partition(':')[0]}@{host}" if at and scheme in _WITH_CONTAINER else host
