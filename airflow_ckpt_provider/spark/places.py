"""Opening a checkpoint store and a table from what a program says of them, without Airflow's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.location import StorageLocation
from airflow_ckpt_provider.checkpoint.signing import ConnectionKeys
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.catalogs import opened_catalog
from airflow_ckpt_provider.tables.format import format_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_ckpt_provider.tables.table import Table

#: Option of a store that is no option of its storage: the secret that its documents are signed with.
_SIGNING = "signing_secret"


def store_at(uri: str, options: Mapping[str, str] | None) -> CheckpointStore:
    """The checkpoint store.

    :param options: of its storage, and ``signing_secret`` if its documents are signed.
    """
    storage = {name: str(value) for name, value in (options or {}).items()}
    secret = storage.pop(_SIGNING, None)
    return CheckpointStore(StorageLocation(uri, storage), None if secret is None else ConnectionKeys((secret,)))


def table_at(
    format_name: str, identifier: str, branch: str, catalog: Mapping[str, str] | None, storage_options: Mapping[str, str] | None
) -> Table:
    """The table, in its catalog or in its storage.

    :param catalog: pyiceberg's properties, for an Iceberg table.
    :raises InvalidInputError: if there is none and one is needed.
    """
    table_format = format_of(format_name)
    if table_format.connection != "iceberg":
        return table_format.open(identifier, branch, {name: str(value) for name, value in (storage_options or {}).items()})
    if catalog is None:
        raise InvalidInputError(
            f"The Iceberg table {identifier} needs catalog=: pyiceberg's properties, or a name of the session's."
        )
    return table_format.open(identifier, branch, opened_catalog(catalog))
