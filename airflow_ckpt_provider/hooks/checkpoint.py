"""The ``checkpoint`` connection: where checkpoints live, and the credentials of that storage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_ckpt_provider.checkpoint.location import StorageLocation
from airflow_ckpt_provider.checkpoint.secrets import secrets_in
from airflow_ckpt_provider.checkpoint.signing import ConnectionKeys
from airflow_ckpt_provider.checkpoint.storage_problems import StorageOptions
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.checkpoint.trying_out import try_out
from airflow_ckpt_provider.exceptions import CheckpointError, InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: Members of the connection's extra that are handed to the storage; all others are refused.
ALLOWED_OPTIONS = frozenset(
    {
        "account_name",
        "allow_http",
        "client_id",
        "connect_timeout",
        "endpoint",
        "google_application_credentials",
        "proxy_url",
        "region",
        "role_arn",
        "session_token",
        "skip_signature",
        "tenant_id",
        "timeout",
        "use_emulator",
        "virtual_hosted_style_request",
        "web_identity_token_file",
    }
)

#: Members of the extra that hold keys for signatures, and are no options of the storage.
SIGNING = frozenset({"signing_secret", "previous_signing_secrets"})


class CheckpointHook(BaseHook):
    """Opens the checkpoint store of a connection of type ``checkpoint``.

    Host is the store's URI, such as ``file:///data/checkpoints`` or ``s3://bucket/prefix``; login and password are access key
    and secret where the storage has them; extra holds storage options by obstore's names, such as ``region`` or ``endpoint``, and
    ``signing_secret`` if all documents are to be signed (``previous_signing_secrets``: a list of keys that are still accepted).
    Without a connection ``checkpoint_default``, a folder below ``AIRFLOW_HOME`` is used.

    :param checkpoint_conn_id: id of the connection
    """

    conn_name_attr = "checkpoint_conn_id"
    default_conn_name = "checkpoint_default"
    conn_type = "checkpoint"
    hook_name = "Checkpoint store"

    def __init__(self, checkpoint_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.checkpoint_conn_id = checkpoint_conn_id

    def get_conn(self) -> CheckpointStore:
        """The store.

        :raises InvalidInputError: if the connection cannot be used as one.
        """
        connection = self._connection()
        return CheckpointStore(self._location(connection), None if connection is None else signer_of(connection))

    def location(self) -> StorageLocation:
        """The storage the connection names, with its options."""
        return self._location(self._connection())

    def _connection(self) -> Connection | None:
        return connection_or_none(self.checkpoint_conn_id, self.default_conn_name, {self.conn_type})

    def _location(self, connection: Connection | None) -> StorageLocation:
        if connection is None:
            os.makedirs(embedded_home(), mode=0o700, exist_ok=True)
            return StorageLocation(f"file://{embedded_home()}/store")
        if not connection.host:
            raise InvalidInputError(
                f"The connection {self.checkpoint_conn_id!r} has no host: put the URI of the store there, such as s3://bucket/prefix."
            )
        options = options_of(connection)
        uri = _uri(connection)
        try:
            return StorageLocation(uri, options)
        except InvalidInputError as error:
            # A secret that was pasted into the wrong field must not be repeated.
            said = str(error).replace(repr(uri), "it").replace(uri, "***").replace(uri.partition("://")[2] or uri, "***")
            raise InvalidInputError(
                f"The host of the connection {self.checkpoint_conn_id!r} is no URI of a store: {said}"
            ) from None

    def test_connection(self) -> tuple[bool, str]:
        """List, put, race, read and remove; see ``checkpoint.trying_out``."""
        try:
            store = self.get_conn()
            try_out(store)
        except CheckpointError as error:
            return False, str(error)
        return True, f"The checkpoint store {store.uri} lists, reads, writes each object once, and removes."


def options_of(connection: Connection) -> StorageOptions:
    """Storage options of a ``checkpoint`` connection: login, password and what its extra may hold.

    :raises InvalidInputError: for an extra that is not allowed.
    """
    mask_secrets(connection)
    # A field of the form that is left empty is kept as null or as an empty text.
    extra = {name: value for name, value in connection.extra_dejson.items() if name not in SIGNING and value not in (None, "")}
    unknown = sorted(extra.keys() - ALLOWED_OPTIONS)
    if unknown:
        raise InvalidInputError(
            f"The connection {connection.conn_id!r} has the extra {', '.join(unknown)}; allowed are "
            f"{', '.join(sorted(ALLOWED_OPTIONS | SIGNING))}."
        )
    options = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in extra.items()}
    if options.get("endpoint", "").startswith("http://") and options.get("allow_http") != "true":
        raise InvalidInputError(
            f"The connection {connection.conn_id!r} has an endpoint that begins with http:// and is not encrypted. If that is "
            'meant, add "allow_http": true to its extra; otherwise begin the endpoint with https://.'
        )
    if options.get("google_application_credentials", "").lstrip().startswith("{"):
        raise InvalidInputError(
            f"The connection {connection.conn_id!r} has the content of a file in google_application_credentials, which takes a "
            "path. Put the content into a file that only the workers can read, and its path into the connection."
        )
    azure = _uri(connection).split("://", 1)[0] in {"az", "azure", "abfs", "abfss", "adl"}
    login, password = ("account_name", "account_key") if azure else ("access_key_id", "secret_access_key")
    if connection.login:
        options[login] = connection.login
    if connection.password:
        options[password] = connection.password
    return StorageOptions(options, connection.conn_id)


def signer_of(connection: Connection) -> ConnectionKeys | None:
    """What signs the documents of the connection's store; None if it has no ``signing_secret``.

    :raises InvalidInputError: if a key is no string, or too short; or there are earlier ones only.
    """
    extra = connection.extra_dejson
    key, previous = extra.get("signing_secret"), extra.get("previous_signing_secrets", [])
    previous = [previous] if isinstance(previous, str) else previous
    if not key and not previous:
        return None
    if not (key and isinstance(previous, list) and all(isinstance(secret, str) for secret in [key, *previous])):
        raise InvalidInputError(
            f"The connection {connection.conn_id!r} needs a string as signing_secret, and a list of strings as "
            "previous_signing_secrets."
        )
    mask_secrets(connection)
    return ConnectionKeys((key, *previous))


def mask_secrets(connection: Connection) -> None:
    """Have Airflow mask whatever looks like a secret in a connection, in all logs of this process.

    Airflow itself knows the password, and members of the extra by some names.
    """
    facts = {"host": connection.host or "", "extra": connection.extra_dejson, "password": connection.password or ""}
    for secret in secrets_in(facts):
        mask_secret(secret)


def storage_options(conn_id: str | None, parameter: str = "conn_id") -> StorageOptions:
    """Storage options that a source reads with; those of the environment if it names no connection.

    :param parameter: what names the connection in the DAG.
    """
    connection = None if conn_id is None else connection_or_none(conn_id, None, {CheckpointHook.conn_type})
    return StorageOptions({}, None, parameter) if connection is None else options_of(connection)


def connection_or_none(conn_id: str, default: str | None, types: set[str]) -> Connection | None:
    """A connection of one of these types, or None if it is the default one and not set up.

    :raises InvalidInputError: if it is missing, or of another type.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        if conn_id == default:
            return None
        raise InvalidInputError(
            f"There is no connection {conn_id!r}. Create it with the type {' or '.join(sorted(types))}, or correct the id."
        ) from error
    if connection.conn_type not in types:
        raise InvalidInputError(
            f"The connection {conn_id!r} is of type {connection.conn_type!r}; the type {' or '.join(sorted(types))} is needed here."
        )
    return connection


def embedded_home() -> str:
    """Folder of the embedded default: store, catalog and warehouse of one machine."""
    home = os.environ.get("AIRFLOW_HOME") or os.path.expanduser("~/airflow")
    return os.path.join(os.path.abspath(home), "checkpoints")


def _uri(connection: Connection) -> str:
    """The store's URI, however Airflow split it into host and schema."""
    host: Any = connection.host or ""
    if "://" in host or host.startswith("/"):
        return str(host)
    return f"{connection.schema}://{host}" if connection.schema else str(host)
