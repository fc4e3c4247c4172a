"""A place in object storage: a URI that may be stored and shown, and options that may not.

Local folders, S3, GCS, Azure and memory, through ``obstore``. Both the checkpoint store and sources that read files open
their storage here, so that credentials are handled, and refused in URIs, in one place only.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_ckpt_provider.checkpoint.secrets import redacted
from airflow_ckpt_provider.checkpoint.storage_problems import storage_problem, without_structure
from airflow_ckpt_provider.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import MemoryStore, ObjectStore

#: Schemes that ``obstore`` opens with put-if-absent.
SCHEMES = ("file", "memory", "s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure")

#: Options about the HTTP client and not about the store.
_CLIENT_OPTIONS = ("allow_http", "timeout", "connect_timeout", "proxy_url")

_SECRET_QUERY = re.compile(r"sig|secret|token|password|credential|access_?key|accesskeyid", re.IGNORECASE)

_memory: dict[str, MemoryStore] = {}


@dataclass(frozen=True)
class StorageLocation:
    """A URI and the options to open it with. Picklable, so that it can travel to executors with the task.

    :param uri: for instance ``file:///data/store`` or ``s3://bucket/prefix``; a plain absolute path is a local one.
    :param options: credentials and settings in obstore's names, such as ``access_key_id`` or ``endpoint``. Never stored.
    :raises InvalidInputError: if the URI carries credentials, has an unknown scheme, is a relative path, or would lose its end.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        uri = whole_uri(self.uri)
        if not uri.startswith(("file://", "memory://")) and unquote(uri) != uri:
            raise InvalidInputError(
                f"{uri!r} is percent-encoded, and is opened by the decoded name: what is put there would not be found under "
                f"its own. Write {unquote(uri)!r}."
            )
        object.__setattr__(self, "uri", uri)

    @property
    def scheme(self) -> str:
        return urlsplit(self.uri).scheme

    @property
    def is_local(self) -> bool:
        """True if only this machine can see it."""
        return self.scheme in {"file", "memory"}

    @property
    def path(self) -> str:
        """Local path of a ``file`` URI. Nothing in it is percent-decoded: what is written there is the name."""
        return self.uri.removeprefix("file://")

    def open(self, *, create: bool = False) -> ObjectStore:
        """Open the storage with the URI's path as prefix.

        :param create: create a local folder that is missing.
        :raises InvalidInputError: if the options do not fit the storage.
        """
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, MemoryStore, from_url

        if self.scheme == "memory":
            return _memory.setdefault(self.uri, MemoryStore())
        if self.scheme == "file":
            if create and not os.path.isdir(self.path):
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                # Without a race: whoever makes it makes it for its own user only.
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.path, 0o700)
            return LocalStore(self.path)
        config: dict[str, Any] = {k: v for k, v in self.options.items() if k not in _CLIENT_OPTIONS}
        client: dict[str, Any] = {k: _typed(v) for k, v in self.options.items() if k in _CLIENT_OPTIONS}
        try:
            return from_url(self.uri, config=config, client_options=client)  # type: ignore[call-overload, no-any-return]
        except (BaseError, ValueError) as error:
            raise InvalidInputError(
                f"Cannot open {self.uri} with the options {sorted(self.options)}: {self.said(error)}"
            ) from error

    def said(self, error: Exception) -> str:
        """What storage says of an error, in a sentence that helps if its kind is known, and without any secret."""
        text = str(error)
        return redacted(storage_problem(text, self.options) or without_structure(text), self.options)

    def restrict(self, name: str) -> None:
        """Let those read and write a local file that the folder of this location is open to, and nobody else."""
        if self.scheme == "file":
            with contextlib.suppress(FileNotFoundError, PermissionError):
                os.chmod(os.path.join(self.path, name), os.stat(self.path).st_mode & 0o666)


def normal_uri(text: str) -> str:
    """Normal form of a storage URI or absolute local path; refuses what must not be stored.

    :raises InvalidInputError: if it carries credentials, has an unknown scheme, or is a relative path.
    """
    if "://" not in text:
        if not os.path.isabs(text):
            raise InvalidInputError(
                f"{text!r} is a relative path, which means another folder on every worker. Use an absolute path or a URI."
            )
        return "file://" + os.path.normpath(text) + ("/" if text.endswith("/") else "")
    refuse_credentials(text)
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise InvalidInputError(f"{text!r} has the scheme {parts.scheme!r}; supported are {', '.join(SCHEMES)}.")
    if parts.scheme == "file" and parts.netloc:
        raise InvalidInputError(f"{text!r} has a host, {parts.netloc!r}. A local path has three slashes: file:///{parts.netloc}...")
    if parts.scheme == "file":
        return normal_uri(text.removeprefix("file://") or "/")
    return text


def whole_uri(text: str) -> str:
    """The same of a place that is opened, where a part of the name would be taken for a query or a fragment and left out.

    :raises InvalidInputError: for that too.
    """
    uri = normal_uri(text)
    if not uri.startswith("file://") and ("#" in uri or "?" in uri):
        raise InvalidInputError(
            f"{text!r} holds '#' or '?', and object storage would leave out what follows: two such names would be one place. "
            "Choose a name without them."
        )
    return uri


def refuse_credentials(uri: str) -> None:
    """Refuse a URI with a user, password, token or signature in it: it would land in the store, XCom and logs (I9).

    :raises InvalidInputError: without repeating the secret.
    """
    parts = urlsplit(uri)
    if ("@" in parts.netloc and parts.scheme not in {"abfs", "abfss"}) or (parts.username and parts.password):
        where = "before the '@'"
    elif any(_SECRET_QUERY.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        where = "in its query"
    else:
        return
    raise InvalidInputError(
        f"A URI of scheme {parts.scheme!r} carries a credential {where}. It would be written into the checkpoint store, "
        "XCom and logs. Put credentials into an Airflow connection and leave them out of the URI."
    )


def _typed(value: str) -> str | bool:
    return {"true": True, "false": False}.get(str(value).lower(), value)
