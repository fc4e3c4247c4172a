"""A Lance dataset as tables and sources open it: where it is, at which version, and when that was made."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.location import normal_uri
from airflow_ckpt_provider.exceptions import InvalidInputError, RetryableError, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from lance import LanceDataset

#: Schemes that Lance opens, of those that the checkpoint store knows.
_SCHEMES = ("file", "s3", "gs", "az")


def dataset_uri(text: str) -> str:
    """Normal form of a dataset's URI or absolute local path.

    :raises InvalidInputError: if it carries credentials, is a relative path, or has a scheme that Lance does not open.
    """
    uri = normal_uri(text).rstrip("/")
    scheme, _, rest = uri.partition("://")
    scheme = "s3" if scheme == "s3a" else scheme
    if scheme not in _SCHEMES:
        raise InvalidInputError(f"{text!r} has the scheme {scheme!r}; Lance datasets are opened at {', '.join(_SCHEMES)}.")
    return f"{scheme}://{rest}"


def address_of(uri: str) -> str:
    """A URI as Lance takes it: nothing in a local path is percent-decoded."""
    return uri.removeprefix("file://")


def open_dataset(uri: str, options: Mapping[str, str], version: int | None = None) -> LanceDataset | None:
    """The dataset at a version, or at its latest; None if there is none.

    :param uri: as from ``dataset_uri``.
    :raises RetryableError: if the storage failed.
    """
    import lance

    try:
        return lance.dataset(address_of(uri), version=version, storage_options=dict(options) or None)
    except Exception as error:
        if isinstance(error, ValueError) and "not found" in str(error).lower():
            return None
        raise RetryableError(f"The Lance dataset {uri} could not be opened: {type(error).__name__}: {first_line(error)}") from error


def made_at(dataset: LanceDataset) -> datetime:
    """When the version that ``dataset`` shows was made."""
    # Lance gives local time without a zone.
    made: Any = dataset.get_version()["timestamp"]
    return made.astimezone(UTC)  # type: ignore[no-any-return]
