"""Opening Iceberg catalogs. A REST catalog is not waited for without end: the library gives its requests no time-outs.

A commit whose answer does not come in time is looked for in the table's history like any other of unknown outcome.

Decision: the time-outs are properties of the catalog under the names that Iceberg's Java library has for them.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from pyiceberg.catalog import AVAILABLE_CATALOGS, CatalogType, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NotInstalledError

from airflow_ckpt_provider.checkpoint.secrets import redacted
from airflow_ckpt_provider.exceptions import InvalidInputError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.rest.auth import AuthManager
    from requests import Session

#: Properties, in milliseconds: to connect, and until the next bytes of an answer come.
CONNECT_TIMEOUT, READ_TIMEOUT = "rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms"

#: Where the connection says nothing.
_DEFAULTS = {CONNECT_TIMEOUT: 10_000, READ_TIMEOUT: 120_000}


class BoundedRestCatalog(RestCatalog):
    """A REST catalog whose every request has time-outs, the first ones included.

    :raises InvalidInputError: if a time-out is no positive number.
    """

    def _create_session(self) -> Session:
        # Fetches a token first, perhaps.
        return self._bounded(super()._create_session())

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> AuthManager:
        return super()._create_legacy_oauth2_auth_manager(self._bounded(session))

    def _bounded(self, session: Session) -> Session:
        timeouts = (_seconds(self.properties, CONNECT_TIMEOUT), _seconds(self.properties, READ_TIMEOUT))
        session.request = functools.partial(session.request, timeout=timeouts)  # type: ignore[method-assign]
        return session


@contextlib.contextmanager
def bounded_catalogs() -> Iterator[None]:
    """Within the block, the library opens REST catalogs with time-outs."""
    load_rest = AVAILABLE_CATALOGS[CatalogType.REST]
    AVAILABLE_CATALOGS[CatalogType.REST] = lambda name, properties: BoundedRestCatalog(name, **properties)
    try:
        yield
    finally:
        AVAILABLE_CATALOGS[CatalogType.REST] = load_rest


def _seconds(properties: Mapping[str, object], name: str) -> float:
    value = properties.get(name, _DEFAULTS[name])
    try:
        milliseconds = float(str(value))
    except ValueError:
        milliseconds = 0
    if not 0 < milliseconds < float("inf"):
        raise InvalidInputError(f"{name}={value!r} of the Iceberg catalog is no time in milliseconds, such as {_DEFAULTS[name]}.")
    return milliseconds / 1000


def opened_catalog(properties: Mapping[str, str]) -> Catalog:
    """The catalog that pyiceberg's properties describe, with time-outs for its requests.

    :param properties: as those of ``pyiceberg.catalog.load_catalog``, with its ``name``, which is ``default`` without one; a SQL
        catalog keeps its tables by it.
    :raises InvalidInputError: if there is no such catalog.
    :raises RetryableError: if it does not answer.
    """
    told = {str(key): str(value) for key, value in properties.items()}
    name = told.pop("name", "default")
    try:
        with bounded_catalogs():
            return load_catalog(name, **told)
    except InvalidInputError:
        raise
    except Exception as error:
        raise not_opened(f"The Iceberg catalog {name!r}", error, told) from error


def not_opened(catalog: str, error: Exception, properties: Mapping[str, object]) -> InvalidInputError | RetryableError:
    """The error to raise where a catalog could not be opened: its class says whether a retry may help; it has no secrets.

    :param catalog: what it is, for the message.
    :param properties: that it was opened with.
    """
    # Values that cannot be, and a library that is not installed, are so at the next try.
    kind = InvalidInputError if isinstance(error, ValueError | NotInstalledError) else RetryableError
    return kind(f"{catalog} could not be opened: {type(error).__name__}: {redacted(error, properties)}")
