"""Where a program of the user's own reads and writes, in place of Airflow's connections: its store, its table, its origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.documents import Connections, Origin
from airflow_ckpt_provider.checkpoint.location import StorageLocation
from airflow_ckpt_provider.checkpoint.signing import ConnectionKeys
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.tables.catalogs import opened_catalog
from airflow_ckpt_provider.tables.format import format_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_ckpt_provider.tables.table import Table

#: A program knows no Airflow connections.
NO_CONNECTIONS = Connections(table="", spark="", checkpoint="")

#: Option of a store that is no option of its storage: the secret that its documents are signed with.
_SIGNING = "signing_secret"


def program_origin(name: str | None) -> Origin:
    """The program, where operators have a task instance. Nothing binds to its run.

    :param name: of the Spark application, where it is known.
    """
    return Origin(dag_id="", task_id=name or "a program", run_id="", map_index=-1)


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
